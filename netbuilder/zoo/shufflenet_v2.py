"""ShuffleNet v2: units that compute on half of the channels and shuffle the halves."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model import ModelHelper, brew
from netbuilder.proto import ArgumentError
from netbuilder.zoo.layers import MSRA, Blob, add_head

__all__ = ["ShuffleNetV2Builder", "create_shufflenet_v2"]

_STEM = 24
_CHANNELS = {
    "0.5x": (48, 96, 192, 1024),
    "1.0x": (116, 232, 464, 1024),
    "1.5x": (176, 352, 704, 1024),
    "2.0x": (244, 488, 976, 2048),
}
"""Width -> channels of stages 2 to 4 and of the last convolution."""

_REPEATS = (3, 7, 3)  # units of stages 2 to 4 after the first unit, which halves height and width


class ShuffleNetV2Builder:
    """Adds the net up to the scores; its blobs have the same names as in Caffe2.

    Args:
        model: model that gets the layers.
        data: images, (N, num_input_channels, H, W); 224x224 pixels, because the kernel of the last pooling is 7.
        num_labels: number of classes; the scores are ``last_out_L<num_labels>``.
        num_groups: number of groups of the channel shuffle.
        width: "0.5x", "1.0x", "1.5x" or "2.0x".
        is_test: normalize by running averages.
        detection: add a depthwise convolution before each branch, which enlarges the receptive field of a unit.
        bn_epsilon: of batch normalization, see ``brew.spatial_bn``.
        batch_norm: normalization and Relu after the first and last convolution, too, no biases, and the half that is
            not computed comes first, as in torchvision; otherwise as in Caffe2.

    Attributes:
        last_extent: height and width after the last unit, the kernel of the last pooling; 7 for images of 224 pixels.
        prev_blob: input of the next unit.
        last_conv, avg_pool, last_out: the blobs after the units; set by ``create``.

    Raises:
        ArgumentError: ``width`` is not supported.

    Source: Ma, Zhang, Zheng and Sun, "ShuffleNet V2: practical guidelines for efficient CNN architecture design",
    2018, arXiv:1807.11164, figure 3 and table 5.
    """

    def __init__(
        self, model: ModelHelper, data: Blob, num_input_channels: int, num_labels: int, num_groups: int = 2,
        width: str = "1.0x", is_test: bool = False, detection: bool = False, bn_epsilon: float = 1e-5,
        *, batch_norm: bool = False,
    ) -> None:  # fmt: skip
        if width not in _CHANNELS:
            raise ArgumentError(f"ShuffleNetV2Builder: width must be one of {sorted(_CHANNELS)}, got {width!r}")
        self.model = model
        self.prev_blob = data
        self.num_input_channels = num_input_channels
        self.num_labels = num_labels
        self.num_groups = num_groups
        self.output_channels = [_STEM, *_CHANNELS[width]]
        self.stage_repeats = list(_REPEATS)
        self.is_test = is_test
        self.detection = detection
        self.bn_epsilon = bn_epsilon
        self.batch_norm = batch_norm
        self.last_extent = 7

    def create(self) -> None:
        """Add the whole net."""
        pad = 1 if self.batch_norm else 0
        blob = self._conv(self.prev_blob, "stage1_conv", self.num_input_channels, _STEM, 3, stride=2, pad=pad)
        blob = self._outer(blob, "stage1_conv_bn", _STEM)
        self.prev_blob = brew.max_pool(self.model, blob, "stage1_pool", kernel=3, stride=2, pad=pad)
        for stage, repeats in enumerate(self.stage_repeats, 2):
            dim_in, dim_out = self.output_channels[stage - 2 : stage]
            self.add_spatial_ds_unit(f"stage{stage}_stride2", dim_in, dim_out)
            for number in range(1, repeats + 1):
                self.add_basic_unit(f"stage{stage}_stride1_repeat{number}", dim_out)
        dim_in, dim_out = self.output_channels[-2:]
        self.last_conv = self._outer(self._conv(self.prev_blob, "conv5", dim_in, dim_out, 1), "conv5_bn", dim_out)
        self.avg_pool = brew.average_pool(self.model, self.last_conv, "avg_pool", kernel=self.last_extent)
        self.last_out = brew.fc(self.model, self.avg_pool, f"last_out_L{self.num_labels}", dim_out, self.num_labels)

    def add_spatial_ds_unit(self, prefix: str, in_channels: int, out_channels: int, stride: int = 2) -> None:
        """Add a unit that reduces height and width: both branches read all channels."""
        inner = out_channels // 2
        left = right = self.prev_blob
        if self.detection:
            left = self.add_detection_unit(left, f"{prefix}_left", in_channels, in_channels)
        left = self.add_dwconv3x3_bn(left, f"{prefix}left_dwconv", in_channels, stride)
        left = self.add_conv1x1_bn(left, f"{prefix}_left_conv1", in_channels, inner)
        if self.detection:
            right = self.add_detection_unit(right, f"{prefix}_right", in_channels, in_channels)
        right = self._right(right, f"{prefix}_right", in_channels, inner, stride)
        self._join(right, left, prefix)

    def add_basic_unit(self, prefix: str, in_channels: int, stride: int = 1) -> None:
        """Add a unit that preserves the shape: one half of the channels passes through unchanged."""
        inner = in_channels // 2
        left, right = self.model.net.Split(self.prev_blob, [f"{prefix}_left", f"{prefix}_right"], axis=1)
        branch = right
        if self.detection:
            branch = self.add_detection_unit(branch, f"{prefix}_right", inner, inner)
        self._join(self._right(branch, f"{prefix}_right", inner, inner, stride), left, prefix)

    def _right(self, blob: Blob, name: str, dim_in: int, dim: int, stride: int) -> BlobReference:
        blob = self.add_conv1x1_bn(blob, f"{name}_conv1", dim_in, dim)
        blob = self.add_dwconv3x3_bn(blob, f"{name}_dwconv", dim, stride)
        return self.add_conv1x1_bn(blob, f"{name}_conv2", dim, dim)

    def _conv(self, blob: Blob, name: str, dim_in: int, dim_out: int, kernel: int, **options: Any) -> BlobReference:
        return brew.conv(
            self.model, blob, name, dim_in, dim_out, kernel, weight_init=MSRA, no_bias=self.batch_norm, **options
        )  # fmt: skip

    def _outer(self, blob: BlobReference, name: str, channels: int) -> BlobReference:
        """Add what follows the first and the last convolution."""
        if not self.batch_norm:
            return blob
        normalized = self._bn(blob, name, channels)
        return brew.relu(self.model, normalized, normalized)

    def _join(self, right: Blob, left: Blob, prefix: str) -> None:
        halves = [left, right] if self.batch_norm else [right, left]
        joined = brew.concat(self.model, halves, f"{prefix}_concat")
        self.prev_blob = self.model.net.ChannelShuffle(
            joined, f"{prefix}_ch_shuffle", group=self.num_groups, kernel=1
        )  # fmt: skip

    def add_detection_unit(
        self, prev_blob: Blob, prefix: str, in_channels: int, out_channels: int, kernel: int = 3, pad: int = 1
    ) -> BlobReference:
        """Add a depthwise convolution with normalization."""
        name = f"{prefix}_detection_conv"
        blob = self._conv(prev_blob, name, in_channels, out_channels, kernel, group=in_channels, pad=pad)
        return self._bn(blob, f"{prefix}_detection_bn", out_channels)

    def add_conv1x1_bn(self, prev_blob: Blob, blob: str, in_channels: int, out_channels: int) -> BlobReference:
        """Add a convolution 1x1 with normalization and Relu."""
        conv = self._conv(prev_blob, blob, in_channels, out_channels, 1)
        normalized = self._bn(conv, f"{blob}_bn", out_channels)
        return brew.relu(self.model, normalized, normalized)

    def add_dwconv3x3_bn(self, prev_blob: Blob, blob: str, channels: int, stride: int) -> BlobReference:
        """Add a depthwise convolution 3x3 with normalization."""
        conv = self._conv(prev_blob, blob, channels, channels, 3, stride=stride, pad=1, group=channels)
        return self._bn(conv, f"{blob}_bn", channels)

    def _bn(self, blob: Blob, name: str, channels: int) -> BlobReference:
        return brew.spatial_bn(
            self.model, blob, name, channels, epsilon=self.bn_epsilon, is_test=1 if self.is_test else 0
        )


def create_shufflenet_v2(
    model: ModelHelper, data: Blob, num_input_channels: int, num_labels: int, label: Blob | None = None,
    is_test: bool = False, no_loss: bool = False, *, width: str = "1.0x", batch_norm: bool = False,
    image_size: int = 224,
) -> Any:  # fmt: skip
    """Add ShuffleNet v2.

    Args:
        data: images, (N, num_input_channels, image_size, image_size).
        num_labels: number of classes; the scores are ``last_out_L<num_labels>``.
        label: classes, (N,), int32.
        is_test: normalize by running averages.
        no_loss: return the scores.
        width, batch_norm: see ``ShuffleNetV2Builder``.
        image_size: height and width in pixels, at least 7.

    Returns:
        The scores (N, num_labels) if ``no_loss``, (softmax, loss) if there is a label, otherwise the softmax.

    Raises:
        ArgumentError: ``width`` is not supported, or the images are too small.
    """
    if image_size < 7:
        raise ArgumentError(f"create_shufflenet_v2: image_size must be at least 7 pixels, got {image_size}")
    builder = ShuffleNetV2Builder(
        model, data, num_input_channels, num_labels, is_test=is_test, width=width, batch_norm=batch_norm
    )
    extent = image_size
    for _ in range(2):  # the first convolution and pooling, which have padding with ``batch_norm`` only
        extent = (extent + 1) // 2 if batch_norm else (extent - 1) // 2
    for _ in builder.stage_repeats:
        extent = (extent + 1) // 2
    builder.last_extent = extent
    builder.create()
    return add_head(model, builder.last_out, label, no_loss)
