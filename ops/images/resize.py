"""Resizing of images: ResizeNearest, ResizeNearest3D and UpsampleBilinear, with their gradients.

The axes are resized one after the other. Pixels are gathered by index. The gradient of nearest resizing sums runs of
equal indices, in as many steps as the longest run has elements; that of bilinear resizing is a product of matrices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.given_numbers import check_extents
from netbuilder.ops.core.half import narrow, require_one_float_type, widen
from netbuilder.ops.core.image_order import check_order, image_extents, image_shape
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, OperatorDef, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "ResizeNearest",
    "ResizeNearest3D",
    "ResizeNearest3DGradient",
    "ResizeNearestGradient",
    "UpsampleBilinear",
    "UpsampleBilinearGradient",
]

Array = Any
Scales = tuple[float, ...]


def _scaled(extent: int, scale: float) -> int:
    """Return the extent of an axis after resizing, computed in float32 and rounded down."""
    exact = np.float32(extent) * np.float32(scale)
    return int(exact) if np.isfinite(exact) else 2**62


def _nearest(extent: int, out: int, scale: float) -> np.ndarray[Any, Any]:
    """Return the input pixel of each output pixel, in ascending order."""
    positions = (np.arange(out, dtype=np.float32) / np.float32(scale)).astype(np.int64)
    return np.minimum(positions, extent - 1)


def _between(extent: int, out: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return for each output pixel the two input pixels next to it, and its distance from the first.

    The first and the last pixels of input and output are aligned.
    """
    step = np.float32((extent - 1) / (out - 1)) if out > 1 else np.float32(0)
    exact = np.arange(out, dtype=np.float32) * step
    first = np.minimum(exact.astype(np.int64), extent - 1)
    return first, np.minimum(first + 1, extent - 1), exact - first.astype(np.float32)


def _interpolation_matrix(extent: int, out: int) -> np.ndarray[Any, Any]:
    """Return the matrix that resizes along one axis, (out, extent): the weight of each input pixel in each output."""
    first, second, weight = _between(extent, out)
    matrix, positions = np.zeros((out, extent), np.float32), np.arange(out)
    matrix[positions, second] = weight
    matrix[positions, first] += 1 - weight
    return matrix


def _along(values: Array, axis: int, ndim: int) -> Array:
    """Return a vector in the shape that broadcasts along ``axis``."""
    return values.reshape((-1,) + (1,) * (ndim - 1 - axis))


def _sum_runs(xp: Any, dy: Array, index: np.ndarray[Any, Any], extent: int, axis: int) -> Array:
    """Return the sums along ``axis`` of the elements with equal ``index``, which does not decrease; (extent) sums."""
    counts = np.bincount(index, minlength=extent)
    starts = np.cumsum(counts) - counts
    total: Array = 0
    for k in range(int(counts.max(initial=0))):
        taken = dy.take(xp.asarray(np.minimum(starts + k, index.size - 1)), axis=axis)
        if counts.min() <= k:
            taken *= _along(xp.asarray((counts > k).astype(dy.dtype)), axis, dy.ndim)
        total = taken if k == 0 else total + taken
    return total


@dataclass(frozen=True)
class _Resizing(Operator):
    """Base of resizing operators, with one scale per image axis."""

    scale_names: ClassVar[tuple[str, ...]] = ("height_scale", "width_scale")

    def check(self) -> None:
        for name in self.scale_names:
            if not getattr(self, name) > 0:
                raise ArgumentError(f"{self.type}: {name} must be positive, got {getattr(self, name)}")

    @property
    def scales(self) -> Scales:
        """The scales in the arguments, one number per image axis."""
        return tuple(getattr(self, name) for name in self.scale_names)

    @property
    def layout(self) -> str:
        return getattr(self, "order", "NCHW")

    def given_scales(self, ctx: RunContext, scales: Array | None) -> Scales:
        """Return the scales of a run: those of the input, if there is one, else those of the arguments."""
        if scales is None:
            return self.scales
        values = tuple(float(v) for v in ctx.host(scales).reshape(-1))
        count = len(self.scale_names)
        require(
            len(values) == count and min(values) > 0, self, f"scales must be {count} positive numbers, got {values}"
        )
        return values

    def output_shape(self, shape: Sequence[int], scales: Scales) -> tuple[int, ...]:
        """Return the shape of images of ``shape`` after resizing."""
        axes = len(self.scale_names)
        require(len(shape) == axes + 2, self, f"X must have {axes + 2} axes, got shape {tuple(shape)}")
        extents = [_scaled(n, s) for n, s in zip(image_extents(shape, self.layout), scales)]
        require(
            min(extents) >= 1,
            self,
            f"the resized extents must be 1 or more, got {tuple(extents)} for X {tuple(shape)} at scales {scales}",
        )
        channels = shape[1] if self.layout == "NCHW" else shape[-1]
        resized = image_shape(self.layout, shape[0], channels, extents)
        check_extents(f"{self.type}: at scales {scales} Y", resized, np.float32)
        check_extents(f"{self.type}: at scales {scales} the positions along an axis of Y", (max(extents),), np.int64)
        return resized

    def first_axis(self) -> int:
        return 2 if self.layout == "NCHW" else 1


