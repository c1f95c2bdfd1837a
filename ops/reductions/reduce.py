"""Sums and means over all elements, over axes, or to another tensor's shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from netbuilder.ops.core.broadcasting import Broadcasting, placed_shape, start_axis, sum_to
from netbuilder.ops.core.contexts import GradientContext, PlanContext, Prepared, RunContext
from netbuilder.ops.core.operator import BatchMean, InBatch, Operator, TensorSpec, require
from netbuilder.ops.core.registry import CPU, kernel, prepare, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "OverAxes",
    "ReduceMean",
    "ReduceMeanGradient",
    "ReduceProd",
    "ReduceProdGradient",
    "ReduceSum",
    "ReduceSumGradient",
    "Reduction",
    "ReductionGradient",
    "SumElements",
    "SumElementsGradient",
    "SumReduceLike",
    "SumSqrElements",
    "count_of",
    "wide_type",
]


def wide_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type to add elements in: float32 for float16."""
    return np.dtype(np.float32) if dtype == np.float16 else dtype


@register
@dataclass(frozen=True)
class SumElements(Operator):
    """Y = the sum of all elements of X, a scalar; with ``average`` their mean."""

    signature = "X (*S): float|int -> Y (): as X"
    in_batch = InBatch.LINEAR | InBatch.SUM
    flops_per_element = 1
    average: bool = False

    def batch_mean(self) -> BatchMean | None:
        return BatchMean("elements", (0,)) if self.average else None

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("SumElementsGradient", [g.input("X"), g.d_output("Y")], [g.d_input("X")])]


