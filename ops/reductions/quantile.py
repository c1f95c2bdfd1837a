"""Quantile: a value that a given fraction of all elements does not exceed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Quantile"]


@register
@dataclass(frozen=True)
class Quantile(Operator):
    """A value that at least the fraction ``quantile`` of the elements of all inputs does not exceed. No gradient.

    With ``abs``, of their absolute values. The value is found by bisection between the smallest and the largest
    element, until exactly that fraction does not exceed it or the ends differ by at most ``tol`` times the sum of their
    absolute values. NaN is never counted, unless all elements are NaN.
    """

    signature = "X+ (...): one float -> quantile_value (1): as X"
    quantile: float = -1.0
    abs: bool = True
    tol: float = 1e-3

    def check(self) -> None:
        if not 0 <= self.quantile <= 1:
            raise ArgumentError(f"Quantile: input quantile should be in [0, 1], got {self.quantile}")
        if not self.tol > 0:
            raise ArgumentError(f"Quantile: tolerance tol must be positive, got {self.tol}")

    def check_inputs(self, *xs: TensorSpec) -> None:
        require(any(x.size for x in xs), self, "the inputs must have at least one element, got none")

    def flops(self, *xs: TensorSpec) -> int:
        return 20 * sum(x.size for x in xs)


@kernel(Quantile)
def quantile(op: Quantile, ctx: RunContext, *xs: Any) -> tuple[Any, ...]:
    xp = ctx.xp
    values = widen(xp.concatenate([x.reshape(-1) for x in xs]))
    values = xp.sort(abs(values) if op.abs else values)  # NaN goes to the end
    return (narrow(xp.asarray([_search(op, ctx, values)]), xs[0]),)


def _search(op: Quantile, ctx: RunContext, values: Any) -> Any:
    """Return the quantile of sorted values."""
    number = values.dtype.type
    valid = int((values == values).sum())  # those that are not NaN
    if not valid:
        return number("nan")
    low, high = (number(ctx.host(values[k])) for k in (0, valid - 1))
    target = math.ceil(np.float32(values.size) * np.float32(op.quantile))
    if target == 0:
        return low
    if target >= valid:
        return high

    def count(bound: Any) -> int:
        # CuPy's searchsorted refuses NumPy's scalars.
        return int(ctx.xp.searchsorted(values[:valid], ctx.xp.asarray(bound), side="right"))

    if count(low) >= target:
        return low
    while abs(high - low) > number(op.tol) * (abs(high) + abs(low)):
        middle = number(low + (high - low) / 2)
        if middle in (low, high):  # adjacent numbers: there is no other between them
            break
        below = count(middle)
        if below == target:
            return middle
        low, high = (low, middle) if below > target else (middle, high)
    return high
