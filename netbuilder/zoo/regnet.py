"""RegNets: residual nets of grouped convolutions whose widths follow a quantized line."""

from __future__ import annotations

import math
from itertools import groupby
from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model import ModelHelper, brew
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.zoo.layers import MSRA, Blob, NormalizedConv, add_head, add_pooled_scores, chosen, divisible

__all__ = ["REGNET", "RegNet", "create_regnet"]


@dataclass(frozen=True)
class RegNet:
    """A size of RegNet: block j has about ``first`` + ``slope`` * j channels, rounded to ``first`` * ``step`` ** k.

    Args:
        depth: number of blocks.
        group: channels of a group.
        gated: whether channels have gates: RegNetY.
        stem: channels of the first convolution.
    """

    depth: int
    first: int
    slope: float
    step: float
    group: int
    gated: bool = False
    stem: int = 32

    def stages(self) -> list[tuple[int, int, int]]:
        """Return the channels, blocks and channels of a group of each stage."""
        exact = [self.first + self.slope * j for j in range(self.depth)]
        powers = [round(math.log(width / self.first) / math.log(self.step)) for width in exact]
        widths = [8 * round(self.first * self.step**power / 8) for power in powers]
        stages = []
        for width, blocks in groupby(widths):
            group = min(self.group, width)
            stages.append((divisible(width, group), len(list(blocks)), group))
        return stages


REGNET: dict[str, RegNet] = {
    "x-400mf": RegNet(22, 24, 24.48, 2.54, 16),
    "x-800mf": RegNet(16, 56, 35.73, 2.28, 16),
    "x-1.6gf": RegNet(18, 80, 34.01, 2.25, 24),
    "x-3.2gf": RegNet(25, 88, 26.31, 2.25, 48),
    "x-8gf": RegNet(23, 80, 49.56, 2.88, 120),
    "y-400mf": RegNet(16, 48, 27.89, 2.09, 8, gated=True),
    "y-800mf": RegNet(14, 56, 38.84, 2.4, 16, gated=True),
    "y-1.6gf": RegNet(27, 48, 20.71, 2.65, 24, gated=True),
    "y-3.2gf": RegNet(21, 80, 42.63, 2.66, 24, gated=True),
    "y-8gf": RegNet(17, 192, 76.82, 2.19, 56, gated=True),
}
"""The sizes by their cost: multiplications and additions for an image of 224 pixels a side."""


def create_regnet(
    model: ModelHelper,
    data: Blob,
    num_input_channels: int,
    num_labels: int,
    size: str | RegNet = "y-400mf",
    label: Blob | None = None,
    is_test: bool = False,
    no_loss: bool = False,
    *,
    bn_epsilon: float = 1e-5,
    bn_momentum: float = 0.9,
) -> Any:
    """Add a RegNetX, or a RegNetY, whose channels have gates.

    Args:
        size: one of ``REGNET``, or such a row.
        The others are those of ``create_mobilenet_v2``.

    Returns:
        The scores (N, num_labels) if ``no_loss``, (softmax, loss) if there is a label, otherwise the softmax.

    Raises:
        ArgumentError: ``size`` is unknown.

    Source: Radosavovic, Kosaraju, Girshick, He and Dollar, "Designing Network Design Spaces", 2020, arXiv:2003.13678.
    """
    table = chosen("create_regnet", size, REGNET)
    conv = NormalizedConv(model, is_test, bn_epsilon, bn_momentum)
    x = conv(data, "conv1", num_input_channels, table.stem, 3, stride=2, pad=1)
    dim = table.stem
    for stage, (width, blocks, group) in enumerate(table.stages(), 1):
        for block in range(1, blocks + 1):
            squeezed = round(dim / 4) if table.gated else 0
            x = _add_block(conv, x, f"stage{stage}_{block}", dim, width, group, 2 if block == 1 else 1, squeezed)
            dim = width
    return add_head(model, add_pooled_scores(model, x, dim, num_labels), label, no_loss)


def _add_block(
    conv: NormalizedConv, blob: Blob, name: str, dim: int, width: int, group: int, stride: int, squeezed: int
) -> BlobReference:
    model, around = conv.model, blob
    if stride != 1 or dim != width:
        around = conv(blob, f"{name}_shortcut", dim, width, 1, stride=stride, relu=False)
    x = conv(blob, f"{name}_conv1", dim, width, 1)
    x = conv(x, f"{name}_conv2", width, width, 3, stride=stride, pad=1, group=width // group)
    if squeezed:
        x = brew.squeeze_excite(model, x, f"{name}_gated", width, squeezed, weight_init=MSRA)
    x = conv(x, f"{name}_conv3", width, width, 1, relu=False)
    total = brew.add(model, [x, around], f"{name}_sum")
    return brew.relu(model, total, total)
