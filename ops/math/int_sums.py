"""Sums of integers: SumInt adds tensors, SumElementsInt the elements of one."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register

__all__ = ["SumElementsInt", "SumInt"]


@register
@operator_class(frozen=True)
class SumInt(Operator):
    """Y = the sum of tensors of the same shape and numeric type. No gradient."""

    signature = "X+ (*S): float|int -> Y (*S): as X"
    inplace = ((0, 0),)

    def infer(self, *xs: TensorSpec) -> tuple[TensorSpec, ...]:
        first = xs[0]
        require(first.dtype.kind in "fiu", self, f"needs numbers, got {first.dtype}")
        for i, x in enumerate(xs):
            require(
                (x.shape, x.dtype) == (first.shape, first.dtype),
                self,
                f"all inputs must have the shape and type of input 0, {first.shape} {first.dtype}; "
                f"input {i} has {x.shape} {x.dtype}",
            )
        return (first.plain,)

    def flops(self, *xs: TensorSpec) -> int:
        return (len(xs) - 1) * xs[0].size


@kernel(SumInt)
def sum_int(op: SumInt, ctx: RunContext, *xs: Any) -> tuple[Any, ...]:
    return (reduce(add, xs) if len(xs) > 1 else xs[0].copy(),)


@register
@operator_class(frozen=True)
class SumElementsInt(Operator):
    """Y = the sum of all elements of X, a scalar. No gradient."""

    signature = "X (*S): int -> Y (): as X"

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        require(x.dtype.kind in "iu", self, f"needs integers, got {x.dtype}")
        return (x.with_shape(()),)

    def flops(self, x: TensorSpec) -> int:
        return x.size


@kernel(SumElementsInt)
def sum_elements_int(op: SumElementsInt, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    return (ctx.xp.asarray(x.sum(dtype=x.dtype)),)
