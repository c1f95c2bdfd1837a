"""SoftmaxWithLoss, softmax and cross entropy in one operator, and its gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import PlanContext, Prepared, RunContext
from netbuilder.ops.core.half import narrow, one_float_type, require_one_float_type, widen
from netbuilder.ops.core.labels import Positions, check_label_spec, chosen
from netbuilder.ops.core.operator import BatchMean, InBatch, TensorSpec, require
from netbuilder.ops.core.registry import CPU, kernel, prepare, register
from netbuilder.ops.losses.label_loss import LabelLoss, LabelLossBackward, LabelLossForward
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["SoftmaxWithLoss", "SoftmaxWithLossGradient"]

_TINY = 1e-20  # probabilities are clamped to this before log, as in Caffe2


@dataclass(frozen=True)
class LossArguments(LabelLoss):
    """Arguments and checks of the loss and its gradient."""

    label_prob: bool = False
    average_by_batch_size: bool = False
    axis: int = 1
    order: str = "NCHW"
    only_loss: bool = False  # Caffe2 then reuses the memory of P; the numbers are the same

    def matrix(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return the numbers of rows (samples) and columns (classes) of X flattened at ``axis``."""
        ndim = len(shape)
        require(-ndim <= self.axis < ndim, self, f"axis must lie in [{-ndim}, {ndim}) for X {shape}, got {self.axis}")
        axis = self.axis % ndim
        return math.prod(shape[:axis]), math.prod(shape[axis:])

    def check_labels(self, x: TensorSpec, label: TensorSpec, weight: TensorSpec | None) -> None:
        """Raise ShapeError unless label and weight fit X."""
        require_one_float_type(self, X=x)
        rows, classes = self.matrix(x.shape)
        require(classes >= 1, self, f"X must have at least one class, got shape {x.shape}")
        if self.label_prob:
            require(
                label.size == x.size and label.dtype.kind == "f",
                self,
                f"with label_prob=1 the labels are probabilities, {rows} x {classes}, got {label.dtype} {label.shape}",
            )
        else:
            check_label_spec(self, label, rows)
        if weight is not None:
            require(weight.size == rows, self, f"there must be one weight per row, {rows} in all, got {weight.shape}")


@register
@dataclass(frozen=True)
class SoftmaxWithLoss(LossArguments, LabelLossForward):
    """P = softmax(X) by rows; loss = scale * the mean of -log P[i, label[i]].

    With ``label_prob`` the labels are probabilities of all classes, and a row's loss is -sum(label * log P). With
    weights the mean is weighted: the sum is divided by that of the weights or, with ``average_by_batch_size``, by the
    number of rows. In data-parallel nets the weights of all devices are added up, so weights must not be negative.
    """

    signature = """
        X (*A, *B): float
        label (N) or (N, 1) or (*A) or (*A, 1) or (*A, *B): int|float32|float64, one integer a row, or with label_prob
            a probability for each element of X
        weight? (N) or (...): float
        -> P (*A, *B): as X
        -> loss (): as X
    """
    in_batch = InBatch.ROW_BY_ROW

    def batch_mean(self) -> BatchMean:
        if self.n_in > 2 and not self.average_by_batch_size:
            return BatchMean("sum", (2,), 1, by_values=True)
        return BatchMean("rows", (0,), 1, axis=self.axis)


@register
@dataclass(frozen=True)
class SoftmaxWithLossGradient(LossArguments, LabelLossBackward):
    """dX of SoftmaxWithLoss: (P - label) * weight * dloss * scale / the divisor of the mean."""


def _divisor(op: LossArguments, rows: int, weight: Any) -> Any:
    if weight is None or op.average_by_batch_size:
        return float(max(rows, 1))
    return weight.sum()


def _divide_or_zero(ctx: RunContext, value: Any, divisor: Any) -> Any:
    """Return ``value / divisor``, or 0 if the divisor, a sum of weights, is 0."""
    if isinstance(divisor, float):
        return value / divisor
    safe = ctx.xp.where(divisor > 0, divisor, divisor.dtype.type(1))
    return ctx.xp.where(divisor > 0, value / safe, value.dtype.type(0))


@kernel(SoftmaxWithLoss)
def softmax_with_loss(op: SoftmaxWithLoss, ctx: RunContext, x: Any, label: Any, weight: Any = None) -> tuple[Any, ...]:
    xp = ctx.xp
    rows = widen(x).reshape(op.matrix(x.shape))
    shifted = rows - rows.max(axis=1, keepdims=True)  # keeps exp from overflowing
    e = xp.exp(shifted)
    sums = e.sum(axis=1, keepdims=True)
    p = e / sums
    if op.label_prob:
        losses = -(label.reshape(rows.shape) * xp.log(xp.maximum(p, _TINY))).sum(axis=1)
    else:
        gathered = chosen(op, ctx, label, rows.shape[1])
        losses = xp.log(sums[:, 0]) - shifted[gathered]
    if weight is not None:
        losses = losses * weight.reshape(-1)
    loss = _divide_or_zero(ctx, losses.sum() * _scalar(losses, op.scale), _divisor(op, rows.shape[0], weight))
    return (narrow(p.reshape(x.shape), x), xp.asarray(loss, dtype=x.dtype).reshape(()))


