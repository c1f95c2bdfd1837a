"""ConvNeXt: convolutions 7x7 of single channels, layer normalization, and wide layers at each pixel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model import Initializer, ModelHelper, brew
from netbuilder.zoo.layers import SMALL, Blob, add_head, add_linear, chosen

__all__ = ["CONVNEXT", "create_convnext"]

Stages = Sequence[tuple[int, int]]

CONVNEXT: dict[str, Stages] = {
    "tiny": ((96, 3), (192, 3), (384, 9), (768, 3)),
    "small": ((96, 3), (192, 3), (384, 27), (768, 3)),
    "base": ((128, 3), (256, 3), (512, 27), (1024, 3)),
}
"""Size -> channels and blocks of each stage."""

_SKIPPED = {"tiny": 0.1, "small": 0.4, "base": 0.5}
_EPSILON = 1e-6
_FIRST_LAST, _FIRST_SECOND = [0, 2, 3, 1], [0, 3, 1, 2]


def create_convnext(
    model: ModelHelper,
    data: Blob,
    num_input_channels: int,
    num_labels: int,
    size: str | Stages = "tiny",
    label: Blob | None = None,
    is_test: bool = False,
    no_loss: bool = False,
    *,
    layer_scale: float = 1e-6,
    stochastic_depth: float | None = None,
) -> Any:
    """Add a ConvNeXt.

    Args:
        data: images, (N, num_input_channels, H, W), of 32 pixels a side or more.
        num_labels: number of classes; the scores are ``scores``.
        size: one of ``CONVNEXT``, or such a row.
        label: classes, (N,), int32.
        is_test: no sample skips a block.
        no_loss: return the scores.
        layer_scale: first value of the factors of the blocks' results.
        stochastic_depth: probability that a sample skips the last block in training; that of others grows in proportion
            to their number. None: that of the paper for a size, 0 for a row.

    Returns:
        The scores (N, num_labels) if ``no_loss``, (softmax, loss) if there is a label, otherwise the softmax.

    Raises:
        ArgumentError: ``size`` is unknown.

    Source: Liu, Mao, Wu, Feichtenhofer, Darrell and Xie, "A ConvNet for the 2020s", 2022, arXiv:2201.03545.
    """
    stages = chosen("create_convnext", size, CONVNEXT)
    skipped = (_SKIPPED[size] if isinstance(size, str) else 0.0) if stochastic_depth is None else stochastic_depth
    step = 0.0 if is_test else skipped / max(1, sum(blocks for _, blocks in stages) - 1)
    dim, number = stages[0][0], 0
    x = brew.conv(model, data, "stem", num_input_channels, dim, 4, weight_init=SMALL, stride=4)
    x = _normalized(model, x, "stem_norm", dim)
    for stage, (channels, blocks) in enumerate(stages, 1):
        if stage > 1:
            x = _normalized(model, x, f"stage{stage}_norm", dim)
            x = brew.conv(model, x, f"stage{stage}_down", dim, channels, 2, weight_init=SMALL, stride=2)
            dim = channels
        for block in range(1, blocks + 1):
            x = _add_block(model, x, f"stage{stage}_{block}", dim, layer_scale, step * number)
            number += 1
    pooled = brew.average_pool(model, x, "final_avg", global_pooling=1)
    features = brew.layer_norm(
        model, brew.squeeze(model, pooled, "features", dims=[2, 3]), "final_norm", dim, epsilon=_EPSILON
    )
    return add_head(model, add_linear(model, features, "scores", dim, num_labels), label, no_loss)


def _normalized(model: ModelHelper, blob: Blob, name: str, dim: int) -> BlobReference:
    """Add layer normalization over the channels of each pixel."""
    x = brew.transpose(model, blob, f"{name}_last", axes=_FIRST_LAST)
    x = brew.layer_norm(model, x, name, dim, axis=3, epsilon=_EPSILON)
    return brew.transpose(model, x, f"{name}_first", axes=_FIRST_SECOND)


def _add_block(
    model: ModelHelper, blob: Blob, name: str, dim: int, layer_scale: float, skipped: float
) -> BlobReference:
    scale = model.create_param(f"{name}_scale", [dim, 1, 1], Initializer("ConstantFill", value=layer_scale))
    x = brew.depthwise(model, blob, f"{name}_depthwise", dim, 7, weight_init=SMALL, pad=3)
    x = brew.transpose(model, x, f"{name}_last", axes=_FIRST_LAST)
    x = brew.layer_norm(model, x, f"{name}_norm", dim, axis=3, epsilon=_EPSILON)
    x = brew.gelu(model, add_linear(model, x, f"{name}_fc1", dim, 4 * dim, axis=3), f"{name}_active")
    x = add_linear(model, x, f"{name}_fc2", 4 * dim, dim, axis=3)
    x = brew.transpose(model, x, f"{name}_first", axes=_FIRST_SECOND)
    x = brew.mul(model, [x, scale], f"{name}_scaled")
    x = brew.stochastic_depth(model, x, f"{name}_survived", skipped, is_test=False)
    return brew.add(model, [x, blob], name)
