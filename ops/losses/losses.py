"""Losses of probabilities: LabelCrossEntropy, CrossEntropy, and AveragedLoss, with their gradients."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.labels import ONE_LABEL_PER_ROW, chosen
from netbuilder.ops.core.operator import BatchMean, InBatch, Operator, TensorSpec
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "AveragedLoss",
    "AveragedLossGradient",
    "CrossEntropy",
    "CrossEntropyGradient",
    "LabelCrossEntropy",
    "LabelCrossEntropyGradient",
]

_TINY = 1e-20  # probabilities are clamped to this in the loss and in its gradient, as in Caffe2


@dataclass(frozen=True)
class _RowLoss(Operator):
    """A loss per row of probabilities."""

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("X"), g.input("label"), g.d_output("Y")]
        return [make_op(self.type + "Gradient", inputs, [g.d_input("X")])]


@dataclass(frozen=True)
class _RowLossGradient(Operator):
    signature = "X, label, dY {N}: as X -> dX"


def _rows(x: Any) -> Any:
    return x.reshape(x.shape[0], math.prod(x.shape[1:]))


@register
@dataclass(frozen=True)
class LabelCrossEntropy(_RowLoss):
    """Y[i] = -log(max(X[i, label[i]], 1e-20))."""

    signature = "X (N, *S): float, label (N) or (N, 1): int -> Y (N): as X"
    remedies: ClassVar[dict[str, str]] = {"label": ONE_LABEL_PER_ROW}
    in_batch = InBatch.ROW_BY_ROW

    def flops(self, x: TensorSpec, label: TensorSpec) -> int:
        return 2 * x.shape[0]


@kernel(LabelCrossEntropy)
def label_cross_entropy(op: LabelCrossEntropy, ctx: RunContext, x: Any, label: Any) -> tuple[Any, ...]:
    rows = _rows(x)
    gathered = widen(rows[chosen(op, ctx, label, rows.shape[1])])
    return (narrow(-ctx.xp.log(ctx.xp.maximum(gathered, gathered.dtype.type(_TINY))), x),)


@register
@dataclass(frozen=True)
class LabelCrossEntropyGradient(_RowLossGradient):
    """dX[i, label[i]] = -dY[i] / max(X[i, label[i]], 1e-20), all else 0."""

    remedies: ClassVar[dict[str, str]] = {"label": ONE_LABEL_PER_ROW}

    def flops(self, x: TensorSpec, label: TensorSpec, dy: TensorSpec) -> int:
        return 2 * x.shape[0]


@kernel(LabelCrossEntropyGradient)
def label_cross_entropy_gradient(
    op: LabelCrossEntropyGradient, ctx: RunContext, x: Any, label: Any, dy: Any
) -> tuple[Any, ...]:
    rows = _rows(x)
    gathered = chosen(op, ctx, label, rows.shape[1])
    dx = ctx.xp.zeros(rows.shape, x.dtype)
    probs = widen(rows[gathered])
    dx[gathered] = -dy.reshape(-1) / ctx.xp.maximum(probs, probs.dtype.type(_TINY))
    return (dx.reshape(x.shape),)


@register
@dataclass(frozen=True)
class CrossEntropy(_RowLoss):
    """Y[i] = -sum over classes of label[i] * log(max(X[i], 1e-20))."""

    signature = "X (N, *S): float, label (N, *S): float -> Y (N): as X"
    remedies: ClassVar[dict[str, str]] = {"label": "of class numbers compute LabelCrossEntropy"}
    in_batch = InBatch.ROW_BY_ROW
    flops_per_element = 4


@kernel(CrossEntropy)
def cross_entropy(op: CrossEntropy, ctx: RunContext, x: Any, label: Any) -> tuple[Any, ...]:
    probs = widen(x)
    logs = ctx.xp.log(ctx.xp.maximum(probs, probs.dtype.type(_TINY)))
    return (narrow(-_rows(label * logs).sum(axis=1), x),)


@register
@dataclass(frozen=True)
class CrossEntropyGradient(_RowLossGradient):
    """dX[i] = -dY[i] * label[i] / max(X[i], 1e-20)."""

    flops_per_element = 3


@kernel(CrossEntropyGradient)
def cross_entropy_gradient(op: CrossEntropyGradient, ctx: RunContext, x: Any, label: Any, dy: Any) -> tuple[Any, ...]:
    slopes, probs = -dy.reshape(-1, *(1,) * (x.ndim - 1)), widen(x)
    return (narrow(slopes * label / ctx.xp.maximum(probs, probs.dtype.type(_TINY)), x),)


@register
@dataclass(frozen=True)
class AveragedLoss(Operator):
    """Y = the mean of all elements of X, a scalar; 0 for an empty X."""

    signature = "X (*S): float -> Y (): as X"
    in_batch = InBatch.LINEAR
    flops_per_element = 1

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("AveragedLossGradient", [g.input("X"), g.d_output("Y")], [g.d_input("X")])]

    def batch_mean(self) -> BatchMean:
        return BatchMean("elements", (0,))


@kernel(AveragedLoss)
def averaged_loss(op: AveragedLoss, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    values = widen(x)
    return (narrow(ctx.xp.asarray(values.sum() / values.dtype.type(max(x.size, 1))), x).reshape(()),)


@register
@dataclass(frozen=True)
class AveragedLossGradient(Operator):
    """dX = dY / (the number of elements of X), for each element."""

    signature = "X, dY -> dX"


@kernel(AveragedLossGradient)
def averaged_loss_gradient(op: AveragedLossGradient, ctx: RunContext, x: Any, dy: Any) -> tuple[Any, ...]:
    share = dy.reshape(()) / x.dtype.type(max(x.size, 1))
    return (ctx.xp.broadcast_to(share, x.shape).astype(x.dtype),)
