"""Sums, means and maxima over the first or the last axes: ReduceFrontSum and its kin, with their gradients."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.half import widen
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, OperatorDef, ShapeError
from netbuilder.proto.arguments import make_op

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


@operator_class(frozen=True)
class _End(Operator):
    """Reduces ``num_reduce_dim`` axes at one end; with ``lengths``, of each line the first so many elements."""

    front: ClassVar[bool] = True
    kinds: ClassVar[str] = "fi"
    least: ClassVar[int] = 0  # elements of a line
    num_reduce_dim: int = 1

    def check(self) -> None:
        if self.num_reduce_dim < 0:
            raise ArgumentError(f"{self.type}: num_reduce_dim must not be negative, got {self.num_reduce_dim}")

    def split(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        """Return the axes that stay, and how many elements each result is of."""
        n = self.num_reduce_dim
        require(n <= len(shape), self, f"num_reduce_dim must be at most {len(shape)} for X of shape {shape}, got {n}")
        cut = n if self.front else len(shape) - n
        gone, stay = (shape[:cut], shape[cut:]) if self.front else (shape[cut:], shape[:cut])
        return stay, math.prod(gone)

    def check_input(self, x: TensorSpec, lengths: TensorSpec | None) -> tuple[int, ...]:
        """Return the shape of Y; raise ShapeError if X or the lengths do not fit."""
        require(x.dtype.kind in self.kinds, self, f"cannot reduce elements of type {x.dtype}")
        stay, count = self.split(x.shape)
        require(count >= self.least, self, f"X of shape {x.shape} has no elements to choose from")
        if lengths is not None:
            require(lengths.dtype.kind in "iu", self, f"lengths must be integers (int32), got {lengths.dtype}")
            require(
                lengths.size == math.prod(stay),
                self,
                f"lengths must have one number per element of Y, {math.prod(stay)} in all, got shape {lengths.shape}",
            )
        return stay

    def matrix(self, x: Any) -> Any:
        """Return X as a matrix; the axis ``along`` is reduced."""
        stay, count = self.split(tuple(x.shape))
        return x.reshape((count, math.prod(stay)) if self.front else (math.prod(stay), count))

    @property
    def along(self) -> int:
        return 0 if self.front else 1

    def counted(self, ctx: RunContext, lengths: Any, count: int) -> tuple[Any, Any]:
        """Return which elements of the matrix count, and how many of each line.

        Raises:
            ShapeError: a length is out of range.
        """
        flat = lengths.reshape(-1)
        if flat.size and not (int(flat.min()) >= self.least and int(flat.max()) <= count):
            raise ShapeError(
                f"{self.type}: lengths must lie in [{self.least}, {count}], the elements of X that a result is of; "
                f"got {int(flat.min())} to {int(flat.max())}"
            )
        positions = ctx.xp.arange(count)
        return (positions[:, None] < flat, flat) if self.front else (positions < flat[:, None], flat)


@operator_class(frozen=True)
class _Reduce(_End):
    """Base of reductions of the first or the last ``num_reduce_dim`` axes.

    Inputs:
        X (*A, *B): float|int32|int64
        lengths? (*L): int32|int64, how many elements of each row or column count
    Outputs:
        Y (*A) or (*B): as X
    """

    inputs = ("X", "lengths?")
    outputs = ("Y",)
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

    def flops(self, x: TensorSpec, lengths: TensorSpec | None = None) -> int:
        return x.size


@operator_class(frozen=True)
class _ReduceGradient(_End):
    inputs: ClassVar[tuple[str, ...]] = ("dY", "X", "lengths?")
    outputs = ("dX",)
    takes_shape: ClassVar[bool] = True

    def is_shape(self, x: Any, dy: Any) -> bool:
        """Whether the second input is not X but its shape: a vector of int64, while the gradient is float."""
        return self.takes_shape and x.dtype == np.int64 and len(x.shape) == 1 and dy.dtype.kind == "f"

    def static_for(self, *inputs: TensorSpec) -> bool:
        return inputs[1].known is not None or not self.is_shape(inputs[1], inputs[0])

    def infer(self, dy: TensorSpec, x: TensorSpec, lengths: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        if self.is_shape(x, dy):
            if x.known is None:
                raise ShapeError(f"{self.type}: with a shape as second input, that of dX is known when the net runs")
            x = TensorSpec(x.known, dy.dtype)
        stay = self.check_input(x, lengths)
        require(dy.size == math.prod(stay), self, f"dY must have the shape of Y, {stay}, got {dy.shape}")
        return (x.plain,)


@register
@operator_class(frozen=True)
class ReduceFrontSum(_Reduce):
    """Y = the sum over the first ``num_reduce_dim`` axes; with ``lengths``, of the first so many elements each."""


@register
@operator_class(frozen=True)
class ReduceBackSum(_Reduce):
    """Y = the sum over the last ``num_reduce_dim`` axes; with ``lengths``, of the first so many elements each."""

    front = False


@register
@operator_class(frozen=True)
class ReduceFrontMean(_Reduce):
    """Y = the mean over the first ``num_reduce_dim`` axes; with ``lengths``, of the first so many elements each.

    The mean of nothing is 0; that of integers is truncated.
    """


@register
@operator_class(frozen=True)
class ReduceBackMean(_Reduce):
    """Y = the mean over the last ``num_reduce_dim`` axes; with ``lengths``, of the first so many elements each.

    The mean of nothing is 0; that of integers is truncated.
    """

    front = False


@register
@operator_class(frozen=True)
class ReduceFrontMax(_Reduce):
    """Y = the greatest along the first ``num_reduce_dim`` axes; with ``lengths``, of the first so many elements.

    Inputs:
        X (*A, *B): float
        lengths? (*B): int32|int64, how many elements of each column count
    Outputs:
        Y (*B): as X
    """

    kinds, least, reads_y = "f", 1, True


@register
@operator_class(frozen=True)
class ReduceBackMax(_Reduce):
    """Y = the greatest along the last ``num_reduce_dim`` axes; with ``lengths``, of the first so many elements.

    Inputs:
        X (*A, *B): float
        lengths? (*A): int32|int64, how many elements of each row count
    Outputs:
        Y (*A): as X
    """

    front = False
    kinds, least, reads_y = "f", 1, True


@register
@operator_class(frozen=True)
class ReduceFrontSumGradient(_ReduceGradient):
    """dX = dY, repeated; 0 after ``lengths``. In place of X its shape may come, as a vector of int64."""


@register
@operator_class(frozen=True)
class ReduceBackSumGradient(_ReduceGradient):
    """dX = dY, repeated; 0 after ``lengths``. In place of X its shape may come, as a vector of int64."""

    front = False


@register
@operator_class(frozen=True)
class ReduceFrontMeanGradient(_ReduceGradient):
    """dX = dY / the number of elements of the mean; 0 after ``lengths``. X may be given by its shape, int64."""


@register
@operator_class(frozen=True)
class ReduceBackMeanGradient(_ReduceGradient):
    """dX = dY / the number of elements of the mean; 0 after ``lengths``. X may be given by its shape, int64."""

    front = False


@operator_class(frozen=True)
class _MaxGradient(_ReduceGradient):
    inputs = ("dY", "X", "Y", "lengths?")
    takes_shape = False
    kinds, least = "f", 1

    def infer(  # reads Y, too
        self, dy: TensorSpec, x: TensorSpec, y: TensorSpec, lengths: TensorSpec | None = None
    ) -> tuple[TensorSpec, ...]:
        stay = self.check_input(x, lengths)
        require(y.size == math.prod(stay), self, f"Y must have shape {stay} for X of shape {x.shape}, got {y.shape}")
        return super().infer(dy, x, lengths)


@register
@operator_class(frozen=True)
class ReduceFrontMaxGradient(_MaxGradient):
    """dX = dY where X is the greatest, of tied elements each, else 0."""


@register
@operator_class(frozen=True)
class ReduceBackMaxGradient(_MaxGradient):
    """dX = dY where X is the greatest, of tied elements each, else 0."""

    front = False


def _sum(op: Any, ctx: RunContext, x: Any, lengths: Any = None) -> tuple[Any, ...]:
    mean = isinstance(op, (ReduceFrontMean, ReduceBackMean))
    rows = op.matrix(x)
    count = rows.shape[op.along]
    values, sizes = widen(rows), max(count, 1)
    if lengths is not None:
        counts, sizes = op.counted(ctx, lengths, count)
        values = ctx.xp.where(counts, values, values.dtype.type(0))
        sizes = ctx.xp.maximum(sizes, 1).astype(values.dtype)
    total = ctx.xp.asarray(values.sum(axis=op.along, dtype=values.dtype))
    if mean:
        total = total / sizes if x.dtype.kind == "i" else total / (values.dtype.type(1) * sizes)
    return (total.astype(x.dtype, copy=False).reshape(op.split(x.shape)[0]),)


def _sum_gradient(op: Any, ctx: RunContext, dy: Any, x: Any, lengths: Any = None) -> tuple[Any, ...]:
    xp = ctx.xp
    whole, dtype = (tuple(ctx.host(x).tolist()), dy.dtype) if op.is_shape(x, dy) else (x.shape, x.dtype)
    stay, count = op.split(whole)
    require(dy.size == math.prod(stay), op, f"dY must have the shape of Y, {stay}, got {dy.shape}")
    shape = (count, math.prod(stay)) if op.front else (math.prod(stay), count)
    slopes = widen(dy).reshape(-1)
    mean = isinstance(op, (ReduceFrontMeanGradient, ReduceBackMeanGradient))
    counts, sizes = (True, max(count, 1)) if lengths is None else op.counted(ctx, lengths, count)
    if mean:
        slopes = slopes / slopes.dtype.type(sizes) if lengths is None else slopes / xp.maximum(sizes, 1)
    laid = slopes[None, :] if op.front else slopes[:, None]
    dx = xp.broadcast_to(laid, shape) if lengths is None else xp.where(counts, laid, laid.dtype.type(0))
    return (dx.astype(dtype).reshape(whole),)


def _max(op: Any, ctx: RunContext, x: Any, lengths: Any = None) -> tuple[Any, ...]:
    rows = op.matrix(x)
    if lengths is not None:
        counts, _ = op.counted(ctx, lengths, rows.shape[op.along])
        rows = ctx.xp.where(counts, rows, rows.dtype.type(-math.inf))
    return (ctx.xp.asarray(rows.max(axis=op.along)).reshape(op.split(x.shape)[0]),)


def _max_gradient(op: Any, ctx: RunContext, dy: Any, x: Any, y: Any, lengths: Any = None) -> tuple[Any, ...]:
    rows = op.matrix(x)
    line = (1, -1) if op.front else (-1, 1)
    hits = rows == y.reshape(line)
    if lengths is not None:
        hits = hits & op.counted(ctx, lengths, rows.shape[op.along])[0]
    return ((dy.reshape(line) * hits).reshape(x.shape),)


_KERNELS: dict[Any, tuple[type[Operator], ...]] = {
    _sum: (ReduceFrontSum, ReduceBackSum, ReduceFrontMean, ReduceBackMean),
    _sum_gradient: (ReduceFrontSumGradient, ReduceBackSumGradient, ReduceFrontMeanGradient, ReduceBackMeanGradient),
    _max: (ReduceFrontMax, ReduceBackMax),
    _max_gradient: (ReduceFrontMaxGradient, ReduceBackMaxGradient),
}
for _function, _classes in _KERNELS.items():
    for _class in _classes:
        kernel(_class)(_function)
