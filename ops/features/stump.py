"""Decision stumps: two values, or two lists of positions, by a threshold: StumpFunc and StumpFuncIndex."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import Operator, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["StumpFunc", "StumpFuncIndex"]


@register
@dataclass(frozen=True)
class StumpFunc(Operator):
    """Y = ``low_value`` where X is at most ``threshold``, else (also for NaN) ``high_value``. No gradient."""

    signature = "X (*S): float -> Y (*S): as X"
    threshold: float = 0.0
    low_value: float = 0.0
    high_value: float = 0.0


@kernel(StumpFunc)
def stump(op: StumpFunc, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    number = x.dtype.type
    return (ctx.xp.where(x <= number(op.threshold), number(op.low_value), number(op.high_value)),)


@register
@dataclass(frozen=True)
class StumpFuncIndex(Operator):
    """Index_Low = the positions in the flattened X of elements of at most ``threshold``; Index_High = the others."""

    signature = "X (...): float -> Index_Low (M): int64, Index_High (K): int64"
    dynamic = True
    flops_per_element = 1
    threshold: float = 0.0


@kernel(StumpFuncIndex)
def stump_index(op: StumpFuncIndex, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    require(x.dtype.kind == "f", op, f"X must hold floating-point numbers, got {x.dtype}")
    low = x.reshape(-1) <= x.dtype.type(op.threshold)
    return tuple(ctx.xp.flatnonzero(side).astype(np.int64, copy=False) for side in (low, ~low))
