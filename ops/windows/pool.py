"""Pooling: the maximum or the mean of windows, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.conv_geometry import Geometry, WindowArguments
from netbuilder.ops.core.half import narrow, require_one_float_type, widen
from netbuilder.ops.core.image_order import channel_axis, image_extents, image_shape
from netbuilder.ops.core.operator import InBatch, TensorSpec, require, spec_of
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.windows.conv_windows import (
    channels_first,
    crop,
    from_channels_first,
    pad_images,
    padded_extents,
    taps,
)
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["AveragePool", "AveragePoolGradient", "MaxPool", "MaxPoolGradient"]


@dataclass(frozen=True)
class PoolArguments(WindowArguments):
    """The arguments and checks of the pooling operators."""

    global_pooling: bool = False

    def check(self) -> None:
        super().check()
        if self.global_pooling and any((self.pad, self.pad_t, self.pad_l, self.pad_b, self.pad_r, *self.pads)):
            raise ArgumentError(f"{self.type}: global_pooling and pads must not be given together; omit one of the two")

    def geometry(self, x: TensorSpec) -> Geometry:
        """Return the geometry of the windows for X of this shape.

        Raises:
            ShapeError: X and the arguments do not match.
        """
        axes = self.image_axes(x)
        if self.global_pooling:
            ones, zeros = (1,) * axes, (0,) * axes
            return Geometry(image_extents(x.shape, self.order), ones, zeros, zeros, ones, ones)
        kernel = self.per_axis("kernel", axes)
        require(self.per_axis("dilation", axes) == (1,) * axes, self, "dilation is not supported; omit the argument")
        geometry = self.slide(x, kernel)
        begin, end = self.explicit_pads(axes)
        require(
            all(b < k and e < k for b, e, k in zip(begin, end, kernel)),
            self,
            f"pads must be smaller than the kernel {kernel}, so that no window is outside of X; got {begin} and {end}",
        )
        return geometry

    def pooled(self, x: TensorSpec) -> TensorSpec:
        """Return the spec of Y."""
        channels = x.shape[channel_axis(self.order, max(x.ndim, 2))] if x.ndim >= 2 else 0
        geometry = self.geometry(x)
        require(not self.global_pooling or min(geometry.kernel) >= 1, self, f"X must have images, got shape {x.shape}")
        return x.with_shape(image_shape(self.order, x.shape[0], channels, geometry.out))

    def visits(self, x: TensorSpec) -> int:
        """Return the number of elements of all windows together."""
        geometry = self.geometry(x)
        return math.prod(geometry.kernel) * self.pooled(x).size


@dataclass(frozen=True)
class Pooling(PoolArguments):
    """Base of pooling: each window of a channel is reduced to one element."""

    signature = """
        X (N, C, *S) if NCHW else (N, *S, C): float
        -> Y (N, C, *T) if NCHW else (N, *T, C): as X
    """

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        require_one_float_type(self, X=x)
        return (self.pooled(x),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("X"), g.output("Y"), g.d_output("Y")]
        return [make_op(self.type + "Gradient", inputs, [g.d_input("X")])]

    def flops(self, x: TensorSpec) -> int:
        return self.visits(x)


@dataclass(frozen=True)
class _Backward(PoolArguments):
    signature = "X, Y, dY -> dX"

    def flops(self, x: TensorSpec, y: TensorSpec, dy: TensorSpec) -> int:
        return self.visits(x)


@register
@dataclass(frozen=True)
class MaxPool(Pooling):
    """Y = the maximum of each window; pads are ignored."""

    in_batch = InBatch.ROW_BY_ROW


@register
@dataclass(frozen=True)
class MaxPoolGradient(_Backward):
    """dX = each element of dY added at every element of its window that equals the maximum."""


@register
@dataclass(frozen=True)
class AveragePool(Pooling):
    """Y = the mean of each window, of its part inside X or, with ``count_include_pad``, of all of it with pads of 0."""

    in_batch = InBatch.ROW_BY_ROW
    count_include_pad: bool = False


@register
@dataclass(frozen=True)
class AveragePoolGradient(_Backward):
    """dX = each element of dY, divided by the size of its window, added at all elements of the window."""

    count_include_pad: bool = False


def _ready(op: PoolArguments, xp: Any, *arrays: Any) -> list[Any]:
    """Return arrays channels-first, float16 as float32."""
    return [channels_first(xp, widen(a), op.order) for a in arrays]


def _finish(op: PoolArguments, xp: Any, y: Any, x: Any) -> tuple[Any, ...]:
    return (from_channels_first(xp, narrow(y, x), op.order),)


def _along(axis: int, start: int, windows: int, stride: int) -> tuple[slice, ...]:
    """Return the index of element ``start`` of all windows along one image axis."""
    return (slice(None),) * (axis + 2) + (slice(start, start + (windows - 1) * stride + 1, stride),)


def _reduce(padded: Any, geometry: Geometry, combine: Any) -> Any:
    """Reduce all windows of padded images, one axis after the other."""
    for axis, (size, stride, out) in enumerate(zip(geometry.kernel, geometry.strides, geometry.out)):
        reduced = padded[_along(axis, 0, out, stride)].copy()
        for start in range(1, size):
            combine(reduced, padded[_along(axis, start, out, stride)], out=reduced)
        padded = reduced
    return padded


@kernel(MaxPool)
def max_pool(op: MaxPool, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    xp, geometry = ctx.xp, op.geometry(spec_of(x))
    (images,) = _ready(op, xp, x)
    if op.global_pooling:
        y = images.max(axis=tuple(range(2, x.ndim)), keepdims=True)
    else:
        y = _reduce(pad_images(xp, images, geometry, -xp.inf), geometry, xp.maximum)
    return _finish(op, xp, y, x)


@kernel(MaxPoolGradient)
def max_pool_gradient(op: MaxPoolGradient, ctx: RunContext, x: Any, y: Any, dy: Any) -> tuple[Any, ...]:
    xp, geometry = ctx.xp, op.geometry(spec_of(x))
    images, maxima, d_maxima = _ready(op, xp, x, y, dy)
    if op.global_pooling:
        return _finish(op, xp, d_maxima * (images == maxima), x)
    padded = pad_images(xp, images, geometry, -xp.inf)
    d_padded = xp.zeros(padded.shape, d_maxima.dtype)
    for _, index in taps(geometry, geometry.out):
        d_padded[index] += d_maxima * (padded[index] == maxima)
    return _finish(op, xp, crop(xp, d_padded, images.shape[2:], geometry), x)


def _window_sizes(op: AveragePool | AveragePoolGradient, xp: Any, geometry: Geometry, extents: Sequence[int]) -> Any:
    """Return the divisor of the sum of each window, of shape (*out) or a single number."""
    if op.count_include_pad or not any(geometry.begin) and max(geometry.end) <= 0:
        return float(math.prod(geometry.kernel))
    sizes = xp.ones((), xp.float32)
    for n, k, s, b, out in zip(extents, geometry.kernel, geometry.strides, geometry.begin, geometry.out):
        first = xp.arange(out) * s - b
        inside = xp.minimum(first + k, n) - xp.maximum(first, 0)
        sizes = sizes[..., None] * inside.astype(xp.float32)
    return sizes


@kernel(AveragePool)
def average_pool(op: AveragePool, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    xp, geometry = ctx.xp, op.geometry(spec_of(x))
    (images,) = _ready(op, xp, x)
    if op.global_pooling:
        y = images.mean(axis=tuple(range(2, x.ndim)), keepdims=True)
    else:
        y = _reduce(pad_images(xp, images, geometry), geometry, xp.add)
        y /= _window_sizes(op, xp, geometry, images.shape[2:])
    return _finish(op, xp, y, x)


@kernel(AveragePoolGradient)
def average_pool_gradient(op: AveragePoolGradient, ctx: RunContext, x: Any, y: Any, dy: Any) -> tuple[Any, ...]:
    xp, geometry = ctx.xp, op.geometry(spec_of(x))
    images, d_means = _ready(op, xp, x, dy)
    extents = images.shape[2:]
    if op.global_pooling:
        share = d_means / float(math.prod(extents))
        return _finish(op, xp, xp.broadcast_to(share, images.shape), x)
    spread = d_means / _window_sizes(op, xp, geometry, extents)
    lengths = padded_extents(extents, geometry)
    for axis, (size, stride, out) in enumerate(zip(geometry.kernel, geometry.strides, geometry.out)):
        wider = xp.zeros((*spread.shape[: axis + 2], lengths[axis], *spread.shape[axis + 3 :]), spread.dtype)
        for start in range(size):
            wider[_along(axis, start, out, stride)] += spread
        spread = wider
    return _finish(op, xp, crop(xp, spread, extents, geometry), x)
