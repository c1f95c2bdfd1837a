"""LogSoftmax, along one axis, and its gradient."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.exponentials import exp_or_zero
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["LogSoftmax", "LogSoftmaxGradient"]


@register
@dataclass(frozen=True)
class LogSoftmax(Operator):
    """Y = X - log(sum(exp(X))), the sum taken along ``axis`` alone.

    Its exponential is the softmax along that axis, where Softmax takes all axes from one on together.
    """

    signature = "X (*A, N @ axis, *B): float -> Y: as X"
    flops_per_element = 4
    axis: int = -1

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("LogSoftmaxGradient", [g.output("Y"), g.d_output("Y")], [g.d_input("X")])]


@register
@dataclass(frozen=True)
class LogSoftmaxGradient(Operator):
    """dX = dY - exp(Y) * sum(dY), the sum taken along ``axis``."""

    signature = "Y, dY -> dX"
    flops_per_element = 4
    axis: int = -1


@kernel(LogSoftmax)
def log_softmax(op: LogSoftmax, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    if x.size == 0:
        return (x.copy(),)
    wide = widen(x)
    below = wide - wide.max(axis=op.axis, keepdims=True)  # the shift keeps exp from overflowing
    return (narrow(below - ctx.xp.log(exp_or_zero(ctx.xp, below).sum(axis=op.axis, keepdims=True)), x),)


@kernel(LogSoftmaxGradient)
def log_softmax_gradient(op: LogSoftmaxGradient, ctx: RunContext, y: Any, dy: Any) -> tuple[Any, ...]:
    wide = widen(dy)
    return (narrow(wide - ctx.xp.exp(widen(y)) * wide.sum(axis=op.axis, keepdims=True), dy),)
