"""Convolution over images with any number of axes, and its gradient."""

from __future__ import annotations

import functools
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
    accumulate,
    batch_parts,
    channels_first,
    column_matrices,
    from_channels_first,
)
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "Conv",
    "ConvArguments",
    "ConvBackward",
    "ConvForward",
    "ConvGradient",
    "add_bias",
    "correlate",
    "correlate_filter_gradient",
    "correlate_input_gradient",
    "ready",
    "sum_bias",
]


@dataclass(frozen=True)
class ConvArguments(WindowArguments):
    """The arguments and checks of convolutions and their gradients.

    With ``no_gradient_to_input`` the gradient operator has no output for X: the first layer of a net need not
    compute the gradient of the images.
    """

    group: int = 1
    no_bias: bool = False
    no_gradient_to_input: bool = False

    def check(self) -> None:
        super().check()
        if self.group < 1:
            raise ArgumentError(f"{self.type}: group must be at least 1, got {self.group}")

    def kernel_of(self, x: TensorSpec, w: TensorSpec) -> tuple[int, ...]:
        """Return the extents of the kernel, which are those of the filters W.

        Raises:
            ShapeError: X or W has the wrong number of axes, or the arguments give another kernel.
        """
        axes = self.image_axes(x)
        require(w.ndim == x.ndim, self, f"W must have the same number of axes as X, got X {x.shape} and W {w.shape}")
        kernel = image_extents(w.shape, self.order)
        given = tuple(self.per_axis("kernel", axes))
        require(
            not any(given) or given == kernel,
            self,
            f"the arguments give a kernel of {given}, but W {w.shape} in order {self.order} has one of {kernel}",
        )
        return kernel

    def geometry(self, x: TensorSpec, w: TensorSpec) -> Geometry:
        """Return the geometry of the windows for X and W of these shapes.

        Raises:
            ShapeError: X, W and the arguments do not match.
        """
        return _geometry(self, x, w)

    def channels_out(self, w: TensorSpec) -> int:
        """Return the channels of Y."""
        return w.shape[0]

    def y_shape(self, x: TensorSpec, w: TensorSpec) -> tuple[int, ...]:
        """Return the shape of Y.

        Raises:
            ShapeError: X, W and the arguments do not match.
        """
        out = self.geometry(x, w).out  # first: it checks W, which channels_out reads
        return image_shape(self.order, x.shape[0], self.channels_out(w), out)

    def products(self, x: TensorSpec, w: TensorSpec) -> int:
        """Return the number of multiplications of the convolution."""
        return x.shape[0] * math.prod(self.geometry(x, w).out) * w.size


@functools.lru_cache(1024)  # asked a dozen times while a net is planned
def _geometry(op: ConvArguments, x: TensorSpec, w: TensorSpec) -> Geometry:
    kernel = op.kernel_of(x, w)
    channels, per_group = x.shape[channel_axis(op.order, x.ndim)], w.shape[channel_axis(op.order, w.ndim)]
    taken, other = per_group * op.group, "NHWC" if op.order == "NCHW" else "NCHW"
    swapped = x.shape[channel_axis(other, x.ndim)] == taken
    hint = f"; if X is in order {other}, give order={other!r} where the layer is built, or transpose X"
    require(
        channels == taken,
        op,
        f"X {x.shape} in order {op.order} has {channels} channels, W {w.shape} takes {taken}"
        f"{f', {per_group} in each of {op.group} groups' if op.group > 1 else ''}{hint if swapped else ''}",
    )
    require(
        w.shape[0] % op.group == 0,
        op,
        f"W must have a number of filters divisible by {op.group}, the number of groups, got W {w.shape}",
    )
    return op.slide(x, kernel, op.group)


