"""CumSum: running sums along an axis."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.reductions.reduce import wide_type
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["CumSum"]


@register
@dataclass(frozen=True)
class CumSum(Operator):
    """Y = the sums of all elements of X up to each along ``axis``.

    With ``exclusive`` without the element itself; with ``reverse`` from the end of the axis on.
    """

    signature = "X (*A, N @ axis, *B): float|int -> Y: as X"
    axis: int = 0
    exclusive: bool = False
    reverse: bool = False

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        op = make_op("CumSum", [g.d_output("Y")], [g.d_input("X")], axis=self.axis,
                     exclusive=int(self.exclusive), reverse=int(not self.reverse))  # fmt: skip
        return [op]


@kernel(CumSum)
def cum_sum(op: CumSum, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    x = ctx.xp.flip(x, op.axis) if op.reverse else x
    y = ctx.xp.cumsum(x, axis=op.axis, dtype=wide_type(x.dtype)).astype(x.dtype, copy=False)
    if op.exclusive:
        sums, y = y, ctx.xp.zeros_like(y)
        before = (slice(None),) * (op.axis % x.ndim)
        y[(*before, slice(1, None))] = sums[(*before, slice(None, -1))]
    return (ctx.xp.ascontiguousarray(ctx.xp.flip(y, op.axis) if op.reverse else y),)
