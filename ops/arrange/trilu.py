"""Trilu: the upper or lower triangle of matrices."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import InBatch, Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Trilu"]


@register
@dataclass(frozen=True)
class Trilu(Operator):
    """Y = the matrices of X in their upper triangle, or with ``upper=0`` in the lower one, and 0 elsewhere.

    The triangle begins, or ends, at the diagonal ``k``: 0 is the main one, 1 the next above it.
    """

    signature = "X (*A, N, M): any -> Y (*A, N, M): as X"
    in_batch = InBatch.LINEAR
    flops_per_element = 0
    upper: bool = True
    k: int = 0

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("Trilu", [g.d_output("Y")], [g.d_input("X")])]


@kernel(Trilu)
def trilu(op: Trilu, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    rows, columns = (ctx.xp.arange(n) for n in x.shape[-2:])
    above = columns[None, :] - rows[:, None]
    kept = above >= op.k if op.upper else above <= op.k
    return (ctx.xp.where(kept, x, ctx.xp.zeros((), x.dtype)),)
