"""Accumulate: a running sum, kept in the operator's own output."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Accumulate"]


@register
@dataclass(frozen=True)
class Accumulate(Operator):
    """Y = X + gamma * Y, where the Y on the right is that of the previous run. No gradient.

    Y = X if there is no such Y, or if it has another type or another number of elements.
    """

    signature = "input (*S): float -> output (*S): as input"
    dynamic = True  # the kernel reads its own output, which a plan does not track as an input
    stateful = True
    effects = ""
    flops_per_element = 2
    gamma: float = 1.0


@kernel(Accumulate)
def accumulate(op: Accumulate, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    name, workspace = ctx.op_def.output[0], ctx.workspace
    if workspace is None or not workspace.has(name) or workspace.spec(name) is None:
        return (x.copy(),)
    previous = workspace.fetch(name)
    if previous.size != x.size or previous.dtype != x.dtype:
        return (x.copy(),)
    return (x + x.dtype.type(op.gamma) * ctx.xp.asarray(previous).reshape(x.shape),)
