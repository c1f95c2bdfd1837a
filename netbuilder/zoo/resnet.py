"""Residual nets for images: ResNet-18 to ResNet-200, and small ones for 32x32 pixels."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model import ModelHelper, brew
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.zoo.layers import MSRA, Blob, NormalizedConv, add_head
from netbuilder.zoo.residual import ResNetBuilder

__all__ = [
    "BASE_FILTERS",
    "RESNET_STAGES",
    "ImageNetFrame",
    "add_scores",
    "create_resnet",
    "create_resnet50",
    "create_resnet_32x32",
]

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
BASE_FILTERS = 64


def stages_of(num_layers: int) -> tuple[int, ...]:
    """Return the blocks of each stage.

    Raises:
        ArgumentError: ``num_layers`` is not supported.
    """
    if num_layers not in RESNET_STAGES:
        raise ArgumentError(f"num_layers of a residual net must be one of {sorted(RESNET_STAGES)}, got {num_layers}")
    return RESNET_STAGES[num_layers]


@dataclass(frozen=True)
class ImageNetFrame:
    """The layers before and after the blocks of a ResNet or ResNeXt; the fields are arguments of ``create_resnet``."""

    conv: NormalizedConv
    data: Blob
    num_input_channels: int
    num_labels: int
    label: Blob | None
    no_loss: bool
    no_bias: bool | int
    conv1_kernel: int
    conv1_stride: int
    final_avg_kernel: int

    def begin(self) -> ResNetBuilder:
        """Add a convolution to 64 channels, normalization, Relu and pooling; return the builder of the blocks."""
        model, conv = self.conv.model, self.conv
        conv1 = brew.conv(
            model, self.data, "conv1", self.num_input_channels, BASE_FILTERS,
            weight_init=MSRA, kernel=self.conv1_kernel, stride=self.conv1_stride, pad=3, no_bias=self.no_bias,
        )  # fmt: skip
        normalized = conv.normalize(conv1, "conv1_spatbn_relu", BASE_FILTERS)
        relu = brew.relu(model, normalized, normalized)
        pool1 = brew.max_pool(model, relu, "pool1", kernel=3, stride=2, pad=1)
        return ResNetBuilder(
            model, pool1, self.no_bias, conv.is_test, conv.bn_epsilon, conv.bn_momentum,
            projection_epsilon=conv.bn_epsilon,
        )  # fmt: skip

    def end(self, builder: ResNetBuilder, channels: int) -> Any:
        """Add the layers after the blocks, which have so many output channels; return the result of the net."""
        scores = add_scores(builder, channels, self.num_labels, self.final_avg_kernel)
        return add_head(self.conv.model, scores, self.label, self.no_loss)


def add_scores(builder: ResNetBuilder, channels: int, num_labels: int, kernel: int) -> BlobReference:
    """Add global average pooling after the blocks and the scores, (N, num_labels); return the scores."""
    mean = brew.average_pool(
        builder.model, builder.prev_blob, "final_avg", kernel=kernel, stride=1, global_pooling=True
    )  # fmt: skip
    return brew.fc(builder.model, mean, f"last_out_L{num_labels}", channels, num_labels)


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

    Nets of 18 and 34 layers have blocks of two convolutions 3x3, the others bottlenecks.

    Args:
        data: images, (N, num_input_channels, H, W); usually 224x224 pixels, at least 32x32.
        num_labels: number of classes; the scores are ``last_out_L<num_labels>``.
        num_layers: number of layers, counted as in the paper.
        label: classes, (N,), int32.
        is_test: normalize by running averages.
        no_loss: return the scores.
        no_bias: convolutions have no bias.
        conv1_kernel, conv1_stride: kernel and stride of the first convolution, in pixels.
        final_avg_kernel: argument of the last pooling, without effect, because the pooling is global.
        bn_epsilon, bn_momentum: of batch normalization, see ``brew.spatial_bn``.

    Returns:
        The scores (N, num_labels) if ``no_loss``, (softmax, loss) if there is a label, otherwise the softmax.

    Raises:
        ArgumentError: ``num_layers`` is not supported.

    Source: He, Zhang, Ren and Sun, "Deep residual learning for image recognition", 2016, arXiv:1512.03385, table 1.
    """
    stages = stages_of(num_layers)
    frame = ImageNetFrame(
        NormalizedConv(model, is_test, bn_epsilon, bn_momentum), data, num_input_channels, num_labels, label, no_loss,
        no_bias, conv1_kernel, conv1_stride, final_avg_kernel,
    )  # fmt: skip
    builder = frame.begin()
    filters = BASE_FILTERS
    for stage, blocks in enumerate(stages):
        base = BASE_FILTERS << stage
        for block in range(blocks):
            halves = stage > 0 and block == 0
            if num_layers >= _FIRST_WITH_BOTTLENECKS:
                builder.add_bottleneck(filters, base, 4 * base, stride=2 if halves else 1)
                filters = 4 * base
            else:
                builder.add_simple_block(filters, base, down_sampling=halves)
                filters = base
    return frame.end(builder, filters)


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
        num_groups: pairs of blocks per stage; 5 give ResNet-62.
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
