"""Checks of values in a running net: Assert, EnforceFinite, NanCheck, IsNaN; and ReplaceNaN."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import NetError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Assert", "EnforceFinite", "IsNaN", "NanCheck", "ReplaceNaN"]

_UINT8 = np.dtype(np.uint8)


@register
@dataclass(frozen=True)
class Assert(Operator):
    """Fail with ``error_msg`` unless all elements of X, bools or integers, are true. No outputs."""

    signature = "X (...): int|bool ->"
    stateful = True
    effects = ""
    flops_per_element = 1
    error_msg: str = ""


@kernel(Assert)
def assert_(op: Assert, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    if x.size and not bool((x != 0).all()):
        position = int((x.reshape(-1) == 0).argmax())
        text = f": {op.error_msg}" if op.error_msg else ""
        raise NetError(f"Assert: element {position} of {ctx.op_def.input[0]!r}, of shape {x.shape}, is not true{text}")
    return ()


def _require_finite(op: Operator, ctx: RunContext, x: Any) -> None:
    """Raise NetError if an element is infinite or NaN."""
    xp = ctx.xp
    if x.dtype.kind == "f" and x.size and not bool(xp.isfinite(x).all()):
        bad = ~xp.isfinite(x.reshape(-1))
        position, count = int(bad.argmax()), int(bad.sum())
        raise NetError(
            f"{op.type}: {count} of the {x.size} elements of {ctx.op_def.input[0]!r} are infinite or NaN, "
            f"the first is {float(x.reshape(-1)[position])} at {tuple(map(int, np.unravel_index(position, x.shape)))}"
        )


@register
@dataclass(frozen=True)
class EnforceFinite(Operator):
    """Fail if an element of the input is infinite or NaN. No outputs."""

    signature = "input (...): float ->"
    stateful = True
    effects = ""
    flops_per_element = 1


@kernel(EnforceFinite)
def enforce_finite(op: EnforceFinite, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    _require_finite(op, ctx, x)
    return ()


@register
@dataclass(frozen=True)
class NanCheck(Operator):
    """output = tensor; fail if an element is infinite or NaN. Further inputs are ignored."""

    signature = "tensor (*S): float, others* (...): any -> output (*S): as tensor"
    inplace = ((0, 0),)
    stateful = True
    effects = ""

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("NanCheck", [g.d_output("output")], [g.d_input("tensor")])]


@kernel(NanCheck)
def nan_check(op: NanCheck, ctx: RunContext, x: Any, *others: Any) -> tuple[Any, ...]:
    _require_finite(op, ctx, x)
    return (x.copy(),)


@register
@dataclass(frozen=True)
class IsNaN(Operator):
    """output = 1 where the input is NaN, else 0, uint8. No gradient."""

    signature = "tensor (*S): float -> output (*S): uint8"


@kernel(IsNaN)
def is_nan(op: IsNaN, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    return (ctx.xp.isnan(x).astype(_UINT8),)


@register
@dataclass(frozen=True)
class ReplaceNaN(Operator):
    """output = ``value`` where the input is NaN, else the input. No gradient."""

    signature = "input (*S): float -> output (*S): as input"
    inplace = ((0, 0),)
    value: float = 0.0


@kernel(ReplaceNaN)
def replace_nan(op: ReplaceNaN, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    return (ctx.xp.where(ctx.xp.isnan(x), x.dtype.type(op.value), x),)
