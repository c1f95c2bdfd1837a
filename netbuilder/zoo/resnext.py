"""ResNeXt: residual nets with grouped convolutions."""

from __future__ import annotations

from typing import Any

from netbuilder.model import ModelHelper
from netbuilder.proto import ArgumentError
from netbuilder.zoo.layers import Blob, NormalizedConv
from netbuilder.zoo.resnet import RESNET_STAGES, ImageNetFrame, stages_of

__all__ = ["RESNEXT_BLOCK_CONFIG", "RESNEXT_STRIDES", "create_resnext"]

RESNEXT_BLOCK_CONFIG = RESNET_STAGES
RESNEXT_STRIDES = (1, 2, 2, 2)
"""Stride of the first block of each stage."""


def create_resnext(
    model: ModelHelper,
    data: Blob,
    num_input_channels: int,
    num_labels: int,
    num_layers: int,
    num_groups: int,
    num_width_per_group: int,
    label: Blob | None = None,
    is_test: bool = False,
    no_loss: bool = False,
    no_bias: bool | int = 1,
    conv1_kernel: int = 7,
    conv1_stride: int = 2,
    final_avg_kernel: int = 7,
    log: Any = None,
    bn_epsilon: float = 1e-5,
    bn_momentum: float = 0.9,
) -> Any:
    """Add a ResNeXt; all its blocks are bottlenecks.

    Args:
        num_layers: 18, 34, 50, 101, 152 or 200; nets of 18 and 34 layers have narrow blocks.
        num_groups: number of groups of the 3x3 convolutions ("cardinality").
        num_width_per_group: channels per group in the first stage; each stage doubles them.
        log: ignored.
        The others are those of ``create_resnet``.

    Returns:
        The scores (N, num_labels) if ``no_loss``, (softmax, loss) if there is a label, otherwise the softmax.

    Raises:
        ArgumentError: ``num_layers`` is not supported, or a group is empty.

    Source: Xie, Girshick, Dollar, Tu and He, "Aggregated residual transformations for deep neural
    networks", 2017, arXiv:1611.05431.
    """
    stages = stages_of(num_layers)
    if num_groups < 1 or num_width_per_group < 1:
        raise ArgumentError(
            f"create_resnext: num_groups and num_width_per_group must be positive, got {num_groups} and "
            f"{num_width_per_group}"
        )
    frame = ImageNetFrame(
        NormalizedConv(model, is_test, bn_epsilon, bn_momentum), data, num_input_channels, num_labels, label, no_loss,
        no_bias, conv1_kernel, conv1_stride, final_avg_kernel,
    )  # fmt: skip
    builder = frame.begin()
    widening = 4 if num_layers >= 50 else 1
    filters = 64
    for stage, blocks in enumerate(stages):
        base = num_groups * num_width_per_group << stage
        output = 64 * widening << stage
        for block in range(blocks):
            stride = RESNEXT_STRIDES[stage] if block == 0 else 1
            builder.add_bottleneck(filters, base, output, stride=stride, group=num_groups)
            filters = output
    return frame.end(builder, filters)