@dataclass(frozen=True)
class _Plane(_Resizing):
    """The arguments of resizing in height and width."""

    width_scale: float = 1.0
    height_scale: float = 1.0
    order: str = "NCHW"

    def check(self) -> None:
        super().check()
        check_order(self, self.order)


@dataclass(frozen=True)
class _PlaneChannelsFirst(_Plane):
    def check(self) -> None:
        super().check()
        if self.order != "NCHW":
            raise ArgumentError(f"{self.type}: order must be NCHW, got {self.order!r}; put NHWC2NCHW before")


@dataclass(frozen=True)
class _Volume(_Resizing):
    """The arguments of resizing in time, height and width."""

    scale_names = ("temporal_scale", "height_scale", "width_scale")
    temporal_scale: float = 1.0
    height_scale: float = 1.0
    width_scale: float = 1.0


@dataclass(frozen=True)
class _Forward(_Resizing):
    signature = "X, scales? -> Y"
    inputs_on_host = (1,)

    def with_arity(self, n_in: int, n_out: int) -> Any:
        object.__setattr__(self, "dynamic", n_in > 1)
        return super().with_arity(n_in, n_out)

    def infer(self, x: TensorSpec, scales: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        require_one_float_type(self, X=x)
        if scales is not None:
            raise ShapeError(f"{self.type}: with scales as an input the shape is known only when the net runs")
        return (x.with_shape(self.output_shape(x.shape, self.scales)),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        given = [g.input(i) for i in range(1, len(g.op.input))]
        return [make_op(f"{self.type}Gradient", [g.d_output("Y"), g.input("X"), *given], [g.d_input("X")])]


@dataclass(frozen=True)
class _Backward(_Resizing):
    signature = "dY, X, scales? -> dX"
    flops_per_element = 1

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return ("here", "any", "host")[index]

    def check_inputs(self, dy: TensorSpec, x: TensorSpec, *scales: TensorSpec) -> None:
        if not scales:
            self.check_dy(dy.shape, x.shape, self.scales)

    def check_dy(self, dy: Sequence[int], x: Sequence[int], scales: Scales) -> None:
        shape = self.output_shape(x, scales)
        require(tuple(dy) == shape, self, f"dY must have shape {shape} for X of shape {tuple(x)}, got {tuple(dy)}")


@dataclass(frozen=True)
class _Nearest(_Forward):
    def pixels(self, shape: Sequence[int]) -> np.ndarray[Any, Any]:
        """Return the pixel of each pixel of Y, by its place in the images of an X of a shape, int32, in Y's order."""
        axes = range(self.first_axis(), self.first_axis() + len(self.scales))
        resized = self.output_shape(shape, self.scales)
        chosen = [_nearest(shape[axis], resized[axis], scale) for axis, scale in zip(axes, self.scales)]
        places = np.ravel_multi_index(np.ix_(*chosen), [shape[axis] for axis in axes])
        return places.astype(np.int32).reshape(-1)


@register
@dataclass(frozen=True)
class ResizeNearest(_Nearest, _Plane):
    """Y = the images X with height and width scaled; each pixel is the nearest one of X above and to the left.

    The second input may give the two scales, for height and width.
    """

    signature = """
        X (N, C, H, W) if NCHW else (N, H, W, C): float
        scales? (2): float32
        -> Y (N, C, P, Q) if NCHW else (N, P, Q, C): as X
    """
    flops_per_element = 0


@register
@dataclass(frozen=True)
class ResizeNearestGradient(_Backward, _Plane):
    """dX = the sum of dY over the copies of each pixel of X."""


@register
@dataclass(frozen=True)
class ResizeNearest3D(_Nearest, _Volume):
    """Y = the volumes X with their last three extents scaled, as by ResizeNearest."""

    signature = "X (N, C, T, H, W): float -> Y (N, C, R, P, Q): as X"
    flops_per_element = 0


@register
@dataclass(frozen=True)
class ResizeNearest3DGradient(_Backward, _Volume):
    """dX = the sum of dY over the copies of each pixel of X."""

    signature = "dY, X -> dX"


def _resize_nearest(op: _Forward, ctx: RunContext, x: Array, scales: Array = None) -> tuple[Array, ...]:
    factors = op.given_scales(ctx, scales)
    shape = op.output_shape(x.shape, factors)
    for axis, scale in reversed(list(enumerate(factors, op.first_axis()))):
        if shape[axis] != x.shape[axis] or scale != 1:
            x = x.take(ctx.xp.asarray(_nearest(x.shape[axis], shape[axis], scale)), axis=axis)
    return (x,)


def _resize_nearest_gradient(
    op: _Backward, ctx: RunContext, dy: Array, x: Array, scales: Array = None
) -> tuple[Array, ...]:
    factors = op.given_scales(ctx, scales)
    op.check_dy(dy.shape, x.shape, factors)
    sums = widen(dy)
    for axis, scale in enumerate(factors, op.first_axis()):
        sums = _sum_runs(ctx.xp, sums, _nearest(x.shape[axis], dy.shape[axis], scale), x.shape[axis], axis)
    return (narrow(sums, dy),)


for _cls in (ResizeNearest, ResizeNearest3D):
    kernel(_cls)(_resize_nearest)
for _gradient in (ResizeNearestGradient, ResizeNearest3DGradient):
    kernel(_gradient)(_resize_nearest_gradient)


@register
@dataclass(frozen=True)
class UpsampleBilinear(_Forward, _PlaneChannelsFirst):
    """Y = the images X with height and width scaled, by bilinear interpolation.

    The corner pixels of X and Y are aligned. The second input may give the two scales, for height and width.
    """

    signature = "X (N, C, H, W): float, scales? (2): float32 -> Y (N, C, P, Q): as X"

    def flops(self, *inputs: TensorSpec) -> int:
        return 6 * math.prod(self.output_shape(inputs[0].shape, self.scales)) if len(inputs) == 1 else 0


@register
@dataclass(frozen=True)
class UpsampleBilinearGradient(_Backward, _PlaneChannelsFirst):
    """dX = each pixel of dY added to the pixels of X that it was interpolated from, by their weights."""

    flops_per_element = 8


@kernel(UpsampleBilinear)
def upsample_bilinear(op: UpsampleBilinear, ctx: RunContext, x: Array, scales: Array = None) -> tuple[Array, ...]:
    xp = ctx.xp
    shape = op.output_shape(x.shape, op.given_scales(ctx, scales))
    y = widen(x)
    for axis in (3, 2):
        first, second, weight = _between(x.shape[axis], shape[axis])
        start, end = y.take(xp.asarray(first), axis=axis), y.take(xp.asarray(second), axis=axis)
        end -= start
        end *= _along(xp.asarray(weight.astype(y.dtype)), axis, 4)
        end += start
        y = end
    return (narrow(y, x),)


@kernel(UpsampleBilinearGradient)
def upsample_bilinear_gradient(
    op: UpsampleBilinearGradient, ctx: RunContext, dy: Array, x: Array, scales: Array = None
) -> tuple[Array, ...]:
    xp = ctx.xp
    op.check_dy(dy.shape, x.shape, op.given_scales(ctx, scales))
    wide = widen(dy)
    down, across = (
        xp.asarray(_interpolation_matrix(n, out).astype(wide.dtype)) for n, out in zip(x.shape[2:], dy.shape[2:])
    )
    return (narrow(xp.matmul(xp.matmul(down.T, wide), across), dy),)
