"""Focal losses of anchors: SigmoidFocalLoss and SoftmaxFocalLoss, with their gradients."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.indexing import checked_indices
from netbuilder.ops.core.operator import BatchMean, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.detection.anchor_classes import AnchorArguments, softmax_by_class
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "SigmoidFocalLoss",
    "SigmoidFocalLossGradient",
    "SoftmaxFocalLoss",
    "SoftmaxFocalLossGradient",
]

_LEAST = 1e-20  # probabilities are clamped to this before log


@dataclass(frozen=True)
class _Focal(AnchorArguments):
    flops_per_element = 12
    scale: float = 1.0
    alpha: float = 0.25
    gamma: float = 1.0

    def check(self) -> None:
        super().check()
        if self.gamma < 0:
            raise ArgumentError(f"{self.type}: gamma must not be negative, got {self.gamma}")

    def check_inputs(self, x: TensorSpec, labels: TensorSpec, *others: TensorSpec) -> None:
        shape = self.labels_of(x)
        require(labels.shape == shape, self, f"labels must have shape {shape}, got {labels.shape}")

    def factor(self, xp: Any, normalizer: Any) -> Any:
        normalizer = widen(normalizer)
        one = normalizer.dtype.type(1)
        return normalizer.dtype.type(self.scale) / xp.maximum(normalizer.reshape(()), one)


@register
@dataclass(frozen=True)
class SigmoidFocalLoss(_Focal):
    """loss = ``scale`` * the sum of the focal losses of all classes / max(1, normalizer).

    X has one number per anchor and class. A label is a class from 1 on, 0 for the background, or -1 for an anchor that
    is ignored. With p = sigmoid(X), the loss of the label's class is -``alpha`` (1 - p)^``gamma`` ln p, that of each
    other class is -(1 - ``alpha``) p^``gamma`` ln(1 - p).

    Source: Lin et al., "Focal Loss for Dense Object Detection", 2017, arXiv:1708.02002, section 3.
    """

    signature = """
        X (N, D, H, W): float, D = anchors * num_classes
        labels (N, A, H, W): int32
        normalizer {1}: as X
        -> loss (): as X
    """
    num_classes: int = 80

    def batch_mean(self) -> BatchMean:
        return BatchMean("sum", (2,), by_values=True, least=1.0)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("X"), g.input("labels"), g.input("normalizer"), g.d_output("loss")]
        return [make_op("SigmoidFocalLossGradient", inputs, [g.d_input("X")])]


@register
@dataclass(frozen=True)
class SigmoidFocalLossGradient(_Focal):
    """The gradient of SigmoidFocalLoss."""

    signature = "X, labels, normalizer, d_loss -> dX"
    num_classes: int = 80


@register
@dataclass(frozen=True)
class SoftmaxFocalLoss(_Focal):
    """loss = ``scale`` * the sum of the anchors' focal losses / max(1, normalizer); and the softmax of each anchor.

    X has one number per anchor and class; class 0 is the background. A label is a class, or -1 for an anchor that is
    ignored. With p the softmax at the label, the loss of an anchor is -a (1 - p)^``gamma`` ln p, where a is ``alpha``,
    or 1 - ``alpha`` for the background.

    Source: Lin et al., "Focal Loss for Dense Object Detection", 2017, arXiv:1708.02002, section 3.
    """

    signature = """
        X (N, D, H, W): float, D = anchors * num_classes
        labels (N, A, H, W): int32
        normalizer {1}: as X
        -> loss (): as X
        -> probabilities (N, D, H, W): as X
    """

    def batch_mean(self) -> BatchMean:
        return BatchMean("sum", (2,), by_values=True, least=1.0)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("X"), g.input("labels"), g.input("normalizer"), g.output("probabilities"), g.d_output("loss")]
        return [make_op("SoftmaxFocalLossGradient", inputs, [g.d_input("X")])]


@register
@dataclass(frozen=True)
class SoftmaxFocalLossGradient(_Focal):
    """The gradient of SoftmaxFocalLoss; the gradient of its probabilities is ignored."""

    signature = "X, labels, normalizer, probabilities, d_loss -> dX"


def _log(xp: Any, p: Any) -> Any:
    return xp.log(xp.maximum(p, p.dtype.type(_LEAST)))


def _sigmoid_terms(op: _Focal, xp: Any, x: Any, labels: Any) -> tuple[Any, Any, Any, Any]:
    """Return by class X times a sign, 1 at the label and else -1; the sign; the weight; and 1 - sigmoid(sign * X)."""
    numbers = xp.arange(1, op.num_classes + 1).reshape(1, 1, -1, 1, 1)
    at_label, like = labels[:, :, None] == numbers, x.dtype.type
    sign = xp.where(at_label, like(1), like(-1))
    weight = xp.where(at_label, like(op.alpha), like(1 - op.alpha)) * (labels[:, :, None] >= 0)
    signed = op.by_class(x) * sign
    e = xp.exp(-abs(signed))
    return signed, sign, weight, xp.where(signed >= 0, e, like(1)) / (like(1) + e)


@kernel(SigmoidFocalLoss)
def sigmoid_focal_loss(op: SigmoidFocalLoss, ctx: RunContext, x: Any, labels: Any, normalizer: Any) -> tuple[Any, ...]:
    xp, narrow_x = ctx.xp, x
    x = widen(x)
    like = x.dtype.type
    signed, _, weight, missing = _sigmoid_terms(op, xp, x, labels)
    entropy = xp.maximum(-signed, like(0)) + xp.log1p(xp.exp(-abs(signed)))
    total = (weight * missing ** like(op.gamma) * entropy).sum()
    return (narrow(xp.asarray(total * op.factor(xp, normalizer)), narrow_x),)


@kernel(SigmoidFocalLossGradient)
def sigmoid_focal_loss_gradient(
    op: SigmoidFocalLossGradient, ctx: RunContext, x: Any, labels: Any, normalizer: Any, d_loss: Any
) -> tuple[Any, ...]:
    xp, narrow_x = ctx.xp, x
    x = widen(x)
    like = x.dtype.type
    signed, sign, weight, missing = _sigmoid_terms(op, xp, x, labels)
    entropy = xp.maximum(-signed, like(0)) + xp.log1p(xp.exp(-abs(signed)))
    d_signed = -weight * missing ** like(op.gamma) * (missing + like(op.gamma) * (like(1) - missing) * entropy)
    factor = op.factor(xp, normalizer) * widen(d_loss).reshape(())
    return (narrow((d_signed * sign * factor).reshape(x.shape), narrow_x),)


def _softmax_terms(op: _Focal, ctx: RunContext, p: Any, labels: Any) -> tuple[Any, Any, Any]:
    """Return the probability of each anchor's label, the anchor's weight, and the labels with a class axis."""
    xp, like = ctx.xp, p.dtype.type
    classes = checked_indices(ctx, op.type, xp.maximum(labels, 0)[:, :, None], op.num_classes, named="labels")
    at_label = xp.take_along_axis(p, classes.astype(int), axis=2)[:, :, 0]
    weight = xp.where(labels > 0, like(op.alpha), like(1 - op.alpha)) * (labels >= 0)
    return at_label, weight, classes


@kernel(SoftmaxFocalLoss)
def softmax_focal_loss(op: SoftmaxFocalLoss, ctx: RunContext, x: Any, labels: Any, normalizer: Any) -> tuple[Any, ...]:
    xp, narrow_x = ctx.xp, x
    x = widen(x)
    like = x.dtype.type
    p = softmax_by_class(op, xp, x)
    at_label, weight, _ = _softmax_terms(op, ctx, p, labels)
    total = -(weight * (like(1) - at_label) ** like(op.gamma) * _log(xp, at_label)).sum()
    return narrow(xp.asarray(total * op.factor(xp, normalizer)), narrow_x), narrow(p.reshape(x.shape), narrow_x)


@kernel(SoftmaxFocalLossGradient)
def softmax_focal_loss_gradient(
    op: SoftmaxFocalLossGradient, ctx: RunContext, x: Any, labels: Any, normalizer: Any, p: Any, d_loss: Any
) -> tuple[Any, ...]:
    xp, by_class = ctx.xp, op.by_class(widen(p))
    like = by_class.dtype.type
    q, weight, classes = _softmax_terms(op, ctx, by_class, labels)
    missing = like(1) - q
    focus = xp.maximum(missing, like(_LEAST)) ** like(op.gamma - 1)  # where q is 1, it would be infinite for gamma < 1
    d_log = -weight * (missing ** like(op.gamma) - like(op.gamma) * focus * q * _log(xp, q))
    one_hot = classes == xp.arange(op.num_classes).reshape(1, 1, -1, 1, 1)
    factor = op.factor(xp, normalizer) * widen(d_loss).reshape(())
    return ((d_log[:, :, None] * (one_hot - by_class) * factor).reshape(x.shape).astype(x.dtype, copy=False),)