@dataclass(frozen=True)
class ConvForward(ConvArguments):
    """Base of convolution and transposed convolution."""

    signature = """
        X (N, C, *S) if NCHW else (N, *S, C): float
        W (M, D, *K) if NCHW else (M, *K, D): as X, D = C / group
        b? (M): as X
        -> Y (N, M, *T) if NCHW else (N, *T, M): as X
    """

    def infer(self, x: TensorSpec, w: TensorSpec, b: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        require_one_float_type(self, X=x, W=w, b=b)
        y = x.with_shape(self.y_shape(x, w))
        if b is not None:
            m = self.channels_out(w)
            require(b.shape == (m,), self, f"b must have shape ({m},), one number per channel of Y, got {b.shape}")
        return (y,)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("X"), g.input("W"), g.d_output("Y")]
        outputs = [g.d_input("W")]
        arguments: dict[str, Any] = {}
        if self.n_in == 3:
            outputs.append(g.d_input("b"))
        else:
            arguments["no_bias"] = 1
        if not self.no_gradient_to_input:
            outputs.append(g.d_input("X"))
        return [make_op(self.type + "Gradient", inputs, outputs, **arguments)]

    def flops(self, x: TensorSpec, w: TensorSpec, b: TensorSpec | None = None) -> int:
        return 2 * self.products(x, w) + (0 if b is None else math.prod(self.y_shape(x, w)))


@dataclass(frozen=True)
class ConvBackward(ConvArguments):
    """Base of the gradients of convolution and of transposed convolution."""

    signature = "X, W, dY -> dW, db_or_dX?, dX?"

    def infer(self, x: TensorSpec, w: TensorSpec, dy: TensorSpec) -> tuple[TensorSpec, ...]:
        require_one_float_type(self, X=x, W=w, dY=dy)
        shape = self.y_shape(x, w)
        require(dy.shape == shape, self, f"dY must have the shape of Y, {shape}, got {dy.shape}")
        results = (w.plain, x.plain) if self.no_bias else (w.plain, w.with_shape((self.channels_out(w),)), x.plain)
        require(self.n_out <= len(results), self, f"with no_bias=1 the outputs are dW and dX, got {self.n_out}")
        return results[: self.n_out]

    @property
    def computes_dx(self) -> bool:
        """Whether the gradient of X is one of the outputs."""
        return self.n_out == (2 if self.no_bias else 3)

    @property
    def computes_db(self) -> bool:
        """Whether the gradient of the bias is one of the outputs."""
        return not self.no_bias and self.n_out >= 2

    def flops(self, x: TensorSpec, w: TensorSpec, dy: TensorSpec) -> int:
        passes = 2 if self.computes_dx else 1
        return 2 * passes * self.products(x, w) + (dy.size if self.computes_db else 0)


@register
@dataclass(frozen=True)
class Conv(ConvForward):
    """Y[n, m, p] = b[m] + sum over c, k of W[m, c, k] * X[n, c, p * stride + k * dilation - pad].

    In order NCHW, X is (N, C, H, W) and the filter W (M, C / group, kH, kW); in order NHWC they are (N, H, W, C) and
    (M, kH, kW, C / group). Images may have one or more axes.
    """

    in_batch = InBatch.ROW_BY_ROW


@register
@dataclass(frozen=True)
class ConvGradient(ConvBackward):
    """Gradients of Conv: of the filter, of the bias unless ``no_bias``, and of X if it is an output."""


def _bytes_per_image(geometry: Geometry, channels: int, small: Sequence[int], dtype: Any) -> int:
    return channels * math.prod(geometry.kernel) * math.prod(small) * dtype.itemsize


