"""MobileNet v2 and v3: residual blocks around depthwise convolutions of many channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model import ModelHelper, brew
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.zoo.layers import (
    MSRA,
    Blob,
    NormalizedConv,
    add_dropout,
    add_head,
    add_pooled_scores,
    chosen,
    divisible,
)

__all__ = [
    "MOBILENET_V2",
    "MOBILENET_V3",
    "MobileNetV2",
    "MobileNetV3",
    "add_inverted_residual",
    "create_mobilenet_v2",
    "create_mobilenet_v3",
]

_V2_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


@dataclass(frozen=True)
class MobileNetV2:
    """A size of MobileNet v2.

    Args:
        width: factor of the numbers of channels.
        stages: expansion, channels, blocks, stride of the first block.
    """

    width: float
    stages: Sequence[tuple[int, int, int, int]] = _V2_STAGES


MOBILENET_V2: dict[str, MobileNetV2] = {f"{width}x": MobileNetV2(width) for width in (0.5, 0.75, 1.0, 1.4)}
"""The sizes by their widths."""

Row = tuple[int, int, int, bool, str, int]


@dataclass(frozen=True)
class MobileNetV3:
    """A size of MobileNet v3.

    Args:
        blocks: kernel, channels between the convolutions, channels of the result, whether channels have gates,
            activation, stride.
        last: length of the hidden vector.
        first: channels of the first convolution.
    """

    blocks: Sequence[Row]
    last: int
    first: int = 16


MOBILENET_V3: dict[str, MobileNetV3] = {
    "large": MobileNetV3(
        (
            (3, 16, 16, False, "relu", 1),
            (3, 64, 24, False, "relu", 2),
            (3, 72, 24, False, "relu", 1),
            (5, 72, 40, True, "relu", 2),
            *[(5, 120, 40, True, "relu", 1)] * 2,
            (3, 240, 80, False, "hard_swish", 2),
            (3, 200, 80, False, "hard_swish", 1),
            *[(3, 184, 80, False, "hard_swish", 1)] * 2,
            (3, 480, 112, True, "hard_swish", 1),
            (3, 672, 112, True, "hard_swish", 1),
            (5, 672, 160, True, "hard_swish", 2),
            *[(5, 960, 160, True, "hard_swish", 1)] * 2,
        ),
        1280,
    ),
    "small": MobileNetV3(
        (
            (3, 16, 16, True, "relu", 2),
            (3, 72, 24, False, "relu", 2),
            (3, 88, 24, False, "relu", 1),
            (5, 96, 40, True, "hard_swish", 2),
            *[(5, 240, 40, True, "hard_swish", 1)] * 2,
            (5, 120, 48, True, "hard_swish", 1),
            (5, 144, 48, True, "hard_swish", 1),
            (5, 288, 96, True, "hard_swish", 2),
            *[(5, 576, 96, True, "hard_swish", 1)] * 2,
        ),
        1024,
    ),
}
"""The paper's two sizes."""


