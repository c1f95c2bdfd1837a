"""Softmax and its gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, PlanContext, Prepared, RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.half import one_float_type
from netbuilder.ops.core.operator import InBatch, Operator, TensorSpec
from netbuilder.ops.core.registry import CPU, kernel, prepare, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op

__all__ = ["Softmax", "SoftmaxGradient", "bind_row_softmax"]


def _matrix_shape(shape: tuple[int, ...], axis: int) -> tuple[int, int]:
    """Return the shape of the matrix whose rows are normalized: a row is all axes from ``axis`` on."""
    axis %= len(shape)
    return math.prod(shape[:axis]), math.prod(shape[axis:])


@register
@operator_class(frozen=True)
class Softmax(Operator):
    """Y = exp(X) / sum(exp(X)), the sum taken over all axes from ``axis`` on."""

    signature = "X (*A, N @ axis, *B): float -> Y: as X"
    in_batch = InBatch.ROW_BY_ROW
    axis: int = 1

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("SoftmaxGradient", [g.output("Y"), g.d_output("Y")], [g.d_input("X")])]

    def flops(self, x: TensorSpec) -> int:
        return 4 * x.size


@kernel(Softmax)
def softmax(op: Softmax, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    rows = x.reshape(_matrix_shape(x.shape, op.axis))
    if rows.size == 0:
        return (x.copy(),)
    e = ctx.xp.exp(rows - rows.max(axis=1, keepdims=True))  # the shift keeps exp from overflowing
    e /= e.sum(axis=1, keepdims=True)
    return (e.reshape(x.shape),)


def bind_row_softmax(rows: Any, sums: Any, p: Any, maxima: Any = None) -> Callable[[], None]:
    """Return a call that computes the softmax of a matrix's rows.

    Args:
        rows: the matrix; may be ``p``.
        sums: one number per row; receives the sums of exp(rows - maxima).
        p: receives the result.
        maxima: one number per row, as a column; receives the rows' maxima.
    """
    factors = np.empty((len(rows), 1), rows.dtype)
    maxima = np.empty_like(factors) if maxima is None else maxima
    maxima_flat, ones, one = maxima[:, 0], np.ones(rows.shape[1], rows.dtype), rows.dtype.type(1)
    sums_column = sums.reshape(-1, 1)
    # Looked up once: in small nets looking up the attributes takes longer than the calls.
    maximum: Any = np.maximum.reduce
    subtract, exp, dot, divide, multiply = np.subtract, np.exp, np.dot, np.divide, np.multiply

    def call() -> None:
        maximum(rows, 1, None, maxima_flat)
        subtract(rows, maxima, p)
        exp(p, p)
        dot(p, ones, sums)
        divide(one, sums_column, factors)
        multiply(p, factors, p)

    return call


@prepare(Softmax, device=CPU)
def _prepare_softmax(op: Softmax, ctx: PlanContext, x: TensorSpec) -> Prepared | None:
    if not one_float_type(x):
        return None
    shape = _matrix_shape(x.shape, op.axis)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], None]:
        p = outputs[0].reshape(shape)
        return bind_row_softmax(inputs[0].reshape(shape), np.empty(shape[0], x.dtype), p)

    return Prepared([x.plain], [x.plain], bind, inplace=((0, 0),), name="numpy")


@register
@operator_class(frozen=True)
class SoftmaxGradient(Operator):
    """dX = Y * (dY - sum(dY * Y)), the sum taken over all axes from ``axis`` on."""

    signature = "Y, dY -> dX"
    inplace = ((1, 0),)
    axis: int = 1

    def flops(self, y: TensorSpec, dy: TensorSpec) -> int:
        return 4 * y.size


@kernel(SoftmaxGradient)
def softmax_gradient(op: SoftmaxGradient, ctx: RunContext, y: Any, dy: Any) -> tuple[Any, ...]:
    shape = _matrix_shape(y.shape, op.axis)
    rows, d_rows = y.reshape(shape), dy.reshape(shape)
    dx = rows * (d_rows - (rows * d_rows).sum(axis=1, keepdims=True))
    return (dx.reshape(y.shape),)
