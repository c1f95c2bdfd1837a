"""SpatialSoftmaxWithLoss, softmax over channels and cross entropy at each position of images, and its gradient."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.exponentials import exp_or_zero
from netbuilder.ops.core.half import narrow, require_one_float_type, widen
from netbuilder.ops.core.labels import label_or_none_error, require_integer_labels
from netbuilder.ops.core.operator import BatchMean, Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.losses.label_loss import LabelLoss, LabelLossBackward, LabelLossForward
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["SpatialSoftmaxWithLoss", "SpatialSoftmaxWithLossGradient"]

_NO_LABEL = -1


@dataclass(frozen=True)
class _Arguments(LabelLoss):
    order: str = "NCHW"

    def check(self) -> None:
        super().check()
        if self.order != "NCHW":
            raise ArgumentError(f"{self.type}: order must be NCHW, got {self.order!r}; insert NHWC2NCHW before it")

    def check_labels(self, x: TensorSpec, label: TensorSpec, weight: TensorSpec | None) -> None:
        """Raise ShapeError unless label and weight fit X."""
        require_one_float_type(self, X=x)
        require(x.ndim == 4, self, f"X must be (N, classes, H, W), got shape {x.shape}")
        require(x.shape[1] >= 1, self, f"X must have at least one class, got shape {x.shape}")
        shape = (x.shape[0], *x.shape[2:])
        require_integer_labels(self, label)
        for name, spec in (("label", label), ("weight", weight or label)):
            require(
                spec.shape == shape,
                self,
                f"{name} must have shape {shape}, one number per position of X {x.shape}, got {spec.shape}",
            )


@register
@dataclass(frozen=True)
class SpatialSoftmaxWithLoss(_Arguments, LabelLossForward):
    """P = softmax of X over its channels; loss = scale * the weighted mean over all positions of -log P[label].

    Positions with the label -1 are ignored. Without weights, all others have weight 1. If the weights sum to 0, the
    loss is 0. In data-parallel nets the weights of all devices are added up. On CPUs, Caffe2 applies ``scale`` to the
    gradient only; here it applies to the loss too.
    """

    signature = """
        X (N, C, H, W): float
        label (N, H, W): int32|int64
        weight? (N, H, W): float
        -> P (N, C, H, W): as X
        -> loss (): as X
    """

    def batch_mean(self) -> BatchMean:
        return BatchMean("labels", tuple(range(1, self.n_in)), 1, by_values=True)


@register
@dataclass(frozen=True)
class SpatialSoftmaxWithLossGradient(_Arguments, LabelLossBackward):
    """dX = (P - label) * weight * dloss * scale / the sum of weights; 0 where the label is -1."""


def _weights(op: Operator, ctx: RunContext, values: Any, label: Any, weight: Any) -> tuple[Any, Any, Any]:
    """Return labels and weights, (N, 1, H, W), with class 0 and weight 0 for the label -1, and the sum of weights.


    Raises:
        ShapeError: a label is neither -1 nor a class.
    """
    require(label.dtype.kind == "i", op, f"labels must be signed integers, got {label.dtype}")
    xp, classes = ctx.xp, values.shape[1]
    counts = label != _NO_LABEL
    known = xp.where(counts, label, 0)
    if known.size and not bool(((known >= 0) & (known < classes)).all()):
        raise label_or_none_error(op, classes, int(known.min()) if known.min() < 0 else int(known.max()))
    weights = counts.astype(values.dtype)
    if weight is not None:
        weights = weights * widen(weight)
    return known[:, None], weights[:, None], weights.sum()


def _divide_or_zero(ctx: RunContext, value: Any, total: Any) -> Any:
    """Return ``value / total``, or 0 if the weights sum to 0."""
    one, zero = total.dtype.type(1), total.dtype.type(0)
    return ctx.xp.where(total > 0, value / ctx.xp.where(total > 0, total, one), zero)


@kernel(SpatialSoftmaxWithLoss)
def spatial_softmax_with_loss(
    op: SpatialSoftmaxWithLoss, ctx: RunContext, x: Any, label: Any, weight: Any = None
) -> tuple[Any, ...]:
    xp, values = ctx.xp, widen(x)
    shifted = values - values.max(axis=1, keepdims=True)  # keeps exp from overflowing
    e = exp_or_zero(xp, shifted)
    sums = e.sum(axis=1, keepdims=True)
    known, weights, total = _weights(op, ctx, values, label, weight)
    losses = (xp.log(sums) - xp.take_along_axis(shifted, known, axis=1)) * weights
    loss = _divide_or_zero(ctx, losses.sum() * values.dtype.type(op.scale), total)
    return narrow(e / sums, x), xp.asarray(loss, dtype=x.dtype).reshape(())


@kernel(SpatialSoftmaxWithLossGradient)
def spatial_softmax_with_loss_gradient(
    op: SpatialSoftmaxWithLossGradient, ctx: RunContext, x: Any, label: Any, *others: Any
) -> tuple[Any, ...]:
    *weight, p, dloss = others
    xp, probs = ctx.xp, widen(p)
    known, weights, total = _weights(op, ctx, probs, label, weight[0] if weight else None)
    is_label = xp.arange(p.shape[1]).reshape(1, -1, 1, 1) == known
    factor = _divide_or_zero(ctx, narrow(dloss.reshape(()), probs) * probs.dtype.type(op.scale), total)
    return (narrow((probs - is_label) * (weights * factor), x),)
