"""Sums, means and maxima over the first or the last axes: ReduceFrontSum and the like, with their gradients."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.given_numbers import check_extents
from netbuilder.ops.core.half import widen
from netbuilder.ops.core.operator import BatchMean, InBatch, Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, OperatorDef, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "ReduceBackMax",
    "ReduceBackMaxGradient",
    "ReduceBackMean",
    "ReduceBackMeanGradient",
    "ReduceBackSum",
    "ReduceBackSumGradient",
    "ReduceFrontMax",
    "ReduceFrontMaxGradient",
    "ReduceFrontMean",
    "ReduceFrontMeanGradient",
    "ReduceFrontSum",
    "ReduceFrontSumGradient",
]


@dataclass(frozen=True)
class _End(Operator):
    """Base: reduces the first or last ``num_reduce_dim`` axes; ``lengths`` limits the number of elements per result."""

    front: ClassVar[bool] = True
    kinds: ClassVar[str] = "fi"
    least: ClassVar[int] = 0  # the smallest number of elements per result
    num_reduce_dim: int = 1

    def check(self) -> None:
        if self.num_reduce_dim < 0:
            raise ArgumentError(f"{self.type}: num_reduce_dim must not be negative, got {self.num_reduce_dim}")

    def split(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        """Return the extents of the other axes, and the number of elements per result."""
        n = self.num_reduce_dim
        require(n <= len(shape), self, f"num_reduce_dim must be at most {len(shape)} for X of shape {shape}, got {n}")
        cut = n if self.front else len(shape) - n
        reduced, rest = (shape[:cut], shape[cut:]) if self.front else (shape[cut:], shape[:cut])
        return rest, math.prod(reduced)

    def check_input(self, x: TensorSpec, lengths: TensorSpec | None) -> tuple[int, ...]:
        """Return the shape of Y; raise ShapeError if X or the lengths do not fit."""
        require(x.dtype.kind in self.kinds, self, f"cannot reduce elements of type {x.dtype}")
        rest, count = self.split(x.shape)
        require(count >= self.least, self, f"X of shape {x.shape} has no elements to choose from")
        if lengths is not None:
            require(lengths.dtype.kind in "iu", self, f"lengths must be integers (int32), got {lengths.dtype}")
            require(
                lengths.size == math.prod(rest),
                self,
                f"lengths must have one number per element of Y, {math.prod(rest)} in all, got shape {lengths.shape}",
            )
        return rest

    def matrix(self, x: Any) -> Any:
        """Return X as a matrix of which the axis ``along`` is to be reduced."""
        rest, count = self.split(tuple(x.shape))
        return x.reshape((count, math.prod(rest)) if self.front else (math.prod(rest), count))

    @property
    def along(self) -> int:
        return 0 if self.front else 1

    def within_lengths(self, ctx: RunContext, lengths: Any, count: int) -> tuple[Any, Any]:
        """Return which elements of the matrix are within ``lengths``, and the lengths as a vector.

        Raises:
            ShapeError: a length is out of range.
        """
        flat = lengths.reshape(-1)
        if flat.size and not (int(flat.min()) >= self.least and int(flat.max()) <= count):
            raise ShapeError(
                f"{self.type}: lengths must lie in [{self.least}, {count}], up to the number of elements per result; "
                f"got {int(flat.min())} to {int(flat.max())}"
            )
        positions = ctx.xp.arange(count)
        return (positions[:, None] < flat, flat) if self.front else (positions < flat[:, None], flat)


@dataclass(frozen=True)
class _Reduce(_End):
    """Base of reductions of the first or the last ``num_reduce_dim`` axes."""

    signature = """
        X (*A, *B): float|int32|int64
        lengths? (*L): int32|int64, the number of elements used of each row or column
        -> Y (*A) or (*B): as X
    """
    flops_per_element = 1
    reads_y: ClassVar[bool] = False

    def infer(self, x: TensorSpec, lengths: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        return (x.with_shape(self.check_input(x, lengths)),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.d_output("Y"), g.input("X")]
        if self.reads_y:
            inputs.append(g.output("Y"))
        if self.n_in > 1:
            inputs.append(g.input("lengths"))
        return [make_op(self.type + "Gradient", inputs, [g.d_input("X")])]


@dataclass(frozen=True)
class _ReduceGradient(_End):
    signature = "dY, X, lengths? -> dX"
    takes_shape: ClassVar[bool] = True

    def is_shape(self, x: Any, dy: Any) -> bool:
        """Whether the second input is not X but the shape of X: a vector of int64, while dY is floating-point."""
        return self.takes_shape and x.dtype == np.int64 and len(x.shape) == 1 and dy.dtype.kind == "f"

    def static_for(self, *inputs: TensorSpec) -> bool:
        return inputs[1].known is not None or not self.is_shape(inputs[1], inputs[0])

    def infer(self, dy: TensorSpec, x: TensorSpec, *others: TensorSpec) -> tuple[TensorSpec, ...]:
        if self.is_shape(x, dy):
            if x.known is None:
                raise ShapeError(
                    f"{self.type}: with the shape as second input, it is known only when the net runs; give X instead"
                )
            x = TensorSpec(x.known, dy.dtype)
        given = dict(zip(type(self).inputs, (dy, x, *others)))
        rest = self.check_input(x, given.pop("lengths?", None))
        for name in given.keys() - {"X"}:
            size, shape = given[name].size, given[name].shape
            require(size == math.prod(rest), self, f"{name} must have shape {rest} for X {x.shape}, got {shape}")
        return (x.plain,)


@register
@dataclass(frozen=True)
class ReduceFrontSum(_Reduce):
    """Y = the sum over the first ``num_reduce_dim`` axes; with ``lengths``, of the first lengths[i] elements."""

    in_batch = InBatch.LINEAR


@register
@dataclass(frozen=True)
class ReduceBackSum(_Reduce):
    """Y = the sum over the last ``num_reduce_dim`` axes; with ``lengths``, of the first lengths[i] elements."""

    in_batch = InBatch.ROW_BY_ROW
    front = False


@register
@dataclass(frozen=True)
class ReduceFrontMean(_Reduce):
    """Y = the mean over the first ``num_reduce_dim`` axes; with ``lengths``, of the first lengths[i] elements.

    The mean of no elements is 0; a mean of integers is truncated.
    """

    in_batch = InBatch.LINEAR

    def batch_mean(self) -> BatchMean:
        if self.n_in > 1:
            return BatchMean("", (0, 1), by_values=True)
        return BatchMean("elements", (0,), axes=tuple(range(self.num_reduce_dim)))


@register
@dataclass(frozen=True)
class ReduceBackMean(_Reduce):
    """Y = the mean over the last ``num_reduce_dim`` axes; with ``lengths``, of the first lengths[i] elements.

    The mean of no elements is 0; a mean of integers is truncated.
    """

    in_batch = InBatch.ROW_BY_ROW
    front = False


@register
@dataclass(frozen=True)
class ReduceFrontMax(_Reduce):
    """Y = the maximum over the first ``num_reduce_dim`` axes; with ``lengths``, of the first lengths[i] elements."""

    signature = """
        X (*A, *B): float
        lengths? (*B): int32|int64, the number of elements used of each column
        -> Y (*B): as X
    """
    kinds, least, reads_y = "f", 1, True


@register
@dataclass(frozen=True)
class ReduceBackMax(_Reduce):
    """Y = the maximum over the last ``num_reduce_dim`` axes; with ``lengths``, of the first lengths[i] elements."""

    signature = """
        X (*A, *B): float
        lengths? (*A): int32|int64, the number of elements used of each row
        -> Y (*A): as X
    """
    front = False
    kinds, least, reads_y = "f", 1, True


@register
@dataclass(frozen=True)
class ReduceFrontSumGradient(_ReduceGradient):
    """dX = dY, broadcast; 0 beyond ``lengths``. X may be given by its shape, a vector of int64."""


@register
@dataclass(frozen=True)
class ReduceBackSumGradient(_ReduceGradient):
    """dX = dY, broadcast; 0 beyond ``lengths``. X may be given by its shape, a vector of int64."""

    front = False


@register
@dataclass(frozen=True)
class ReduceFrontMeanGradient(_ReduceGradient):
    """dX = dY / the number of elements per mean; 0 beyond ``lengths``. X may be given by its shape, int64."""


@register
@dataclass(frozen=True)
class ReduceBackMeanGradient(_ReduceGradient):
    """dX = dY / the number of elements per mean; 0 beyond ``lengths``. X may be given by its shape, int64."""

    front = False


@dataclass(frozen=True)
class _MaxGradient(_ReduceGradient):
    signature = "dY, X, Y, lengths? -> dX"
    takes_shape = False
    kinds, least = "f", 1


@register
@dataclass(frozen=True)
class ReduceFrontMaxGradient(_MaxGradient):
    """dX = dY where X is the maximum, at each of tied elements, else 0."""


@register
@dataclass(frozen=True)
class ReduceBackMaxGradient(_MaxGradient):
    """dX = dY where X is the maximum, at each of tied elements, else 0."""

    front = False


def _sum(op: Any, ctx: RunContext, x: Any, lengths: Any = None) -> tuple[Any, ...]:
    mean = isinstance(op, (ReduceFrontMean, ReduceBackMean))
    rows = op.matrix(x)
    count = rows.shape[op.along]
    values, sizes = widen(rows), max(count, 1)
    if lengths is not None:
        within, sizes = op.within_lengths(ctx, lengths, count)
        values = ctx.xp.where(within, values, values.dtype.type(0))
        sizes = ctx.xp.maximum(sizes, 1).astype(values.dtype)
    total = ctx.xp.asarray(values.sum(axis=op.along, dtype=values.dtype))
    if mean:
        total = total / sizes if x.dtype.kind == "i" else total / (values.dtype.type(1) * sizes)
    return (total.astype(x.dtype, copy=False).reshape(op.split(x.shape)[0]),)


def _sum_gradient(op: Any, ctx: RunContext, dy: Any, x: Any, lengths: Any = None) -> tuple[Any, ...]:
    xp = ctx.xp
    x_shape, dtype = (tuple(ctx.host(x).tolist()), dy.dtype) if op.is_shape(x, dy) else (x.shape, x.dtype)
    rest, count = op.split(x_shape)
    require(dy.size == math.prod(rest), op, f"dY must have the shape of Y, {rest}, got {dy.shape}")
    check_extents(f"{op.type}: dX", x_shape, dtype)
    shape = (count, math.prod(rest)) if op.front else (math.prod(rest), count)
    share = widen(dy).reshape(-1)
    mean = isinstance(op, (ReduceFrontMeanGradient, ReduceBackMeanGradient))
    within, sizes = (True, max(count, 1)) if lengths is None else op.within_lengths(ctx, lengths, count)
    if mean:
        share = share / share.dtype.type(sizes) if lengths is None else share / xp.maximum(sizes, 1)
    share = share[None, :] if op.front else share[:, None]
    dx = xp.broadcast_to(share, shape) if lengths is None else xp.where(within, share, share.dtype.type(0))
    return (dx.astype(dtype).reshape(x_shape),)


def _max(op: Any, ctx: RunContext, x: Any, lengths: Any = None) -> tuple[Any, ...]:
    rows = op.matrix(x)
    if lengths is not None:
        within, _ = op.within_lengths(ctx, lengths, rows.shape[op.along])
        rows = ctx.xp.where(within, rows, rows.dtype.type(-math.inf))
    return (ctx.xp.asarray(rows.max(axis=op.along)).reshape(op.split(x.shape)[0]),)


def _max_gradient(op: Any, ctx: RunContext, dy: Any, x: Any, y: Any, lengths: Any = None) -> tuple[Any, ...]:
    rows = op.matrix(x)
    shape = (1, -1) if op.front else (-1, 1)
    at_maximum = rows == y.reshape(shape)
    if lengths is not None:
        at_maximum = at_maximum & op.within_lengths(ctx, lengths, rows.shape[op.along])[0]
    return ((dy.reshape(shape) * at_maximum).reshape(x.shape),)


_KERNELS: dict[Any, tuple[type[Operator], ...]] = {
    _sum: (ReduceFrontSum, ReduceBackSum, ReduceFrontMean, ReduceBackMean),
    _sum_gradient: (ReduceFrontSumGradient, ReduceBackSumGradient, ReduceFrontMeanGradient, ReduceBackMeanGradient),
    _max: (ReduceFrontMax, ReduceBackMax),
    _max_gradient: (ReduceFrontMaxGradient, ReduceBackMaxGradient),
}
for _function, _classes in _KERNELS.items():
    for _class in _classes:
        kernel(_class)(_function)
