"""EfficientNet: blocks of MobileNets with gates of channels, in sizes that grow in depth and width together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from netbuilder.model import ModelHelper
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.zoo.layers import Blob, NormalizedConv, add_head, add_pooled_scores, chosen, divisible
from netbuilder.zoo.mobilenet import add_inverted_residual

__all__ = ["EFFICIENTNET", "EfficientNet", "create_efficientnet"]

_STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)


@dataclass(frozen=True)
class EfficientNet:
    """A size of EfficientNet.

    Args:
        width, depth: factors of the numbers of channels and of blocks.
        dropout: dropout probability of the pooled features.
        stages: expansion, kernel, stride of the first block, channels, blocks.
    """

    width: float
    depth: float
    dropout: float
    stages: Sequence[tuple[int, int, int, int, int]] = _STAGES


EFFICIENTNET: dict[str, EfficientNet] = {
    "b0": EfficientNet(1.0, 1.0, 0.2),
    "b1": EfficientNet(1.0, 1.1, 0.2),
    "b2": EfficientNet(1.1, 1.2, 0.3),
    "b3": EfficientNet(1.2, 1.4, 0.3),
    "b4": EfficientNet(1.4, 1.8, 0.4),
}
"""The sizes, whose usual images have 224, 240, 260, 300 and 380 pixels a side."""


def create_efficientnet(
    model: ModelHelper,
    data: Blob,
    num_input_channels: int,
    num_labels: int,
    size: str | EfficientNet = "b0",
    label: Blob | None = None,
    is_test: bool = False,
    no_loss: bool = False,
    *,
    dropout: float | None = None,
    stochastic_depth: float = 0.2,
    bn_epsilon: float = 1e-5,
    bn_momentum: float = 0.9,
) -> Any:
    """Add an EfficientNet.

    Args:
        size: one of ``EFFICIENTNET``, or such a row.
        dropout: dropout probability of the pooled features, in [0, 1); None: that of the size.
        stochastic_depth: probability that a sample skips the last block in training; that of others grows in proportion
            to their number.
        The others are those of ``create_mobilenet_v2``.

    Returns:
        The scores (N, num_labels) if ``no_loss``, (softmax, loss) if there is a label, otherwise the softmax.

    Raises:
        ArgumentError: ``size`` is unknown.

    Source: Tan and Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks", 2019,
    arXiv:1905.11946, table 1.
    """
    table = chosen("create_efficientnet", size, EFFICIENTNET)
    width = table.width
    conv = NormalizedConv(model, is_test, bn_epsilon, bn_momentum, "swish")
    dim = divisible(32 * width)
    x = conv(data, "conv1", num_input_channels, dim, 3, stride=2, pad=1)
    number, total = 0, sum(math.ceil(blocks * table.depth) for *_, blocks in table.stages)
    for expansion, kernel, stride, channels, blocks in table.stages:
        for block in range(math.ceil(blocks * table.depth)):
            number, made = number + 1, divisible(channels * width)
            x = add_inverted_residual(
                conv, x, f"block{number}", dim, divisible(dim * expansion), made, kernel=kernel,
                stride=stride if block == 0 else 1, squeezed=max(1, dim // 4), gates=("Swish", "Sigmoid"),
                skipped=stochastic_depth * (number - 1) / total,
            )  # fmt: skip
            dim = made
    x = conv(x, "conv_last", dim, 4 * dim, 1)
    ratio = table.dropout if dropout is None else dropout
    scores = add_pooled_scores(model, x, 4 * dim, num_labels, dropout=ratio, is_test=is_test)
    return add_head(model, scores, label, no_loss)
