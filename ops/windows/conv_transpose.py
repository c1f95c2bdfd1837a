"""Transposed convolution, which maps tensors of the shape of a convolution's output to that of its input."""

from __future__ import annotations

import math
from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.conv_geometry import NOTSET, Geometry
from netbuilder.ops.core.half import narrow
from netbuilder.ops.core.image_order import channel_axis, image_extents
from netbuilder.ops.core.operator import TensorSpec, require, spec_of
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.windows.conv import (
    ConvArguments,
    ConvBackward,
    ConvForward,
    add_bias,
    correlate,
    correlate_filter_gradient,
    correlate_input_gradient,
    ready,
    sum_bias,
)
from netbuilder.ops.windows.conv_windows import from_channels_first
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["ConvTranspose", "ConvTransposeGradient"]


@dataclass(frozen=True)
class TransposeArguments(ConvArguments):
    """The arguments and checks of transposed convolution and of its gradient."""

    adj: int = 0
    adj_h: int = 0
    adj_w: int = 0
    adjs: tuple[int, ...] = ()

    def check(self) -> None:
        super().check()
        if self.legacy_pad != NOTSET:
            raise ArgumentError(f"{self.type}: legacy_pad is supported only by convolution and pooling; give pads")

    def geometry(self, x: TensorSpec, w: TensorSpec) -> Geometry:
        """Return the geometry of the windows over Y, one window per position of X; ``out`` is the image extents of Y.

        Raises:
            ShapeError: X, W and the arguments do not match.
        """
        axes = self.image_axes(x)
        kernel = self.kernel_of(x, w)
        channels = x.shape[channel_axis(self.order, x.ndim)]
        require(
            w.shape[0] == channels and channels % self.group == 0,
            self,
            f"for X {x.shape} in order {self.order} with group {self.group}, W must have one filter per channel of X, "
            f"{channels}, a number divisible by the group, got W {w.shape}",
        )
        strides, adjs = self.per_axis("stride", axes), self.per_axis("adj", axes)
        require(min(strides) >= 1, self, f"stride must be at least 1 along every image axis, got {strides}")
        require(
            all(0 <= a < s for a, s in zip(adjs, strides)), self, f"adj must lie in [0, stride {strides}), got {adjs}"
        )
        require(self.per_axis("dilation", axes) == (1,) * axes, self, "dilation is not supported; omit the argument")
        begin, end = self.explicit_pads(axes)
        out = tuple(
            (n - 1) * s + k + a - b - e
            for n, k, s, a, b, e in zip(image_extents(x.shape, self.order), kernel, strides, adjs, begin, end)
        )
        require(min(out) >= 1, self, f"pads {begin} and {end} leave no elements of Y for X {x.shape} and W {w.shape}")
        return Geometry(kernel, strides, begin, end, (1,) * axes, out, self.group)

    def channels_out(self, w: TensorSpec) -> int:
        return w.shape[channel_axis(self.order, w.ndim)] * self.group

    def products(self, x: TensorSpec, w: TensorSpec) -> int:
        return x.shape[0] * math.prod(image_extents(x.shape, self.order)) * w.size


@register
@dataclass(frozen=True)
class ConvTranspose(TransposeArguments, ConvForward):
    """Y = b + the gradient of a convolution with filter W with respect to its input, where X is that of its output.

    In order NCHW, X is (N, C, H, W), W (C, M / group, kH, kW) and Y has M channels; in order NHWC they are
    (N, H, W, C) and (C, kH, kW, M / group). The extents of Y are ``(H - 1) * stride + kernel + adj - pads``.

    Source: Zeiler et al., "Deconvolutional Networks", 2010.
    """

    signature = """
        X (N, C, *S) if NCHW else (N, *S, C): float
        W (C, D, *K) if NCHW else (C, *K, D): as X, D = M / group
        b? (M): as X
        -> Y (N, M, *T) if NCHW else (N, *T, M): as X
    """


@register
@dataclass(frozen=True)
class ConvTransposeGradient(TransposeArguments, ConvBackward):
    """Gradients of ConvTranspose: of the filter, of the bias unless ``no_bias``, and of X if it is an output."""


@kernel(ConvTranspose)
def conv_transpose(op: ConvTranspose, ctx: RunContext, x: Any, w: Any, b: Any = None) -> tuple[Any, ...]:
    xp, geometry = ctx.xp, op.geometry(spec_of(x), spec_of(w))
    images, filters = ready(op, xp, x, w)
    y = correlate_input_gradient(xp, images, filters, geometry, geometry.out)
    if b is not None:
        add_bias(y, b)
    return (from_channels_first(xp, narrow(y, x), op.order),)


@kernel(ConvTransposeGradient)
def conv_transpose_gradient(op: ConvTransposeGradient, ctx: RunContext, x: Any, w: Any, dy: Any) -> tuple[Any, ...]:
    xp, geometry = ctx.xp, op.geometry(spec_of(x), spec_of(w))
    images, filters, d_images = ready(op, xp, x, w, dy)
    results = [from_channels_first(xp, narrow(correlate_filter_gradient(xp, d_images, images, geometry), w), op.order)]
    if op.computes_db:
        results.append(narrow(sum_bias(d_images), w))
    if op.computes_dx:
        dx = correlate(xp, d_images, filters, geometry, images.shape[2:])
        results.append(from_channels_first(xp, narrow(dx, x), op.order))
    return tuple(results)
