"""DeformConv: convolution with an offset for each element of each window; and its gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

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
T = TypeVar("T")


@dataclass(frozen=True)
class _Arguments(WindowArguments):
    group: int = 1
    deformable_group: int = 1
    no_bias: bool = False
    padding_mode: str = "border"
    masked: bool = False

    def check(self) -> None:
        super().check()
        if self.order != "NCHW":
            raise ArgumentError(f"{self.type}: order must be NCHW, got {self.order!r}; put NHWC2NCHW before it")
        if min(self.group, self.deformable_group) < 1:
            raise ArgumentError(
                f"{self.type}: group and deformable_group must be 1 or more, got {self.group}, {self.deformable_group}"
            )
        if self.padding_mode not in ("border", "zeros"):
            raise ArgumentError(f"{self.type}: padding_mode must be border or zeros, got {self.padding_mode!r}")

    def geometry(
        self, x: TensorSpec, offset: TensorSpec, filters: TensorSpec, mask: TensorSpec | None = None
    ) -> tuple[Geometry, tuple[int, ...]]:
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
        if mask is not None:
            require_one_float_type(self, X=x, mask=mask)
            shape = (shape[0], shape[1] // 2, *shape[2:])
            require(mask.shape == shape, self, f"mask must have shape {shape}, got {mask.shape}")
        return geometry, (x.shape[0], count, *geometry.out)


@register
@dataclass(frozen=True)
class DeformConv(_Arguments):
    """Y = the convolution of X, where each element of each window is sampled at its position plus an offset.

    offset is (N, 2 * ``deformable_group`` * kernel, P, Q): for each group of channels of X and each element of the
    window, row by row, the offsets down and to the right, in pixels. Samples between pixels are interpolated
    bilinearly. With the ``padding_mode`` "border", Caffe2's, those outside of [0, H) x [0, W) are 0, and those between
    the last pixel and the border are that pixel; with "zeros", as in ONNX and torchvision, pixels around the image are
    0. With ``masked`` the last input, (N, ``deformable_group`` * kernel, P, Q), has a factor for each sample. The bias,
    (M,), is optional. The other arguments are those of Conv.

    Sources: Dai et al., "Deformable Convolutional Networks", 2017, arXiv:1703.06211, section 2.1; of masks Zhu et al.,
    "Deformable ConvNets v2", 2018, arXiv:1811.11168, section 3.2.
    """

    signature = """
        X (N, C, H, W): float
        offset (N, D, P, Q): as X
        filter (M, R, K, L): as X, R = C / group
        bias_or_mask? (M) or (N, E, P, Q): as X
        mask? (N, E, P, Q): as X
        -> Y (N, M, P, Q): as X
    """

    def check(self) -> None:
        super().check()
        least, most = 3 + self.masked, 4 + self.masked - self.no_bias
        if self.n_in and not least <= self.n_in <= most:
            counts = f"{least}" if least == most else f"{least} or {most}"
            raise ArgumentError(
                f"DeformConv: with no_bias={self.no_bias} and masked={self.masked} it has {counts} inputs, "
                f"got {self.n_in}"
            )

    def bias_and_mask(self, more: Sequence[T]) -> tuple[T | None, T | None]:
        """Return the bias and the mask, None for those that are not among the inputs after the filter."""
        mask = more[-1] if self.masked else None
        return (more[0] if len(more) > self.masked else None), mask

    def infer(
        self, x: TensorSpec, offset: TensorSpec, filters: TensorSpec, *more: TensorSpec
    ) -> tuple[TensorSpec, ...]:
        bias, mask = self.bias_and_mask(more)
        _, shape = self.geometry(x, offset, filters, mask)
        if bias is not None:
            require_one_float_type(self, X=x, bias=bias)
            require(bias.shape == shape[1:2], self, f"bias must have shape {shape[1:2]}, got {bias.shape}")
        return (x.with_shape(shape),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("X"), g.input("offset"), g.input("filter"), g.d_output("Y")]
        extra: dict[str, Any] = {}
        outputs = [g.d_input("offset"), g.d_input("filter")]
        if self.n_in > 3 + self.masked:
            outputs.append(g.d_input(3))
        else:
            extra["no_bias"] = 1
        outputs.append(g.d_input("X"))
        if self.masked:
            inputs.append(g.input(self.n_in - 1))
            outputs.append(g.d_input(self.n_in - 1))
        return [make_op("DeformConvGradient", inputs, outputs, **extra)]

    def flops(self, x: TensorSpec, offset: TensorSpec, filters: TensorSpec, *more: TensorSpec) -> int:
        return _flops(x, offset, filters)


@register
@dataclass(frozen=True)
class DeformConvGradient(_Arguments):
    """The gradients of DeformConv: of offset, of filter, of bias unless ``no_bias``, of X, and of the mask."""

    signature = "X, offset, filter, dY, mask? -> d_offset, d_filter, d_bias_or_dX?, dX_or_d_mask?, d_mask?"

    def check(self) -> None:
        super().check()
        most = 4 - self.no_bias + self.masked
        if self.n_out > most or self.n_in and self.n_in != 4 + self.masked:
            raise ArgumentError(
                f"DeformConvGradient: with no_bias={self.no_bias} and masked={self.masked} it has {4 + self.masked} "
                f"inputs and at most {most} outputs, got {self.n_in} and {self.n_out}"
            )

    def infer(
        self, x: TensorSpec, offset: TensorSpec, filters: TensorSpec, dy: TensorSpec, mask: TensorSpec | None = None
    ) -> tuple[TensorSpec, ...]:
        _, shape = self.geometry(x, offset, filters, mask)
        require_one_float_type(self, X=x, dY=dy)
        require(dy.shape == shape, self, f"dY must have shape {shape}, got {dy.shape}")
        bias = () if self.no_bias else (x.with_shape(shape[1:2]),)
        d_mask = () if mask is None else (mask.plain,)
        return (offset.plain, filters.plain, *bias, x.plain, *d_mask)[: self.n_out]

    def flops(self, x: TensorSpec, offset: TensorSpec, filters: TensorSpec, dy: TensorSpec, *mask: TensorSpec) -> int:
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


def _along(op: _Arguments, xp: Any, at: Array, extent: int) -> list[tuple[Array, Array, Array]]:
    """Return the two pixels around positions along an axis: their places, their weights, and the weights' slopes."""
    like = at.dtype.type
    if op.padding_mode == "border":
        inside = (at >= 0) & (at < extent)
        at = xp.clip(at, like(0), like(extent - 1))
        first = xp.floor(at).astype(int)
        seen = [inside.astype(at.dtype)] * 2
    else:
        at = xp.clip(at, like(-2), like(extent + 1))
        first = xp.floor(at).astype(int)
        seen = [((pixel >= 0) & (pixel < extent)).astype(at.dtype) for pixel in (first, first + 1)]
    part = at - xp.floor(at)
    pixels = [xp.clip(pixel, 0, extent - 1) for pixel in (first, first + 1)]
    return [(pixels[0], seen[0] * (1 - part), -seen[0]), (pixels[1], seen[1] * part, seen[1])]