def correlate(xp: Any, x: Any, w: Any, geometry: Geometry, small: Sequence[int]) -> Any:
    """Return the cross-correlation of images and filters, (N, M, *small).

    Args:
        x: images (N, C, *extents).
        w: filters (M, C / groups, *kernel).
        small: the number of windows along each image axis.
    """
    n, groups, m = x.shape[0], geometry.groups, w.shape[0]
    filters = w.reshape(groups, m // groups, math.prod(w.shape[1:]))
    y = xp.empty((n, groups, m // groups, math.prod(small)), x.dtype)
    for part in batch_parts(x, _bytes_per_image(geometry, x.shape[1], small, x.dtype)):
        xp.matmul(filters, column_matrices(xp, x[part], geometry, small), out=y[part])
    return y.reshape(n, m, *small)


def correlate_input_gradient(xp: Any, dy: Any, w: Any, geometry: Geometry, extents: Sequence[int]) -> Any:
    """Return the gradient of ``correlate`` with respect to its images, (N, C, *extents).

    Args:
        dy: (N, M, *small).
        w: filters (M, C / groups, *kernel).
    """
    n, groups, m, small = dy.shape[0], geometry.groups, w.shape[0], dy.shape[2:]
    filters = w.reshape(groups, m // groups, math.prod(w.shape[1:])).swapaxes(1, 2)
    rows = dy.reshape(n, groups, m // groups, math.prod(small))
    channels = w.shape[1] * groups
    dx = xp.empty((n, channels, *extents), dy.dtype)
    for part in batch_parts(dy, _bytes_per_image(geometry, channels, small, dy.dtype)):
        dx[part] = accumulate(xp, xp.matmul(filters, rows[part]), extents, geometry, small)
    return dx


def correlate_filter_gradient(xp: Any, x: Any, dy: Any, geometry: Geometry) -> Any:
    """Return the gradient of ``correlate`` with respect to its filters, (M, C / groups, *kernel)."""
    n, groups, m, small = dy.shape[0], geometry.groups, dy.shape[1], dy.shape[2:]
    dw: Any = 0
    for part in batch_parts(x, _bytes_per_image(geometry, x.shape[1], small, x.dtype)):
        columns = column_matrices(xp, x[part], geometry, small)
        rows = dy[part].reshape(columns.shape[0], groups, m // groups, -1)
        # One product per group instead of one per image: the positions of all images form one long axis.
        long_columns = columns.transpose(1, 2, 0, 3).reshape(groups, columns.shape[2], -1)
        long_rows = rows.transpose(1, 2, 0, 3).reshape(groups, m // groups, -1)
        dw = dw + xp.matmul(long_rows, long_columns.swapaxes(1, 2))
    if n == 0:
        dw = xp.zeros((m, x.shape[1] // groups * math.prod(geometry.kernel)), x.dtype)
    return dw.reshape(m, x.shape[1] // groups, *geometry.kernel)


def add_bias(y: Any, b: Any) -> Any:
    """Add one number per channel to channels-first images, in place."""
    y += b.reshape(-1, *(1,) * (y.ndim - 2))
    return y


def sum_bias(dy: Any) -> Any:
    """Return the sum of each channel of channels-first images."""
    return dy.sum(axis=(0, *range(2, dy.ndim)))


def ready(op: ConvArguments, xp: Any, *arrays: Any) -> list[Any]:
    """Return images and filters channels-first, float16 as float32."""
    return [channels_first(xp, widen(a), op.order) for a in arrays]


@kernel(Conv)
def conv(op: Conv, ctx: RunContext, x: Any, w: Any, b: Any = None) -> tuple[Any, ...]:
    xp, geometry = ctx.xp, op.geometry(spec_of(x), spec_of(w))
    images, filters = ready(op, xp, x, w)
    y = correlate(xp, images, filters, geometry, geometry.out)
    if b is not None:
        add_bias(y, b)
    return (from_channels_first(xp, narrow(y, x), op.order),)


@kernel(ConvGradient)
def conv_gradient(op: ConvGradient, ctx: RunContext, x: Any, w: Any, dy: Any) -> tuple[Any, ...]:
    xp, geometry = ctx.xp, op.geometry(spec_of(x), spec_of(w))
    images, filters, d_images = ready(op, xp, x, w, dy)
    dw = correlate_filter_gradient(xp, images, d_images, geometry)
    results = [from_channels_first(xp, narrow(dw, w), op.order)]
    if op.computes_db:
        results.append(narrow(sum_bias(d_images), w))
    if op.computes_dx:
        dx = correlate_input_gradient(xp, d_images, filters, geometry, images.shape[2:])
        results.append(from_channels_first(xp, narrow(dx, x), op.order))
    return tuple(results)