@kernel(SumElements)
def sum_elements(op: SumElements, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    total = x.sum(dtype=wide_type(x.dtype))
    if op.average and x.size:
        total = total / total.dtype.type(x.size)
    return (total.astype(x.dtype),)


@prepare(SumElements, device=CPU)
def _prepare_sum_elements(op: SumElements, ctx: PlanContext, x: TensorSpec) -> Prepared | None:
    if x.dtype not in (np.float32, np.float64):
        return None
    share = x.dtype.type(1 / max(x.size, 1))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        y = outputs[0]
        total = partial(np.add.reduce, inputs[0].reshape(-1), 0, None, y)
        if not op.average:
            return total

        def run() -> None:
            total()
            np.multiply(y, share, y)

        return run

    return Prepared((x.plain,), op.infer(x.plain), bind, name="numpy.add.reduce")


@register
@dataclass(frozen=True)
class SumElementsGradient(Operator):
    """dX = dY in every element; with ``average`` divided by the number of elements."""

    signature = "X, dY -> dX"
    average: bool = False


@kernel(SumElementsGradient)
def sum_elements_gradient(op: SumElementsGradient, ctx: RunContext, x: Any, dy: Any) -> tuple[Any, ...]:
    share = dy.reshape(()).astype(x.dtype, copy=False)
    if op.average and x.size:
        share = share / x.dtype.type(x.size)
    return (ctx.xp.broadcast_to(share, x.shape).copy(),)


@register
@dataclass(frozen=True)
class SumSqrElements(Operator):
    """Y = the sum of the squares of all elements of X, a scalar; with ``average`` their mean. No gradient."""

    signature = "X (*S): float -> Y (): as X"
    in_batch = InBatch.SUM
    flops_per_element = 2
    average: bool = False

    def batch_mean(self) -> BatchMean | None:
        return BatchMean("elements", (0,)) if self.average else None


@kernel(SumSqrElements)
def sum_sqr_elements(op: SumSqrElements, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    flat = x.reshape(-1).astype(wide_type(x.dtype), copy=False)
    total = ctx.xp.vdot(flat, flat)
    if op.average and x.size:
        total = total / total.dtype.type(x.size)
    return (total.astype(x.dtype),)


@register
@dataclass(frozen=True)
class SumReduceLike(Broadcasting):
    """Y = A summed to the shape of B, which is a part of A's shape as in Add with ``broadcast``. No gradient."""

    signature = "A (...): float, B (*S): as A -> Y: as B"
    flops_per_element = 1

    def check(self) -> None:
        start_axis(self.type, self.axis, self.axis_str, self.order, (), ())

    def view(self, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
        if math.prod(b) == 1:
            return ()
        return placed_shape(self, a, b, start_axis(self.type, self.axis, self.axis_str, self.order, a, b))

    def check_inputs(self, a: TensorSpec, b: TensorSpec) -> None:
        self.joined(a, b)


@kernel(SumReduceLike)
def sum_reduce_like(op: SumReduceLike, ctx: RunContext, a: Any, b: Any) -> tuple[Any, ...]:
    return (sum_to(a, op.view(a.shape, b.shape), b.shape),)


@dataclass(frozen=True)
class OverAxes(Operator):
    """Arguments of operators that reduce some axes of X."""

    axes: tuple[int, ...] = ()
    keepdims: bool = True

    def reduced_axes(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the axes to reduce as ascending non-negative numbers; all if ``axes`` is empty."""
        n = len(shape)
        for axis in self.axes:
            require(-n <= axis < n, self, f"axes must lie in [{-n}, {n}) for X of shape {shape}, got {self.axes}")
        return tuple(sorted({axis % n for axis in self.axes})) if self.axes else tuple(range(n))

    def keepdims_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the result if the reduced axes are kept with extent 1."""
        over = self.reduced_axes(shape)
        return tuple(1 if i in over else n for i, n in enumerate(shape))


@dataclass(frozen=True)
class Reduction(OverAxes):
    """Base of reductions of X over axes; ``<type>Gradient`` reads dY, X and Y."""

    signature = "X (...): float -> Y (...): as X"
    flops_per_element = 1
    kinds: ClassVar[str] = "fi"

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        numbers = "signed" if "i" in self.kinds else "floating-point"
        require(x.dtype.kind in self.kinds, self, f"needs {numbers} numbers, got {x.dtype}")
        over = self.reduced_axes(x.shape)
        if self.keepdims:
            return (x.with_shape(self.keepdims_shape(x.shape)),)
        return (x.with_shape([n for i, n in enumerate(x.shape) if i not in over]),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.d_output("Y"), g.input("X"), g.output("Y")]
        return [make_op(self.type + "Gradient", inputs, [g.d_input("X")])]


@dataclass(frozen=True)
class ReductionGradient(OverAxes):
    """Base of the gradients of reductions."""

    signature = "dY, X, Y -> dX"

    def check_inputs(self, dy: TensorSpec, x: TensorSpec, y: TensorSpec) -> None:
        require(dy.size == y.size, self, f"dY {dy.shape} and Y {y.shape} must have the same number of elements")
        size = math.prod(self.keepdims_shape(x.shape))
        require(y.size == size, self, f"Y {y.shape} is not the reduced shape of X {x.shape}")


@register
@dataclass(frozen=True)
class ReduceSum(Reduction):
    """Y = the sum of X over ``axes``, by default all; with ``keepdims`` reduced axes keep extent 1."""

    signature = "X (...): float|int32|int64 -> Y (...): as X"
    in_batch = InBatch.LINEAR | InBatch.SUM


@kernel(ReduceSum)
def reduce_sum(op: ReduceSum, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    total = ctx.xp.sum(x, axis=op.reduced_axes(x.shape), dtype=wide_type(x.dtype), keepdims=op.keepdims)
    return (total.astype(x.dtype),)


@register
@dataclass(frozen=True)
class ReduceSumGradient(ReductionGradient):
    """dX = dY, repeated over the reduced axes."""


@kernel(ReduceSumGradient)
def reduce_sum_gradient(op: ReduceSumGradient, ctx: RunContext, dy: Any, x: Any, y: Any) -> tuple[Any, ...]:
    return (ctx.xp.broadcast_to(dy.reshape(op.keepdims_shape(x.shape)), x.shape).copy(),)


@register
@dataclass(frozen=True)
class ReduceProd(Reduction):
    """Y = the product of X over ``axes``, by default all; with ``keepdims`` reduced axes keep extent 1."""

    signature = "X (...): float|int32|int64 -> Y (...): as X"


@kernel(ReduceProd)
def reduce_prod(op: ReduceProd, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    made = ctx.xp.prod(x, axis=op.reduced_axes(x.shape), dtype=wide_type(x.dtype), keepdims=op.keepdims)
    return (made.astype(x.dtype),)


@register
@dataclass(frozen=True)
class ReduceProdGradient(ReductionGradient):
    """dX = dY times the product of the other elements that were multiplied, also where some are 0."""


@kernel(ReduceProdGradient)
def reduce_prod_gradient(op: ReduceProdGradient, ctx: RunContext, dy: Any, x: Any, y: Any) -> tuple[Any, ...]:
    over, xp = op.reduced_axes(x.shape), ctx.xp
    zeros = (x == 0).sum(axis=over, keepdims=True)
    rest = xp.prod(xp.where(x == 0, x.dtype.type(1), x), axis=over, keepdims=True)  # of those that are not 0
    others = xp.where(x == 0, xp.where(zeros == 1, rest, 0), xp.where(zeros == 0, rest / xp.where(x == 0, 1, x), 0))
    return ((dy.reshape(op.keepdims_shape(x.shape)) * others).astype(x.dtype, copy=False),)


@register
@dataclass(frozen=True)
class ReduceMean(Reduction):
    """Y = the mean of X over ``axes``, by default all; with ``keepdims`` reduced axes keep extent 1."""

    in_batch = InBatch.LINEAR

    kinds = "f"

    def batch_mean(self) -> BatchMean:
        return BatchMean("elements", (0,), axes=self.axes)


def count_of(op: OverAxes, shape: tuple[int, ...]) -> int:
    """Return the number of elements per mean, at least 1."""
    return max(math.prod(shape[i] for i in op.reduced_axes(shape)), 1)


@kernel(ReduceMean)
def reduce_mean(op: ReduceMean, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    total = ctx.xp.sum(x, axis=op.reduced_axes(x.shape), dtype=wide_type(x.dtype), keepdims=op.keepdims)
    return ((total / total.dtype.type(count_of(op, x.shape))).astype(x.dtype),)


@register
@dataclass(frozen=True)
class ReduceMeanGradient(ReductionGradient):
    """dX = dY / number of elements of a mean, repeated over the reduced axes."""


@kernel(ReduceMeanGradient)
def reduce_mean_gradient(op: ReduceMeanGradient, ctx: RunContext, dy: Any, x: Any, y: Any) -> tuple[Any, ...]:
    share = dy.reshape(op.keepdims_shape(x.shape)) / dy.dtype.type(count_of(op, x.shape))
    return (ctx.xp.broadcast_to(share, x.shape).copy(),)
