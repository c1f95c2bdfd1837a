"""Sigmoid cross entropy of logits, plain and weighted, and MakeTwoClass; with their gradients."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import InBatch, Operator, TensorSpec
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "MakeTwoClass",
    "MakeTwoClassGradient",
    "SigmoidCrossEntropyWithLogits",
    "SigmoidCrossEntropyWithLogitsGradient",
    "WeightedSigmoidCrossEntropyWithLogits",
    "WeightedSigmoidCrossEntropyWithLogitsGradient",
    "sigmoid",
    "softplus",
]


def softplus(xp: Any, x: Any) -> Any:
    """Return log(1 + exp(x)) without overflow."""
    return xp.maximum(x, 0) + xp.log1p(xp.exp(-abs(x)))


def sigmoid(xp: Any, x: Any) -> Any:
    """Return 1 / (1 + exp(-x)) without overflow."""
    e = xp.exp(-abs(x))
    return xp.where(x >= 0, x.dtype.type(1), e) / (1 + e)


@dataclass(frozen=True)
class _SigmoidCrossEntropy(Operator):
    log_D_trick: bool = False
    unjoined_lr_loss: bool = False

    def check(self) -> None:
        if self.log_D_trick and self.unjoined_lr_loss:
            raise ArgumentError(f"{self.type}: give log_D_trick or unjoined_lr_loss, not both")


@register
@dataclass(frozen=True)
class SigmoidCrossEntropyWithLogits(_SigmoidCrossEntropy):
    """Y = the mean over the last axis of -(t * log s + (1 - t) * log(1 - s)); s = sigmoid(logits), t = targets.

    With ``log_D_trick`` it is the mean of (1 - 2 * t) * log s, the non-saturating loss of a generator (Goodfellow et
    al., "Generative Adversarial Networks", 2014, section 3). With ``unjoined_lr_loss`` it is the mean of (1 - t) *
    log(1 + exp(logits)) - t * logits, for data in which each positive sample also occurs as a negative one.
    """

    signature = "logits (*S, D): float, targets (*S, D): as logits -> Y (*S): as logits"
    in_batch = InBatch.ROW_BY_ROW
    flops_per_element = 6

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.d_output("Y"), g.input("logits"), g.input("targets")]
        return [make_op("SigmoidCrossEntropyWithLogitsGradient", inputs, [g.d_input("logits")])]


@register
@dataclass(frozen=True)
class SigmoidCrossEntropyWithLogitsGradient(_SigmoidCrossEntropy):
    """dlogits of SigmoidCrossEntropyWithLogits; targets have no gradient."""

    signature = "dY, logits, targets -> dlogits"

    def flops(self, dy: TensorSpec, x: TensorSpec, targets: TensorSpec) -> int:
        return 6 * x.size


@kernel(SigmoidCrossEntropyWithLogits)
def sigmoid_cross_entropy(op: SigmoidCrossEntropyWithLogits, ctx: RunContext, x: Any, targets: Any) -> tuple[Any, ...]:
    xp, values, t = ctx.xp, widen(x), widen(targets)
    if op.log_D_trick:
        losses = (2 * t - 1) * softplus(xp, -values)
    elif op.unjoined_lr_loss:
        losses = (1 - t) * softplus(xp, values) - t * values
    else:
        losses = softplus(xp, values) - t * values
    return (narrow(xp.asarray(losses.mean(axis=-1)), x),)


@kernel(SigmoidCrossEntropyWithLogitsGradient)
def sigmoid_cross_entropy_gradient(
    op: SigmoidCrossEntropyWithLogitsGradient, ctx: RunContext, dy: Any, x: Any, targets: Any
) -> tuple[Any, ...]:
    xp, values, t = ctx.xp, widen(x), widen(targets)
    if op.log_D_trick:
        slopes = (1 - 2 * t) * sigmoid(xp, -values)
    elif op.unjoined_lr_loss:
        slopes = (1 - t) * sigmoid(xp, values) - t
    else:
        slopes = sigmoid(xp, values) - t
    return (narrow(slopes * (widen(dy)[..., None] / max(x.shape[-1], 1)), x),)


@register
@dataclass(frozen=True)
class WeightedSigmoidCrossEntropyWithLogits(Operator):
    """Y = the mean over the last axis of -w * (t * log s + (1 - t) * log(1 - s)); s = sigmoid(logits), t = targets."""

    signature = """
        logits (*S, D): float
        targets (*S, D): as logits
        weights (*S, D): as logits
        -> Y (*S): as logits
    """
    in_batch = InBatch.ROW_BY_ROW
    flops_per_element = 7

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.d_output("Y"), *map(g.input, self.inputs)]
        return [make_op("WeightedSigmoidCrossEntropyWithLogitsGradient", inputs, [g.d_input("logits")])]


@register
@dataclass(frozen=True)
class WeightedSigmoidCrossEntropyWithLogitsGradient(Operator):
    """dlogits of WeightedSigmoidCrossEntropyWithLogits; targets and weights have no gradient."""

    signature = "dY, logits, targets, weights -> dlogits"

    def flops(self, dy: TensorSpec, x: TensorSpec, *others: TensorSpec) -> int:
        return 7 * x.size


@kernel(WeightedSigmoidCrossEntropyWithLogits)
def weighted_sigmoid_cross_entropy(
    op: WeightedSigmoidCrossEntropyWithLogits, ctx: RunContext, x: Any, targets: Any, weights: Any
) -> tuple[Any, ...]:
    values = widen(x)
    losses = widen(weights) * (softplus(ctx.xp, values) - widen(targets) * values)
    return (narrow(ctx.xp.asarray(losses.mean(axis=-1)), x),)


@kernel(WeightedSigmoidCrossEntropyWithLogitsGradient)
def weighted_sigmoid_cross_entropy_gradient(
    op: WeightedSigmoidCrossEntropyWithLogitsGradient, ctx: RunContext, dy: Any, x: Any, targets: Any, weights: Any
) -> tuple[Any, ...]:
    slopes = widen(weights) * (sigmoid(ctx.xp, widen(x)) - widen(targets))
    return (narrow(slopes * (widen(dy)[..., None] / max(x.shape[-1], 1)), x),)


@register
@dataclass(frozen=True)
class MakeTwoClass(Operator):
    """Y = (1 - X, X) along a new last axis: the probabilities of two classes from that of the second."""

    signature = "X (*S): float -> Y (*S, 2): as X"
    in_batch = InBatch.ROW_BY_ROW

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("MakeTwoClassGradient", [g.d_output("Y")], [g.d_input("X")])]


@register
@dataclass(frozen=True)
class MakeTwoClassGradient(Operator):
    """dX = dY[..., 1] - dY[..., 0]."""

    signature = "dY -> dX"


@kernel(MakeTwoClass)
def make_two_class(op: MakeTwoClass, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    return (ctx.xp.stack([1 - x, x], axis=-1),)


@kernel(MakeTwoClassGradient)
def make_two_class_gradient(op: MakeTwoClassGradient, ctx: RunContext, dy: Any) -> tuple[Any, ...]:
    return (ctx.xp.asarray(dy[..., 1] - dy[..., 0]),)
