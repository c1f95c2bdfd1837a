"""Base classes of SoftmaxWithLoss, SpatialSoftmaxWithLoss and their gradients: inputs, shapes, gradient and flops."""

from __future__ import annotations

import abc

from netbuilder.ops.core.contexts import GradientContext
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["LabelLoss", "LabelLossBackward", "LabelLossForward"]


@dataclass(frozen=True)
class LabelLoss(Operator, abc.ABC):
    """Base of a loss and of its gradient."""

    scale: float = 1.0

    def check(self) -> None:
        if self.scale < 0:
            raise ArgumentError(f"{self.type}: scale must not be negative, got {self.scale}")

    @abc.abstractmethod
    def check_labels(self, x: TensorSpec, label: TensorSpec, weight: TensorSpec | None) -> None:
        """Raise ShapeError unless label and weight fit X."""


@dataclass(frozen=True)
class LabelLossForward(LabelLoss):
    """Base of a loss: its outputs are P, of the shape of X, and the loss, a scalar."""

    signature = "X, label, weight? -> P, loss"
    flops_per_element = 6

    def infer(self, x: TensorSpec, label: TensorSpec, weight: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        self.check_labels(x, label, weight)
        return (x.plain, x.with_shape(()))

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input(i) for i in range(self.n_in)] + [g.output("P"), g.d_output("loss")]
        return [make_op(f"{self.type}Gradient", inputs, [g.d_input("X")])]


@dataclass(frozen=True)
class LabelLossBackward(LabelLoss):
    """Base of a loss's gradient: it computes dX from the inputs of the loss, P, and dloss."""

    signature = "X, label, weight_or_P, P_or_dloss, dloss? -> dX"
    flops_per_element = 3

    def infer(self, x: TensorSpec, label: TensorSpec, *others: TensorSpec) -> tuple[TensorSpec, ...]:
        *weight, p, dloss = others
        self.check_labels(x, label, weight[0] if weight else None)
        require(
            p.plain == x.plain, self, f"P must have shape and type of X, {x.shape} {x.dtype}, got {p.shape} {p.dtype}"
        )
        require(dloss.size == 1, self, f"the gradient of the loss must be one number, got shape {dloss.shape}")
        return (x.plain,)