def _corners(op: _Arguments, xp: Any, offset: Array, geometry: Geometry, extents: tuple[int, int]) -> list[_Corner]:
    """Return the four corners, each for all samples."""
    (height, width), parts = extents, op.deformable_group
    moves = offset.reshape(len(offset), parts, math.prod(geometry.kernel), 2, math.prod(geometry.out))
    at = []
    for axis in range(2):
        windows = xp.arange(geometry.out[axis]) * geometry.strides[axis] - geometry.begin[axis]
        elements = xp.arange(geometry.kernel[axis]) * geometry.dilations[axis]
        both = elements[:, None] + windows
        grid = both[:, None, :, None] if axis == 0 else both[None, :, None, :]
        grid = xp.broadcast_to(grid, (*geometry.kernel, *geometry.out)).reshape(moves.shape[2], moves.shape[4])
        at.append((grid.astype(offset.dtype) + moves[:, :, :, axis]).reshape(len(offset), parts, -1, 1))
    rows, columns = (_along(op, xp, each, extent) for each, extent in zip(at, extents))
    first = xp.arange(len(offset) * parts).reshape(len(offset), parts, 1, 1) * (height * width)
    return [_Corner(first + a * width + b, p * q, dp * q, p * dq) for a, p, dp in rows for b, q, dq in columns]


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


