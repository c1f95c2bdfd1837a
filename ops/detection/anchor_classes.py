"""GroupSpatialSoftmax: the softmax of each anchor's class scores; and its gradient."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["AnchorArguments", "GroupSpatialSoftmax", "GroupSpatialSoftmaxGradient", "softmax_by_class"]


@dataclass(frozen=True)
class AnchorArguments(Operator):
    """Base of operators on scores of anchors, with ``num_classes`` channels for each anchor."""

    num_classes: int = 81

    def check(self) -> None:
        if self.num_classes < 1:
            raise ArgumentError(f"{self.type}: num_classes must be at least 1, got {self.num_classes}")

    def check_inputs(self, *inputs: TensorSpec) -> None:
        self.labels_of(inputs[0])

    def labels_of(self, x: TensorSpec) -> tuple[int, ...]:
        """Return the shape of the labels, one number for each anchor and position."""
        fits = x.ndim == 4 and x.shape[1] % self.num_classes == 0
        require(fits, self, f"X must be (N, anchors * {self.num_classes}, H, W), got shape {x.shape}")
        return (x.shape[0], x.shape[1] // self.num_classes, *x.shape[2:])

    def by_class(self, x: Any) -> Any:
        """Return scores as (N, anchors, classes, H, W)."""
        return x.reshape(x.shape[0], x.shape[1] // self.num_classes, self.num_classes, *x.shape[2:])


@register
@dataclass(frozen=True)
class GroupSpatialSoftmax(AnchorArguments):
    """probabilities = the softmax over the ``num_classes`` channels of each anchor."""

    signature = """
        X (N, D, H, W): float, D = anchors * num_classes
        -> probabilities (N, D, H, W): as X
    """
    flops_per_element = 5

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.output("probabilities"), g.d_output("probabilities")]
        return [make_op("GroupSpatialSoftmaxGradient", inputs, [g.d_input("X")])]


@register
@dataclass(frozen=True)
class GroupSpatialSoftmaxGradient(AnchorArguments):
    """dX = p * (dp - the sum of dp * p over the classes of each anchor), with p the probabilities."""

    signature = "probabilities, d_probabilities -> dX"
    flops_per_element = 4


def softmax_by_class(op: AnchorArguments, xp: Any, x: Any) -> Any:
    """Return the softmax of each anchor, (N, anchors, classes, H, W)."""
    rows = op.by_class(x)
    e = xp.exp(rows - rows.max(axis=2, keepdims=True))
    return e / e.sum(axis=2, keepdims=True)


@kernel(GroupSpatialSoftmax)
def group_spatial_softmax(op: GroupSpatialSoftmax, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    return (softmax_by_class(op, ctx.xp, x).reshape(x.shape),)


@kernel(GroupSpatialSoftmaxGradient)
def group_spatial_softmax_gradient(
    op: GroupSpatialSoftmaxGradient, ctx: RunContext, p: Any, dp: Any
) -> tuple[Any, ...]:
    probabilities, d_probabilities = op.by_class(p), op.by_class(dp)
    inner = (probabilities * d_probabilities).sum(axis=2, keepdims=True)
    return ((probabilities * (d_probabilities - inner)).reshape(p.shape),)
