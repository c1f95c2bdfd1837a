"""SoftmaxWithLoss, softmax and cross entropy in one operator, and its gradient."""

from __future__ import annotations

import math
from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.exponentials import exp_or_zero
from netbuilder.ops.core.half import narrow, require_one_float_type, widen
from netbuilder.ops.core.labels import check_label_spec, chosen
from netbuilder.ops.core.operator import BatchMean, InBatch, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
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
            check_label_spec(self, label, rows, x)
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
    if type(divisor) is float:  # a sum of float64 is an instance of float, too
        return value / divisor
    safe = ctx.xp.where(divisor > 0, divisor, divisor.dtype.type(1))
    return ctx.xp.where(divisor > 0, value / safe, value.dtype.type(0))


@kernel(SoftmaxWithLoss)
def softmax_with_loss(op: SoftmaxWithLoss, ctx: RunContext, x: Any, label: Any, weight: Any = None) -> tuple[Any, ...]:
    xp = ctx.xp
    rows = widen(x).reshape(op.matrix(x.shape))
    shifted = rows - rows.max(axis=1, keepdims=True)  # keeps exp from overflowing
    e = exp_or_zero(xp, shifted)
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
