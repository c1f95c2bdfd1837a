"""Sums of integers: SumInt adds tensors, SumElementsInt the elements of one."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import Operator, TensorSpec
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["SumElementsInt", "SumInt"]


@register
@dataclass(frozen=True)
class SumInt(Operator):
    """Y = the sum of tensors of the same shape and numeric type. No gradient."""

    signature = "X+ (*S): one float|int -> Y (*S): as X"
    inplace = ((0, 0),)

    def flops(self, *xs: TensorSpec) -> int:
        return (len(xs) - 1) * xs[0].size


@kernel(SumInt)
def sum_int(op: SumInt, ctx: RunContext, *xs: Any) -> tuple[Any, ...]:
    return (reduce(add, xs) if len(xs) > 1 else xs[0].copy(),)


@register
@dataclass(frozen=True)
class SumElementsInt(Operator):
    """Y = the sum of all elements of X, a scalar. No gradient."""

    signature = "X (*S): int -> Y (): as X"
    flops_per_element = 1


@kernel(SumElementsInt)
def sum_elements_int(op: SumElementsInt, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    return (ctx.xp.asarray(x.sum(dtype=x.dtype)),)