def add_inverted_residual(
    conv: NormalizedConv,
    blob: Blob,
    name: str,
    dim_in: int,
    wide: int,
    dim_out: int,
    *,
    kernel: int = 3,
    stride: int = 1,
    squeezed: int = 0,
    gates: tuple[str, str] = ("Relu", "Sigmoid"),
    skipped: float = 0.0,
) -> BlobReference:
    """Add convolutions 1x1 to ``wide`` channels, depthwise, and 1x1 to ``dim_out``, and the input if shapes are equal.

    Args:
        wide: channels between; if it is ``dim_in``, the first convolution is omitted.
        squeezed: channels of the squeeze of gates; 0: no gates.
        gates: activation and gate of ``brew.squeeze_excite``.
        skipped: probability that a sample skips the block in training, if shapes are equal.
    """
    x = blob if wide == dim_in else conv(blob, f"{name}_expand", dim_in, wide, 1)
    x = conv(x, f"{name}_depthwise", wide, wide, kernel, stride=stride, pad=kernel // 2, group=wide)
    if squeezed:
        x = brew.squeeze_excite(
            conv.model, x, f"{name}_gated", wide, squeezed, activation=gates[0], gate=gates[1], weight_init=MSRA
        )
    x = conv(x, f"{name}_project", wide, dim_out, 1, relu=False)
    if stride != 1 or dim_in != dim_out:
        return x
    x = brew.stochastic_depth(conv.model, x, f"{name}_survived", skipped, is_test=bool(conv.is_test))
    return brew.add(conv.model, [x, blob], f"{name}_sum")


def create_mobilenet_v2(
    model: ModelHelper,
    data: Blob,
    num_input_channels: int,
    num_labels: int,
    size: str | MobileNetV2 = "1.0x",
    label: Blob | None = None,
    is_test: bool = False,
    no_loss: bool = False,
    *,
    dropout: float = 0.2,
    bn_epsilon: float = 1e-5,
    bn_momentum: float = 0.9,
) -> Any:
    """Add MobileNet v2.

    Args:
        data: images, (N, num_input_channels, H, W).
        num_labels: number of classes; the scores are ``scores``.
        size: one of ``MOBILENET_V2``, or such a row.
        label: classes, (N,), int32.
        is_test: no dropout; normalize by running averages.
        no_loss: return the scores.
        dropout: dropout probability of the pooled features, in [0, 1).
        bn_epsilon, bn_momentum: of batch normalization, see ``brew.spatial_bn``.

    Returns:
        The scores (N, num_labels) if ``no_loss``, (softmax, loss) if there is a label, otherwise the softmax.

    Raises:
        ArgumentError: ``size`` is unknown.

    Source: Sandler, Howard, Zhu, Zhmoginov and Chen, "MobileNetV2", 2018, arXiv:1801.04381, table 2.
    """
    table = chosen("create_mobilenet_v2", size, MOBILENET_V2)
    width = table.width
    conv = NormalizedConv(model, is_test, bn_epsilon, bn_momentum, "relu6")
    dim = divisible(32 * width)
    x = conv(data, "conv1", num_input_channels, dim, 3, stride=2, pad=1)
    number = 0
    for expansion, channels, blocks, stride in table.stages:
        for block in range(blocks):
            number, made = number + 1, divisible(channels * width)
            x = add_inverted_residual(
                conv, x, f"block{number}", dim, dim * expansion, made, stride=stride if block == 0 else 1
            )
            dim = made
    last = divisible(1280 * max(1.0, width))
    x = conv(x, "conv_last", dim, last, 1)
    scores = add_pooled_scores(model, x, last, num_labels, dropout=dropout, is_test=is_test)
    return add_head(model, scores, label, no_loss)


def create_mobilenet_v3(
    model: ModelHelper,
    data: Blob,
    num_input_channels: int,
    num_labels: int,
    size: str | MobileNetV3 = "large",
    label: Blob | None = None,
    is_test: bool = False,
    no_loss: bool = False,
    *,
    dropout: float = 0.2,
    bn_epsilon: float = 1e-3,
    bn_momentum: float = 0.99,
) -> Any:
    """Add MobileNet v3.

    Args:
        size: one of ``MOBILENET_V3``, or such a row.
        dropout: dropout probability of the hidden vector, in [0, 1).
        The others are those of ``create_mobilenet_v2``.

    Returns:
        The scores (N, num_labels) if ``no_loss``, (softmax, loss) if there is a label, otherwise the softmax.

    Raises:
        ArgumentError: ``size`` is unknown.

    Source: Howard et al., "Searching for MobileNetV3", 2019, arXiv:1905.02244, tables 1 and 2.
    """
    table = chosen("create_mobilenet_v3", size, MOBILENET_V3)

    def conv(activation: str) -> NormalizedConv:
        return NormalizedConv(model, is_test, bn_epsilon, bn_momentum, activation)

    x = conv("hard_swish")(data, "conv1", num_input_channels, table.first, 3, stride=2, pad=1)
    dim = table.first
    for number, (kernel, wide, made, gated, activation, stride) in enumerate(table.blocks, 1):
        x = add_inverted_residual(
            conv(activation), x, f"block{number}", dim, wide, made, kernel=kernel, stride=stride,
            squeezed=divisible(wide // 4) if gated else 0, gates=("Relu", "HardSigmoid"),
        )  # fmt: skip
        dim = made
    x = conv("hard_swish")(x, "conv_last", dim, 6 * dim, 1)
    pooled = brew.average_pool(model, x, "final_avg", global_pooling=1)
    hidden = brew.hard_swish(model, brew.fc(model, pooled, "fc_last", 6 * dim, table.last), "fc_last_active")
    hidden = add_dropout(model, hidden, "final_drop", dropout, is_test)
    return add_head(model, brew.fc(model, hidden, "scores", table.last, num_labels), label, no_loss)
