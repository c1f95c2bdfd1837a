"""LC, a locally connected layer: convolution with different filters at each position; and its gradient."""

from __future__ import annotations

import math
from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.conv_geometry import FixedAxes, Geometry, WindowArguments
from netbuilder.ops.core.half import narrow, require_one_float_type, widen
from netbuilder.ops.core.image_order import image_extents, image_shape
from netbuilder.ops.core.operator import TensorSpec, require, spec_of
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.windows.conv_windows import accumulate, channels_first, column_matrices, from_channels_first
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["LC", "LC1D", "LC2D", "LC3D", "LC1DGradient", "LC2DGradient", "LC3DGradient", "LCGradient"]


@dataclass(frozen=True)
class _Arguments(WindowArguments):
    group: int = 1
    no_bias: bool = False

    def check(self) -> None:
        super().check()
        if self.group < 1 or (self.group > 1 and self.order != "NCHW"):
            raise ArgumentError(
                f"{self.type}: group must be 1 or, with order NCHW, more, got {self.group} with order {self.order}"
            )

    def geometry(self, x: TensorSpec, filters: TensorSpec) -> tuple[Geometry, tuple[int, ...]]:
        """Return the geometry of the windows, and the shape of the result.

        Raises:
            ShapeError: X, the filters and the arguments do not match.
        """
        require_one_float_type(self, X=x, filter=filters)
        axes = self.image_axes(x)
        geometry = self.slide(x, self.per_axis("kernel", axes), self.group)
        channels = x.shape[1] if self.order == "NCHW" else x.shape[-1]
        require(
            channels % self.group == 0, self, f"the {channels} channels of X must be divisible by group {self.group}"
        )
        fits = filters.ndim == 2 * axes + 2 and filters.shape[axes] % self.group == 0
        count = filters.shape[axes] if fits else 1
        expected = (*geometry.out, *image_shape(self.order, count, channels // self.group, geometry.kernel))
        text = f"filter must have shape {expected[:axes] + ('M',) + expected[axes + 1 :]}, M divisible by {self.group}"
        require(fits and filters.shape == expected, self, f"{text}, for X of shape {x.shape}, got {filters.shape}")
        return geometry, image_shape(self.order, x.shape[0], count, geometry.out)


@dataclass(frozen=True)
class _Forward(_Arguments):
    def check(self) -> None:
        super().check()
        if self.no_bias and self.n_in > 2:
            raise ArgumentError(f"{self.type}: with no_bias it has two inputs, got {self.n_in}")

    def infer(self, x: TensorSpec, filters: TensorSpec, bias: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        geometry, shape = self.geometry(x, filters)
        if bias is not None:
            require_one_float_type(self, X=x, bias=bias)
            expected = (*geometry.out, filters.shape[len(geometry.out)])
            require(bias.shape == expected, self, f"bias must have shape {expected}, got {bias.shape}")
        return (x.with_shape(shape),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("X"), g.input("filter"), g.d_output("Y")]
        extra: dict[str, Any] = {}
        outputs = [g.d_input("filter")]
        if len(g.op.input) > 2:
            outputs.append(g.d_input("bias"))
        else:
            extra["no_bias"] = 1
        return [make_op(self.type + "Gradient", inputs, [*outputs, g.d_input("X")], **extra)]

    def flops(self, x: TensorSpec, filters: TensorSpec, bias: TensorSpec | None = None) -> int:
        return 2 * x.shape[0] * filters.size


@dataclass(frozen=True)
class _Backward(_Arguments):
    def check(self) -> None:
        super().check()
        if self.no_bias and self.n_out > 2:
            raise ArgumentError(f"{self.type}: with no_bias it has at most two outputs, got {self.n_out}")

    def infer(self, x: TensorSpec, filters: TensorSpec, dy: TensorSpec) -> tuple[TensorSpec, ...]:
        geometry, shape = self.geometry(x, filters)
        require_one_float_type(self, X=x, dY=dy)
        require(dy.shape == shape, self, f"dY must have shape {shape}, got {dy.shape}")
        bias = x.with_shape((*geometry.out, filters.shape[len(geometry.out)]))
        results = (filters.plain, x.plain) if self.no_bias else (filters.plain, bias, x.plain)
        return results[: self.n_out]

    def flops(self, x: TensorSpec, filters: TensorSpec, dy: TensorSpec) -> int:
        return 2 * x.shape[0] * filters.size * max(1, self.n_out - (not self.no_bias))


_INPUTS, _OUTPUTS = ("X", "filter", "bias?"), ("Y",)
_GRADIENT_INPUTS, _GRADIENT_OUTPUTS = ("X", "filter", "dY"), ("d_filter", "d_bias_or_dX?", "dX?")


@register
@dataclass(frozen=True)
class LC(_Forward):
    """Y = the convolution of X with different filters and biases at each position.

    The shape of the filters is the image extents of Y followed by the shape of Conv's filters, (*extents, M, C,
    *kernel) or, for NHWC, (*extents, M, *kernel, C); that of the bias is (*extents, M). Windows are those of Conv.

    Source: Taigman et al., "DeepFace: Closing the Gap to Human-Level Performance in Face Verification", 2014.
    """

    signature = """
        X (N, C, *S) if NCHW else (N, *S, C): float
        filter (*T, M, D, *K) or (*T, M, *K, D): as X, D = C / group
        bias? (*T, M): as X
        -> Y (N, M, *T) if NCHW else (N, *T, M): as X
    """
    inputs, outputs = _INPUTS, _OUTPUTS


@register
@dataclass(frozen=True)
class LCGradient(_Backward):
    """The gradients of LC: of the filters, of the bias unless ``no_bias``, and of X."""

    signature = "X, filter, dY -> d_filter, d_bias_or_dX?, dX?"
    inputs, outputs = _GRADIENT_INPUTS, _GRADIENT_OUTPUTS


@register
@dataclass(frozen=True)
class LC1D(FixedAxes, LC):
    """LC of images with one axis."""

    axes = 1


@register
@dataclass(frozen=True)
class LC2D(FixedAxes, LC):
    """LC of images with two axes."""

    axes = 2


@register
@dataclass(frozen=True)
class LC3D(FixedAxes, LC):
    """LC of images with three axes."""

    axes = 3


@register
@dataclass(frozen=True)
class LC1DGradient(FixedAxes, LCGradient):
    """The gradients of LC1D."""

    axes = 1


@register
@dataclass(frozen=True)
class LC2DGradient(FixedAxes, LCGradient):
    """The gradients of LC2D."""

    axes = 2


@register
@dataclass(frozen=True)
class LC3DGradient(FixedAxes, LCGradient):
    """The gradients of LC3D."""

    axes = 3


def _filters_by_position(op: _Arguments, xp: Any, filters: Any, geometry: Geometry) -> Any:
    """Return filters as matrices, (positions, groups, M / groups, C / groups * kernel)."""
    axes = len(geometry.out)
    if op.order == "NHWC":
        filters = xp.moveaxis(filters, -1, axes + 1)
    positions, count = math.prod(geometry.out), filters.shape[axes] // op.group
    return filters.reshape(positions, op.group, count, math.prod(filters.shape[axes + 1 :]))


def _windows_by_position(op: _Arguments, xp: Any, x: Any, geometry: Geometry) -> Any:
    """Return windows as matrices, (positions, groups, C / groups * kernel, N)."""
    columns = column_matrices(xp, channels_first(xp, x, op.order), geometry, geometry.out)
    return columns.transpose(3, 1, 2, 0)


def _results_by_position(op: _Arguments, xp: Any, y: Any, geometry: Geometry) -> Any:
    """Return results, (N, M, *extents), as matrices (positions, groups, M / groups, N)."""
    images = channels_first(xp, y, op.order)
    count = images.shape[1] // op.group
    return images.reshape(len(images), op.group, count, math.prod(geometry.out)).transpose(3, 1, 2, 0)


@kernel(LC)
@kernel(LC1D)
@kernel(LC2D)
@kernel(LC3D)
def lc(op: LC, ctx: RunContext, x: Any, filters: Any, bias: Any = None) -> tuple[Any, ...]:
    xp, (geometry, _) = ctx.xp, op.geometry(spec_of(x), spec_of(filters))
    rows = _filters_by_position(op, xp, widen(filters), geometry)
    products = xp.matmul(rows, _windows_by_position(op, xp, widen(x), geometry))
    if bias is not None:
        products = products + widen(bias).reshape(*rows.shape[:3], 1)
    images = products.transpose(3, 1, 2, 0).reshape(len(x), rows.shape[1] * rows.shape[2], *geometry.out)
    return (from_channels_first(xp, narrow(images, x), op.order),)


def _d_filters(op: LCGradient, xp: Any, x: Any, d_rows: Any, geometry: Geometry, shape: tuple[int, ...]) -> Any:
    """Return the gradient of the filters, in their shape."""
    d_filters = xp.matmul(d_rows, _windows_by_position(op, xp, x, geometry).swapaxes(2, 3))
    if op.order == "NCHW":
        return d_filters.reshape(shape)
    axes = len(geometry.out)
    channels_before_kernel = d_filters.reshape(*shape[: axes + 1], shape[-1], *geometry.kernel)
    return xp.ascontiguousarray(xp.moveaxis(channels_before_kernel, axes + 1, -1))


@kernel(LCGradient)
@kernel(LC1DGradient)
@kernel(LC2DGradient)
@kernel(LC3DGradient)
def lc_gradient(op: LCGradient, ctx: RunContext, x: Any, filters: Any, dy: Any) -> tuple[Any, ...]:
    xp, (geometry, _) = ctx.xp, op.geometry(spec_of(x), spec_of(filters))
    d_rows = _results_by_position(op, xp, widen(dy), geometry)
    results = [_d_filters(op, xp, widen(x), d_rows, geometry, filters.shape)]
    if not op.no_bias:
        results.append(d_rows.sum(axis=3).reshape(filters.shape[: len(geometry.out) + 1]))
    if op.n_out > len(results):
        rows = _filters_by_position(op, xp, widen(filters), geometry)
        columns = xp.ascontiguousarray(xp.matmul(rows.swapaxes(2, 3), d_rows).transpose(3, 1, 2, 0))
        dx = accumulate(xp, columns, image_extents(x.shape, op.order), geometry, geometry.out)
        results.append(from_channels_first(xp, dx, op.order))
    return tuple(narrow(a, x) for a in results)
