"""ResNeXt: residual nets whose convolutions work on groups of channels."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model import ModelHelper
from netbuilder.proto import ArgumentError
from netbuilder.zoo.residual import ResNetBuilder
from netbuilder.zoo.resnet import RESNET_STAGES, add_stem, finish, stages_of

__all__ = ["RESNEXT_BLOCK_CONFIG", "RESNEXT_STRIDES", "create_resnext"]

Blob = str | BlobReference

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
        num_layers: 18, 34, 50, 101, 152 or 200; those of 18 and 34 layers have narrow blocks.
        num_groups: parts of the channels that the 3x3 convolutions work on apart ("cardinality").
        num_width_per_group: channels of a part in the first stage; they double from stage to stage.
        log: taken and not used.
        The others are those of ``create_resnet``.

    Returns:
        The scores (N, num_labels) if ``no_loss``, (softmax, loss) if there is a label, else the softmax.

    Raises:
        ArgumentError: there is no net of so many layers, or a group is empty.

    Source: Xie, Girshick, Dollar, Tu and He, "Aggregated residual transformations for deep neural
    networks", 2017, arXiv:1611.05431.
    """
    stages = stages_of(num_layers)
    if num_groups < 1 or num_width_per_group < 1:
        raise ArgumentError(
            f"create_resnext: num_groups and num_width_per_group must be 1 at least, got {num_groups} and "
            f"{num_width_per_group}"
        )
    pool1 = add_stem(
        model, data, num_input_channels, no_bias=no_bias, is_test=is_test,
        conv1_kernel=conv1_kernel, conv1_stride=conv1_stride, bn_epsilon=bn_epsilon, bn_momentum=bn_momentum,
    )  # fmt: skip
    builder = ResNetBuilder(model, pool1, no_bias, is_test, bn_epsilon, bn_momentum)
    widening = 4 if num_layers >= 50 else 1
    filters = 64
    for stage, blocks in enumerate(stages):
        base = num_groups * num_width_per_group << stage
        output = 64 * widening << stage
        for block in range(blocks):
            stride = RESNEXT_STRIDES[stage] if block == 0 else 1
            builder.add_bottleneck(filters, base, output, stride=stride, group=num_groups)
            filters = output
    return finish(model, builder.prev_blob, filters, num_labels, label, no_loss, final_avg_kernel)
