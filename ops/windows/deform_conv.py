"""DeformConv: convolution with an offset for each element of each window; and its gradient."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.conv_geometry import Geometry, WindowArguments
from netbuilder.ops.core.half import require_one_float_type
from netbuilder.ops.core.indexing import add_rows
from netbuilder.ops.core.operator import TensorSpec, require, spec_of
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.windows.conv_windows import batch_parts
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["DeformConv", "DeformConvGradient"]

Array = Any


@dataclass(frozen=True)
class _Arguments(WindowArguments):
    group: int = 1
    deformable_group: int = 1
    no_bias: bool = False

    def check(self) -> None:
        super().check()
        if self.order != "NCHW":
            raise ArgumentError(f"{self.type}: order must be NCHW, got {self.order!r}; put NHWC2NCHW before it")
        if min(self.group, self.deformable_group) < 1:
            raise ArgumentError(
                f"{self.type}: group and deformable_group must be 1 or more, got {self.group}, {self.deformable_group}"
            )

    def geometry(self, x: TensorSpec, offset: TensorSpec, filters: TensorSpec) -> tuple[Geometry, tuple[int, ...]]:
        """Return the geometry of the windows, and the shape of the result.

        Raises:
            ShapeError: the inputs and the arguments do not match.
        """
        require_one_float_type(self, X=x, offset=offset, filter=filters)
        require(x.ndim == 4, self, f"X must be (N, C, H, W), got shape {x.shape}")
        geometry, channels = self.slide(x, self.per_axis("kernel", 2), self.group), x.shape[1]
        groups = (self.group, self.deformable_group)
        require(
            all(channels % g == 0 for g in groups),
            self,
            f"{channels} channels are not divisible by the groups {groups}",
        )
        count = filters.shape[0] if filters.ndim == 4 else 0
        expected = (count, channels // self.group, *geometry.kernel)
        fits = filters.shape == expected and count % self.group == 0
        require(
            fits, self, f"filter must have shape (M, {expected[1:]}), M divisible by {self.group}, got {filters.shape}"
        )
        shape = (x.shape[0], 2 * self.deformable_group * math.prod(geometry.kernel), *geometry.out)
        require(offset.shape == shape, self, f"offset must have shape {shape}, got {offset.shape}")
        return geometry, (x.shape[0], count, *geometry.out)


@register
@dataclass(frozen=True)
class DeformConv(_Arguments):
    """Y = the convolution of X, where each element of each window is sampled at its position plus an offset.

    offset is (N, 2 * ``deformable_group`` * kernel, P, Q): for each group of channels of X and each element of the
    window, row by row, the offsets down and to the right, in pixels. Samples between pixels are interpolated
    bilinearly, those outside of [0, H) x [0, W) are 0. The other arguments are those of Conv.

    Source: Dai et al., "Deformable Convolutional Networks", 2017, arXiv:1703.06211, section 2.1.
    """

    signature = """
        X (N, C, H, W): float
        offset (N, D, P, Q): as X
        filter (M, R, K, L): as X, R = C / group
        bias? (M): as X
        -> Y (N, M, P, Q): as X
    """

    def check(self) -> None:
        super().check()
        if self.no_bias and self.n_in > 3:
            raise ArgumentError(f"DeformConv: with no_bias it has three inputs, got {self.n_in}")

    def infer(
        self, x: TensorSpec, offset: TensorSpec, filters: TensorSpec, bias: TensorSpec | None = None
    ) -> tuple[TensorSpec, ...]:
        _, shape = self.geometry(x, offset, filters)
        if bias is not None:
            require_one_float_type(self, X=x, bias=bias)
            require(bias.shape == shape[1:2], self, f"bias must have shape {shape[1:2]}, got {bias.shape}")
        return (x.with_shape(shape),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("X"), g.input("offset"), g.input("filter"), g.d_output("Y")]
        extra: dict[str, Any] = {}
        outputs = [g.d_input("offset"), g.d_input("filter")]
        if len(g.op.input) > 3:
            outputs.append(g.d_input("bias"))
        else:
            extra["no_bias"] = 1
        return [make_op("DeformConvGradient", inputs, [*outputs, g.d_input("X")], **extra)]

    def flops(self, x: TensorSpec, offset: TensorSpec, filters: TensorSpec, bias: TensorSpec | None = None) -> int:
        return _flops(x, offset, filters)


@register
@dataclass(frozen=True)
class DeformConvGradient(_Arguments):
    """The gradients of DeformConv: of offset, of filter, of bias unless ``no_bias``, and of X."""

    signature = "X, offset, filter, dY -> d_offset, d_filter, d_bias_or_dX?, dX?"

    def check(self) -> None:
        super().check()
        if self.no_bias and self.n_out > 3:
            raise ArgumentError(f"DeformConvGradient: with no_bias it has at most three outputs, got {self.n_out}")

    def infer(self, x: TensorSpec, offset: TensorSpec, filters: TensorSpec, dy: TensorSpec) -> tuple[TensorSpec, ...]:
        _, shape = self.geometry(x, offset, filters)
        require_one_float_type(self, X=x, dY=dy)
        require(dy.shape == shape, self, f"dY must have shape {shape}, got {dy.shape}")
        bias = () if self.no_bias else (x.with_shape(shape[1:2]),)
        return (offset.plain, filters.plain, *bias, x.plain)[: self.n_out]

    def flops(self, x: TensorSpec, offset: TensorSpec, filters: TensorSpec, dy: TensorSpec) -> int:
        return 3 * _flops(x, offset, filters)


def _flops(x: TensorSpec, offset: TensorSpec, filters: TensorSpec) -> int:
    positions = x.shape[0] * math.prod(offset.shape[2:])
    return positions * (2 * filters.size + 8 * x.shape[1] * math.prod(filters.shape[2:]))


class _Corner(NamedTuple):
    """One of the four pixels around each sample; arrays of shape (N, parts, kernel * positions, 1)."""

    rows: Array  # the row of the pixel in the table of X
    weight: Array  # the bilinear weight of the pixel
    by_y: Array  # derivatives of the weight with respect to the offsets down and to the right
    by_x: Array


def _corners(op: _Arguments, xp: Any, offset: Array, geometry: Geometry, extents: tuple[int, int]) -> list[_Corner]:
    """Return the four corners, each for all samples."""
    (height, width), parts, like = extents, op.deformable_group, offset.dtype.type
    moves = offset.reshape(len(offset), parts, math.prod(geometry.kernel), 2, math.prod(geometry.out))
    at = []
    for axis in range(2):
        windows = xp.arange(geometry.out[axis]) * geometry.strides[axis] - geometry.begin[axis]
        elements = xp.arange(geometry.kernel[axis]) * geometry.dilations[axis]
        both = elements[:, None] + windows
        grid = both[:, None, :, None] if axis == 0 else both[None, :, None, :]
        grid = xp.broadcast_to(grid, (*geometry.kernel, *geometry.out)).reshape(moves.shape[2], moves.shape[4])
        at.append((grid.astype(offset.dtype) + moves[:, :, :, axis]).reshape(len(offset), parts, -1, 1))
    ys, xs = at
    seen = ((ys >= 0) & (ys < height) & (xs >= 0) & (xs < width)).astype(offset.dtype)
    ys, xs = xp.clip(ys, like(0), like(height - 1)), xp.clip(xs, like(0), like(width - 1))
    top, left = xp.floor(ys), xp.floor(xs)
    down, right = ys - top, xs - left
    i, j = top.astype(int), left.astype(int)
    first = xp.arange(len(offset) * parts).reshape(len(offset), parts, 1, 1) * (height * width)
    rows = ((i, 1 - down, -seen), (xp.minimum(i + 1, height - 1), down, seen))
    columns = ((j, 1 - right, -seen), (xp.minimum(j + 1, width - 1), right, seen))
    return [_Corner(first + a * width + b, seen * p * q, dp * q, p * dq) for a, p, dp in rows for b, q, dq in columns]


def _table(op: _Arguments, xp: Any, x: Array) -> Array:
    """Return images as a table of pixels, with a row of channels for each part, (N * parts * H * W, C / parts)."""
    n, channels, height, width = x.shape
    by_part = x.reshape(n, op.deformable_group, channels // op.deformable_group, height * width)
    return xp.ascontiguousarray(by_part.swapaxes(2, 3)).reshape(-1, channels // op.deformable_group)


def _columns(op: _Arguments, xp: Any, samples: Array, kernel: int) -> Array:
    """Return samples, (N, parts, kernel * positions, C / parts), as (N, groups, C / groups * kernel, positions)."""
    n, _, count, _ = samples.shape
    turned = xp.ascontiguousarray(samples.swapaxes(2, 3))
    return turned.reshape(n, op.group, -1, count // kernel)


@kernel(DeformConv)
def deform_conv(
    op: DeformConv, ctx: RunContext, x: Array, offset: Array, filters: Array, bias: Array = None
) -> tuple[Array, ...]:
    xp, (geometry, shape) = ctx.xp, op.geometry(*map(spec_of, (x, offset, filters)))
    matrices = filters.reshape(op.group, shape[1] // op.group, math.prod(filters.shape[1:]))
    y = xp.empty(shape, x.dtype)
    for part in batch_parts(x, 8 * offset[:1].size * x.shape[1] * x.dtype.itemsize):
        corners, table = _corners(op, xp, offset[part], geometry, x.shape[2:]), _table(op, xp, x[part])
        samples = sum(corner.weight * table[corner.rows[..., 0]] for corner in corners)
        products = xp.matmul(matrices, _columns(op, xp, samples, math.prod(geometry.kernel)))
        y[part] = products.reshape(-1, *shape[1:])
    if bias is not None:
        y += bias.reshape(-1, 1, 1)
    return (y,)


@kernel(DeformConvGradient)
def deform_conv_gradient(
    op: DeformConvGradient, ctx: RunContext, x: Array, offset: Array, filters: Array, dy: Array
) -> tuple[Array, ...]:
    xp, (geometry, shape) = ctx.xp, op.geometry(*map(spec_of, (x, offset, filters)))
    kernel_size, positions = math.prod(geometry.kernel), math.prod(geometry.out)
    matrices = filters.reshape(op.group, shape[1] // op.group, math.prod(filters.shape[1:]))
    d_offset, d_filters, dx = (xp.zeros(a.shape, a.dtype) for a in (offset, matrices, x))
    for part in batch_parts(x, 16 * offset[:1].size * x.shape[1] * x.dtype.itemsize):
        corners, table = _corners(op, xp, offset[part], geometry, x.shape[2:]), _table(op, xp, x[part])
        seen = [table[corner.rows[..., 0]] for corner in corners]
        d_rows = dy[part].reshape(-1, op.group, shape[1] // op.group, positions)
        samples = sum(corner.weight * values for corner, values in zip(corners, seen))
        d_filters += xp.matmul(d_rows, _columns(op, xp, samples, kernel_size).swapaxes(2, 3)).sum(axis=0)
        d_columns = xp.matmul(matrices.swapaxes(1, 2), d_rows)
        d_samples = d_columns.reshape(len(d_rows), op.deformable_group, -1, kernel_size * positions).swapaxes(2, 3)
        moves = [
            sum((d_samples * getattr(corner, by) * values).sum(axis=3) for corner, values in zip(corners, seen))
            for by in ("by_y", "by_x")
        ]
        halves = [m.reshape(len(d_rows), op.deformable_group, kernel_size, 1, positions) for m in moves]
        d_offset[part] = xp.concatenate(halves, axis=3).reshape(-1, *offset.shape[1:])
        d_table = xp.zeros(table.shape, table.dtype)
        for corner in corners:
            add_rows(xp, d_table, corner.rows, corner.weight * d_samples, ctx.add_in_order)
        by_part = d_table.reshape(len(d_rows), op.deformable_group, -1, table.shape[1]).swapaxes(2, 3)
        dx[part] = by_part.reshape(-1, *x.shape[1:])
    bias = () if op.no_bias else (dy.sum(axis=(0, 2, 3)),)
    return (d_offset, d_filters.reshape(filters.shape), *bias, dx)
