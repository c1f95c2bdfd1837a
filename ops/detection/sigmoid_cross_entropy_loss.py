"""SigmoidCrossEntropyLoss: the mean cross entropy of sigmoids, with targets that may be ignored; and its gradient."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import BatchMean, InBatch, Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["SigmoidCrossEntropyLoss", "SigmoidCrossEntropyLossGradient"]

_EPSILON = 1e-5  # added to the number of targets, so that the loss without targets is 0


@dataclass(frozen=True)
class _Loss(Operator):
    scale: float = 1.0
    normalize: int = 1

    def factor(self, xp: Any, targets: Any, dtype: Any) -> Any:
        """Return the factor of the sum of losses."""
        if not self.normalize:
            return dtype.type(self.scale)
        return dtype.type(self.scale) / ((targets >= 0).sum().astype(dtype) + dtype.type(_EPSILON))


@register
@dataclass(frozen=True)
class SigmoidCrossEntropyLoss(_Loss):
    """loss = ``scale`` times the mean of -ln(sigmoid(X)) where targets is 1, and of -ln(1 - sigmoid(X)) where it is 0.

    Elements with the target -1 are ignored. Without ``normalize``, the loss is the sum instead of the mean.
    """

    signature = "X (*S): float, targets (*S): int32 -> loss (): as X"
    in_batch = InBatch.SUM
    flops_per_element = 5

    def batch_mean(self) -> BatchMean | None:
        return BatchMean("labels", (1,), by_values=True, offset=_EPSILON) if self.normalize else None

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("X"), g.input("targets"), g.d_output("loss")]
        return [make_op("SigmoidCrossEntropyLossGradient", inputs, [g.d_input("X")])]


@register
@dataclass(frozen=True)
class SigmoidCrossEntropyLossGradient(_Loss):
    """dX = d_loss * (sigmoid(X) - targets), with the factor of the loss; 0 where the target is -1."""

    signature = "X, targets, d_loss -> dX"
    flops_per_element = 5


@kernel(SigmoidCrossEntropyLoss)
def sigmoid_cross_entropy_loss(op: SigmoidCrossEntropyLoss, ctx: RunContext, x: Any, targets: Any) -> tuple[Any, ...]:
    xp, narrow_x = ctx.xp, x
    x = widen(x)
    like = x.dtype.type
    losses = xp.maximum(x, like(0)) - x * targets.astype(x.dtype) + xp.log1p(xp.exp(-abs(x)))
    total = xp.where(targets >= 0, losses, like(0)).sum()
    return (narrow(xp.asarray(total * op.factor(xp, targets, x.dtype)), narrow_x),)


@kernel(SigmoidCrossEntropyLossGradient)
def sigmoid_cross_entropy_loss_gradient(
    op: SigmoidCrossEntropyLossGradient, ctx: RunContext, x: Any, targets: Any, d_loss: Any
) -> tuple[Any, ...]:
    xp, narrow_x = ctx.xp, x
    x = widen(x)
    like = x.dtype.type
    e = xp.exp(-abs(x))
    d_losses = xp.where(x >= 0, like(1), e) / (like(1) + e) - targets.astype(x.dtype)
    factor = widen(d_loss).reshape(()) * op.factor(xp, targets, x.dtype)
    return (narrow(xp.where(targets >= 0, d_losses * factor, like(0)), narrow_x),)
