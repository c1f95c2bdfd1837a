"""DenseNet: each layer reads the results of all layers before it in its block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model import ModelHelper, brew
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.zoo.layers import MSRA, Blob, NormalizedConv, add_dropout, add_head, add_pooled_scores, chosen

__all__ = ["DENSENET", "DenseNet", "create_densenet"]


@dataclass(frozen=True)
class DenseNet:
    """A size of DenseNet.

    Args:
        blocks: numbers of layers of the blocks.
        growth: channels that a layer adds.
        first: channels of the first convolution.
    """

    blocks: Sequence[int]
    growth: int = 32
    first: int = 64


DENSENET: dict[str, DenseNet] = {
    "121": DenseNet((6, 12, 24, 16)),
    "169": DenseNet((6, 12, 32, 32)),
    "201": DenseNet((6, 12, 48, 32)),
    "161": DenseNet((6, 12, 36, 24), growth=48, first=96),
}
"""The sizes by their numbers of layers."""


def create_densenet(
    model: ModelHelper,
    data: Blob,
    num_input_channels: int,
    num_labels: int,
    size: str | DenseNet = "121",
    label: Blob | None = None,
    is_test: bool = False,
    no_loss: bool = False,
    *,
    dropout: float = 0.0,
    bn_epsilon: float = 1e-5,
    bn_momentum: float = 0.9,
) -> Any:
    """Add a DenseNet with bottlenecks, whose transitions halve the channels.

    Args:
        data: images, (N, num_input_channels, H, W), of 32 pixels a side or more.
        size: one of ``DENSENET``, or such a row.
        dropout: dropout probability of the result of each layer, in [0, 1).
        The others are those of ``create_mobilenet_v2``.

    Returns:
        The scores (N, num_labels) if ``no_loss``, (softmax, loss) if there is a label, otherwise the softmax.

    Raises:
        ArgumentError: ``size`` is unknown.

    Source: Huang, Liu, van der Maaten and Weinberger, "Densely Connected Convolutional Networks", 2016,
    arXiv:1608.06993, table 1.
    """
    table = chosen("create_densenet", size, DENSENET)
    conv = NormalizedConv(model, is_test, bn_epsilon, bn_momentum)
    x = conv(data, "conv1", num_input_channels, table.first, 7, stride=2, pad=3)
    x = brew.max_pool(model, x, "pool1", kernel=3, stride=2, pad=1)
    dim = table.first

    def normalized(blob: Blob, name: str, channels: int) -> BlobReference:
        return conv.activate(conv.normalize(blob, f"{name}_spatbn", channels))

    for number, layers in enumerate(table.blocks, 1):
        parts = [x]
        for layer in range(1, layers + 1):
            name, wide = f"block{number}_{layer}", 4 * table.growth
            inner = normalized(_joined(model, parts, name), f"{name}_conv1", dim)
            inner = brew.conv(model, inner, f"{name}_conv1", dim, wide, 1, weight_init=MSRA, no_bias=1)
            inner = normalized(inner, f"{name}_conv2", wide)
            inner = brew.conv(model, inner, f"{name}_conv2", wide, table.growth, 3, weight_init=MSRA, no_bias=1, pad=1)
            parts.append(add_dropout(model, inner, f"{name}_drop", dropout, is_test))
            dim += table.growth
        x = normalized(_joined(model, parts, f"block{number}"), f"transition{number}", dim)
        if number < len(table.blocks):
            x = brew.conv(model, x, f"transition{number}", dim, dim // 2, 1, weight_init=MSRA, no_bias=1)
            x = brew.average_pool(model, x, f"transition{number}_pool", kernel=2, stride=2)
            dim //= 2
    return add_head(model, add_pooled_scores(model, x, dim, num_labels), label, no_loss)


def _joined(model: ModelHelper, parts: Sequence[BlobReference], name: str) -> BlobReference:
    return parts[0] if len(parts) == 1 else brew.concat(model, parts, f"{name}_concat", axis=1)
