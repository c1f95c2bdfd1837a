"""Residual nets for images: ResNet-18 to ResNet-200, and the small ones for 32x32 pixels."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model import ModelHelper, brew
from netbuilder.proto import ArgumentError
from netbuilder.zoo.head import add_head
from netbuilder.zoo.residual import ResNetBuilder

__all__ = ["RESNET_STAGES", "add_stem", "create_resnet", "create_resnet50", "create_resnet_32x32"]

Blob = str | BlobReference

RESNET_STAGES = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
}
"""Number of layers -> blocks in each of the four stages."""

_FIRST_WITH_BOTTLENECKS = 50
_BASE_FILTERS = 64


def stages_of(num_layers: int) -> tuple[int, ...]:
    """Return the blocks of each stage.

    Raises:
        ArgumentError: there is no net of so many layers.
    """
    if num_layers not in RESNET_STAGES:
        raise ArgumentError(f"a residual net has {sorted(RESNET_STAGES)} layers, got {num_layers}")
    return RESNET_STAGES[num_layers]


def add_stem(
    model: ModelHelper,
    data: Blob,
    num_input_channels: int,
    *,
    no_bias: bool | int,
    is_test: bool | int,
    conv1_kernel: int,
    conv1_stride: int,
    bn_epsilon: float = 1e-5,
    bn_momentum: float = 0.9,
) -> BlobReference:
    """Add what comes before the blocks: convolution to 64 channels, normalization, Relu, pooling to half the size."""
    conv1 = brew.conv(
        model, data, "conv1", num_input_channels, _BASE_FILTERS,
        weight_init=("MSRAFill", {}), kernel=conv1_kernel, stride=conv1_stride, pad=3, no_bias=no_bias,
    )  # fmt: skip
    normalized = brew.spatial_bn(
        model, conv1, "conv1_spatbn_relu", _BASE_FILTERS,
        epsilon=bn_epsilon, momentum=bn_momentum, is_test=1 if is_test else 0,
    )  # fmt: skip
    relu = brew.relu(model, normalized, normalized)
    return brew.max_pool(model, relu, "pool1", kernel=3, stride=2, pad=1)


def create_resnet(
    model: ModelHelper,
    data: Blob,
    num_input_channels: int,
    num_labels: int,
    num_layers: int,
    label: Blob | None = None,
    is_test: bool = False,
    no_loss: bool = False,
    no_bias: bool | int = 1,
    conv1_kernel: int = 7,
    conv1_stride: int = 2,
    final_avg_kernel: int = 7,
    *,
    bn_epsilon: float = 1e-5,
    bn_momentum: float = 0.9,
) -> Any:
    """Add a residual net of 18, 34, 50, 101, 152 or 200 layers.

    Those of 18 and 34 layers have blocks of two convolutions 3x3, the others bottlenecks.

    Args:
        data: images, (N, num_input_channels, H, W); 224x224 pixels is usual, 32 a side the least.
        num_labels: number of classes; the scores are ``last_out_L<num_labels>``.
        num_layers: counted as the paper does.
        label: classes, (N,), int32.
        is_test: normalize by running averages.
        no_loss: stop at the scores.
        no_bias: leave the biases of convolutions out.
        conv1_kernel, conv1_stride: of the first convolution, in pixels.
        final_avg_kernel: kept in the net; the last pooling takes the mean of the whole plane.
        bn_epsilon, bn_momentum: of the normalization, see ``brew.spatial_bn``.

    Returns:
        The scores (N, num_labels) if ``no_loss``, (softmax, loss) if there is a label, else the softmax.

    Raises:
        ArgumentError: there is no net of so many layers.

    Source: He, Zhang, Ren and Sun, "Deep residual learning for image recognition", 2016, arXiv:1512.03385, table 1.
    """
    stages = stages_of(num_layers)
    pool1 = add_stem(
        model, data, num_input_channels, no_bias=no_bias, is_test=is_test,
        conv1_kernel=conv1_kernel, conv1_stride=conv1_stride, bn_epsilon=bn_epsilon, bn_momentum=bn_momentum,
    )  # fmt: skip
    builder = ResNetBuilder(model, pool1, no_bias, is_test, bn_epsilon, bn_momentum)
    filters = _BASE_FILTERS
    for stage, blocks in enumerate(stages):
        base = _BASE_FILTERS << stage
        for block in range(blocks):
            shrinks = stage > 0 and block == 0
            if num_layers >= _FIRST_WITH_BOTTLENECKS:
                builder.add_bottleneck(filters, base, 4 * base, stride=2 if shrinks else 1)
                filters = 4 * base
            else:
                builder.add_simple_block(filters, base, down_sampling=shrinks)
                filters = base
    return finish(model, builder.prev_blob, filters, num_labels, label, no_loss, final_avg_kernel)


def finish(
    model: ModelHelper,
    blob: Blob,
    filters: int,
    num_labels: int,
    label: Blob | None,
    no_loss: bool,
    final_avg_kernel: int,
) -> Any:
    """Add what comes after the blocks: the mean of each plane, the scores, and the head."""
    mean = brew.average_pool(model, blob, "final_avg", kernel=final_avg_kernel, stride=1, global_pooling=True)
    scores = brew.fc(model, mean, f"last_out_L{num_labels}", filters, num_labels)
    return add_head(model, scores, label, no_loss)


def create_resnet50(
    model: ModelHelper,
    data: Blob,
    num_input_channels: int,
    num_labels: int,
    label: Blob | None = None,
    is_test: bool = False,
    no_loss: bool = False,
    no_bias: bool | int = 0,
    conv1_kernel: int = 7,
    conv1_stride: int = 2,
    final_avg_kernel: int = 7,
) -> Any:
    """Add ResNet-50; arguments and result as for ``create_resnet``."""
    return create_resnet(
        model, data, num_input_channels, num_labels, 50,
        label=label, is_test=is_test, no_loss=no_loss, no_bias=no_bias,
        conv1_kernel=conv1_kernel, conv1_stride=conv1_stride, final_avg_kernel=final_avg_kernel,
    )  # fmt: skip


def create_resnet_32x32(
    model: ModelHelper, data: Blob, num_input_channels: int, num_groups: int, num_labels: int, is_test: bool = False
) -> BlobReference:
    """Add a residual net for small images; returns the softmax (N, num_labels).

    It has three stages of 16, 32 and 64 channels.

    Args:
        data: images, (N, num_input_channels, 32, 32).
        num_groups: pairs of blocks a stage; 5 make ResNet-62.
        num_labels: number of classes; the scores are ``last_out``.
        is_test: normalize by running averages.
    """
    mode = 1 if is_test else 0
    conv1 = brew.conv(model, data, "conv1", num_input_channels, 16, kernel=3, stride=1)
    normalized = brew.spatial_bn(model, conv1, "conv1_spatbn", 16, epsilon=1e-3, is_test=mode)
    relu = brew.relu(model, normalized, "relu1")
    filters = [16, 16, 32, 64]
    builder = ResNetBuilder(model, relu, no_bias=0, is_test=is_test)
    for stage in range(3):
        for block in range(2 * num_groups):
            first = block == 0
            builder.add_simple_block(
                filters[stage] if first else filters[stage + 1],
                filters[stage + 1],
                down_sampling=first and stage > 0,
            )
    mean = brew.average_pool(model, builder.prev_blob, "final_avg", kernel=8, stride=1)
    return brew.softmax(model, brew.fc(model, mean, "last_out", 64, num_labels), "softmax")
