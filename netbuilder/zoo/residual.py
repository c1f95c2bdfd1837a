"""The blocks of residual nets."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model import ModelHelper, brew
from netbuilder.zoo.layers import MSRA

__all__ = ["ResNetBuilder"]

_PROJECTION_EPSILON = 1e-3


class ResNetBuilder:
    """Adds residual blocks one after another; the names of block ``i`` begin with ``comp_<i>_``.

    Args:
        model: model that gets the layers.
        prev_blob: input of the first block, (N, C, H, W).
        no_bias: convolutions have no bias; the normalization after them has one.
        is_test: normalize by running averages.
        bn_epsilon, bn_momentum: of batch normalization, see ``brew.spatial_bn``.
        projection_epsilon: that in the shortcuts of simple blocks; the default is Caffe2's.

    Attributes:
        prev_blob: input of the next layer.

    Source: He, Zhang, Ren and Sun, "Deep residual learning for image recognition", 2016, arXiv:1512.03385;
    groups: Xie et al., "Aggregated residual transformations for deep neural networks", 2017, arXiv:1611.05431.
    """

    def __init__(
        self,
        model: ModelHelper,
        prev_blob: str | BlobReference,
        no_bias: bool | int,
        is_test: bool | int,
        bn_epsilon: float = 1e-5,
        bn_momentum: float = 0.9,
        *,
        projection_epsilon: float = _PROJECTION_EPSILON,
    ) -> None:
        self.model = model
        self.prev_blob = prev_blob
        self.no_bias = 1 if no_bias else 0
        self.is_test = 1 if is_test else 0
        self.bn_epsilon = bn_epsilon
        self.bn_momentum = bn_momentum
        self.projection_epsilon = projection_epsilon
        self.comp_count = 0  # blocks so far
        self.comp_idx = 0  # convolutions in this block so far

    def add_conv(
        self, in_filters: int, out_filters: int, kernel: int, stride: int = 1, group: int = 1, pad: int = 0
    ) -> BlobReference:
        """Add a convolution; ``kernel``, ``stride`` and ``pad`` in pixels."""
        self.comp_idx += 1
        blob = brew.conv(
            self.model,
            self.prev_blob,
            f"comp_{self.comp_count}_conv_{self.comp_idx}",
            in_filters,
            out_filters,
            weight_init=MSRA,
            kernel=kernel,
            stride=stride,
            group=group,
            pad=pad,
            no_bias=self.no_bias,
        )
        self.prev_blob = blob
        return blob

    def add_relu(self) -> BlobReference:
        """Add a Relu, in place."""
        blob = brew.relu(self.model, self.prev_blob, self.prev_blob)
        self.prev_blob = blob
        return blob

    def add_spatial_bn(self, num_filters: int) -> BlobReference:
        """Add a batch normalization."""
        blob = brew.spatial_bn(
            self.model,
            self.prev_blob,
            f"comp_{self.comp_count}_spatbn_{self.comp_idx}",
            num_filters,
            epsilon=self.bn_epsilon,
            momentum=self.bn_momentum,
            is_test=self.is_test,
        )
        self.prev_blob = blob
        return blob

    def add_bottleneck(
        self,
        input_filters: int,
        base_filters: int,
        output_filters: int,
        stride: int = 1,
        group: int = 1,
        spatial_batch_norm: bool = True,
    ) -> None:
        """Add a block of convolutions 1x1, 3x3, 1x1, with a shortcut.

        Args:
            input_filters, base_filters, output_filters: numbers of channels before, inside and after the block;
                if it has more output than input channels, the shortcut is a convolution.
            stride: stride of the 3x3 convolution and of the shortcut.
            group: number of groups of the 3x3 convolution.
            spatial_batch_norm: normalize after each convolution.
        """
        self.comp_idx = 0
        shortcut = self.prev_blob
        self._conv_bn_relu(input_filters, base_filters, 1, spatial_batch_norm)
        self._conv_bn_relu(base_filters, base_filters, 3, spatial_batch_norm, stride=stride, group=group, pad=1)
        last = self.add_conv(base_filters, output_filters, 1)
        if spatial_batch_norm:
            last = self.add_spatial_bn(output_filters)
        if output_filters > input_filters:
            shortcut = self._projection(
                shortcut, input_filters, output_filters, stride, spatial_batch_norm,
                epsilon=self.bn_epsilon, momentum=self.bn_momentum,
            )  # fmt: skip
        self._join(shortcut, last)

    def add_simple_block(
        self, input_filters: int, num_filters: int, down_sampling: bool = False, spatial_batch_norm: bool = True
    ) -> None:
        """Add a block of two convolutions 3x3, with a shortcut.

        Args:
            input_filters, num_filters: numbers of channels before and after the block; if they differ, the
                shortcut is a convolution.
            down_sampling: halve height and width.
            spatial_batch_norm: normalize after each convolution.
        """
        self.comp_idx = 0
        shortcut = self.prev_blob
        stride = 2 if down_sampling else 1
        self._conv_bn_relu(input_filters, num_filters, 3, spatial_batch_norm, stride=stride, pad=1)
        last = self.add_conv(num_filters, num_filters, 3, pad=1)
        if spatial_batch_norm:
            last = self.add_spatial_bn(num_filters)
        if num_filters != input_filters:
            shortcut = self._projection(
                shortcut, input_filters, num_filters, stride, spatial_batch_norm, epsilon=self.projection_epsilon
            )
        self._join(shortcut, last)

    def _conv_bn_relu(self, dim_in: int, dim_out: int, kernel: int, normalize: bool, **kwargs: int) -> None:
        self.add_conv(dim_in, dim_out, kernel, **kwargs)
        if normalize:
            self.add_spatial_bn(dim_out)
        self.add_relu()

    def _projection(
        self, blob: str | BlobReference, dim_in: int, dim_out: int, stride: int, normalize: bool, **bn: Any
    ) -> BlobReference:
        name = f"shortcut_projection_{self.comp_count}"
        projected = brew.conv(
            self.model,
            blob,
            name,
            dim_in,
            dim_out,
            weight_init=MSRA,
            kernel=1,
            stride=stride,
            no_bias=self.no_bias,
        )
        if normalize:
            projected = brew.spatial_bn(self.model, projected, f"{name}_spatbn", dim_out, is_test=self.is_test, **bn)
        return projected

    def _join(self, shortcut: str | BlobReference, last: BlobReference) -> None:
        name = f"comp_{self.comp_count}_sum_{self.comp_idx}"
        self.prev_blob = brew.sum(self.model, [shortcut, last], name)
        self.comp_idx += 1
        self.add_relu()
        self.comp_count += 1