def _scalar(like: Any, value: float) -> Any:
    return like.dtype.type(value)


@kernel(SoftmaxWithLossGradient)
def softmax_with_loss_gradient(
    op: SoftmaxWithLossGradient, ctx: RunContext, x: Any, label: Any, *others: Any
) -> tuple[Any, ...]:
    *weights, p, dloss = others
    weight = weights[0] if weights else None
    slopes = widen(p).reshape(op.matrix(x.shape)).copy()
    if op.label_prob:
        slopes -= label.reshape(slopes.shape)
    else:
        slopes[chosen(op, ctx, label, slopes.shape[1])] -= 1
    if weight is not None:
        slopes *= weight.reshape(-1, 1)
    factor = narrow(dloss.reshape(()), slopes) * _scalar(slopes, op.scale)
    slopes *= _divide_or_zero(ctx, factor, _divisor(op, slopes.shape[0], weight))
    return (narrow(slopes.reshape(x.shape), x),)


def _bind_row_softmax(rows: Any, sums: Any, p: Any, maxima: Any) -> Callable[[], None]:
    """Return a call that computes the softmax of a matrix's rows.

    Args:
        rows: the matrix; may be ``p``.
        sums: one number per row; receives the sums of exp(rows - maxima).
        p: receives the result.
        maxima: one number per row, as a column; receives the rows' maxima.
    """
    factors = np.empty((len(rows), 1), rows.dtype)
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


@prepare(SoftmaxWithLoss, device=CPU)
def _prepare_softmax_with_loss(
    op: SoftmaxWithLoss, ctx: PlanContext, x: TensorSpec, label: TensorSpec, *weight: TensorSpec
) -> Prepared | None:
    """Bind the usual case: labels that are integers, no weights."""
    if weight or op.label_prob or not one_float_type(x):
        return None
    shape = rows, classes = op.matrix(x.shape)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], None]:
        p, loss, positions = outputs[0].reshape(shape), outputs[1], Positions(op, ctx.run, inputs[1], classes)
        maxima, sums, gathered = np.empty((rows, 1), x.dtype), np.empty(rows, x.dtype), np.empty(rows, x.dtype)
        softmax = _bind_row_softmax(inputs[0].reshape(shape), sums, p, maxima)
        flat, largest, factor = inputs[0].reshape(-1), maxima[:, 0], x.dtype.type(op.scale / rows)
        log, subtract, add_up, multiply = np.log, np.subtract, np.add.reduce, np.multiply

        def call() -> None:
            flat.take(positions.update(), None, gathered, "clip")  # before P, which may overwrite X
            softmax()
            subtract(gathered, largest, gathered)
            log(sums, sums)
            subtract(sums, gathered, sums)
            multiply(add_up(sums), factor, loss)

        return call

    outputs = [x.plain, x.with_shape(())]
    return Prepared([x.plain, label.plain], outputs, bind, inplace=((0, 0),), name="numpy")


@prepare(SoftmaxWithLossGradient, device=CPU)
def _prepare_softmax_with_loss_gradient(
    op: SoftmaxWithLossGradient, ctx: PlanContext, x: TensorSpec, label: TensorSpec, *others: TensorSpec
) -> Prepared | None:
    """Bind the usual case: labels that are integers, no weights. X is not read."""
    if len(others) != 2 or op.label_prob or not one_float_type(x, *others):
        return None
    p, dloss = others
    rows, classes = op.matrix(x.shape)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], None]:
        _, labels, p, dloss = inputs
        dx, p, dloss = outputs[0].reshape(-1), p.reshape(-1), dloss.reshape(())
        positions, share = Positions(op, ctx.run, labels, classes), x.dtype.type(op.scale / rows)
        gathered, factor, one = np.empty(rows, x.dtype), np.empty((), x.dtype), x.dtype.type(1)
        multiply, subtract = np.multiply, np.subtract

        def call() -> None:
            multiply(dloss, share, factor)
            at = positions.update()
            p.take(at, None, gathered, "clip")
            subtract(gathered, one, gathered)
            multiply(gathered, factor, gathered)
            multiply(p, factor, dx)
            dx[at] = gathered

        return call

    expected = [None, label.plain, p.plain, dloss.plain]
    return Prepared(expected, [x.plain], bind, inplace=((2, 0),), name="numpy")
