"""Softmax and its gradient."""

from __future__ import annotations

import math
from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.exponentials import exp_or_zero
from netbuilder.ops.core.operator import InBatch, Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Softmax", "SoftmaxGradient"]


def _matrix_shape(shape: tuple[int, ...], axis: int) -> tuple[int, int]:
    """Return the shape of the matrix whose rows are normalized: a row is all axes from ``axis`` on."""
    axis %= len(shape)
    return math.prod(shape[:axis]), math.prod(shape[axis:])


@register
@dataclass(frozen=True)
class Softmax(Operator):
    """Y = exp(X) / sum(exp(X)), the sum taken over all axes from ``axis`` on."""

    signature = "X (*A, N @ axis, *B): float -> Y: as X"
    in_batch = InBatch.ROW_BY_ROW
    flops_per_element = 4
    axis: int = 1

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("SoftmaxGradient", [g.output("Y"), g.d_output("Y")], [g.d_input("X")])]


@kernel(Softmax)
def softmax(op: Softmax, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    rows = x.reshape(_matrix_shape(x.shape, op.axis))
    if rows.size == 0:
        return (x.copy(),)
    e = exp_or_zero(ctx.xp, rows - rows.max(axis=1, keepdims=True))  # the shift keeps exp from overflowing
    e /= e.sum(axis=1, keepdims=True)
    return (e.reshape(x.shape),)


@register
@dataclass(frozen=True)
class SoftmaxGradient(Operator):
    """dX = Y * (dY - sum(dY * Y)), the sum taken over all axes from ``axis`` on."""

    signature = "Y, dY -> dX"
    inplace = ((1, 0),)
    flops_per_element = 4
    axis: int = 1


@kernel(SoftmaxGradient)
def softmax_gradient(op: SoftmaxGradient, ctx: RunContext, y: Any, dy: Any) -> tuple[Any, ...]:
    shape = _matrix_shape(y.shape, op.axis)
    rows, d_rows = y.reshape(shape), dy.reshape(shape)
    dx = rows * (d_rows - (rows * d_rows).sum(axis=1, keepdims=True))
    return (dx.reshape(y.shape),)