def _factors(op: _Arguments, mask: Array) -> Array:
    """Return a mask as (N, parts, kernel * positions, 1)."""
    return mask.reshape(len(mask), op.deformable_group, -1, 1)


@kernel(DeformConv)
def deform_conv(
    op: DeformConv, ctx: RunContext, x: Array, offset: Array, filters: Array, *more: Array
) -> tuple[Array, ...]:
    bias, mask = op.bias_and_mask(more)
    xp, (geometry, shape) = ctx.xp, op.geometry(*map(spec_of, (x, offset, filters)))
    matrices = filters.reshape(op.group, shape[1] // op.group, math.prod(filters.shape[1:]))
    y = xp.empty(shape, x.dtype)
    for part in batch_parts(x, 8 * offset[:1].size * x.shape[1] * x.dtype.itemsize):
        corners, table = _corners(op, xp, offset[part], geometry, x.shape[2:]), _table(op, xp, x[part])
        samples = sum(corner.weight * table[corner.rows[..., 0]] for corner in corners)
        if mask is not None:
            samples *= _factors(op, mask[part])
        products = xp.matmul(matrices, _columns(op, xp, samples, math.prod(geometry.kernel)))
        y[part] = products.reshape(-1, *shape[1:])
    if bias is not None:
        y += bias.reshape(-1, 1, 1)
    return (y,)


@kernel(DeformConvGradient)
def deform_conv_gradient(
    op: DeformConvGradient, ctx: RunContext, x: Array, offset: Array, filters: Array, dy: Array, mask: Array = None
) -> tuple[Array, ...]:
    xp, (geometry, shape) = ctx.xp, op.geometry(*map(spec_of, (x, offset, filters)))
    kernel_size, positions = math.prod(geometry.kernel), math.prod(geometry.out)
    matrices = filters.reshape(op.group, shape[1] // op.group, math.prod(filters.shape[1:]))
    d_offset, d_filters, dx = (xp.zeros(a.shape, a.dtype) for a in (offset, matrices, x))
    d_mask: tuple[Array, ...] = () if mask is None else (xp.empty(mask.shape, mask.dtype),)
    for part in batch_parts(x, 16 * offset[:1].size * x.shape[1] * x.dtype.itemsize):
        corners, table = _corners(op, xp, offset[part], geometry, x.shape[2:]), _table(op, xp, x[part])
        seen = [table[corner.rows[..., 0]] for corner in corners]
        d_rows = dy[part].reshape(-1, op.group, shape[1] // op.group, positions)
        samples = unmasked = sum(corner.weight * values for corner, values in zip(corners, seen))
        if mask is not None:
            samples = unmasked * _factors(op, mask[part])
        d_filters += xp.matmul(d_rows, _columns(op, xp, samples, kernel_size).swapaxes(2, 3)).sum(axis=0)
        d_columns = xp.matmul(matrices.swapaxes(1, 2), d_rows)
        d_samples = d_columns.reshape(len(d_rows), op.deformable_group, -1, kernel_size * positions).swapaxes(2, 3)
        if mask is not None:
            d_mask[0][part] = (d_samples * unmasked).sum(axis=3).reshape(mask[part].shape)
            d_samples = d_samples * _factors(op, mask[part])
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
    return (d_offset, d_filters.reshape(filters.shape), *bias, dx, *d_mask)
