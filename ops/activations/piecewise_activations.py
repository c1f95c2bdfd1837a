"""Piecewise linear activations: HardSigmoid, ThresholdedRelu and ReluN, with their gradients."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.activations.activations import Activation, ActivationGradient
from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "HardSigmoid",
    "HardSigmoidGradient",
    "ReluN",
    "ReluNGradient",
    "ThresholdedRelu",
    "ThresholdedReluGradient",
]

Arrays = tuple[Any, ...]


@register
@dataclass(frozen=True)
class HardSigmoid(Activation):
    """Y = alpha * X + beta, clipped to [0, 1].

    Source: Courbariaux, Bengio and David, "BinaryConnect", 2015, arXiv:1511.00363.
    """

    alpha: float = 0.2
    beta: float = 0.5


@register
@dataclass(frozen=True)
class HardSigmoidGradient(ActivationGradient):
    """dX = alpha * dY where 0 < Y < 1, else 0."""

    alpha: float = 0.2


@kernel(HardSigmoid)
def hard_sigmoid(op: HardSigmoid, ctx: RunContext, x: Any) -> Arrays:
    return (ctx.xp.clip(op.alpha * x + op.beta, 0, 1),)


@kernel(HardSigmoidGradient)
def hard_sigmoid_gradient(op: HardSigmoidGradient, ctx: RunContext, y: Any, dy: Any) -> Arrays:
    return (dy * ((y > 0) & (y < 1)) * dy.dtype.type(op.alpha),)


@register
@dataclass(frozen=True)
class ThresholdedRelu(Activation):
    """Y = X where X > alpha, else 0.

    Source: Konda, Memisevic and Krueger, "Zero-bias autoencoders and the benefits of co-adapting features", 2014,
    arXiv:1402.3337.
    """

    alpha: float = 1.0


@register
@dataclass(frozen=True)
class ThresholdedReluGradient(ActivationGradient):
    """dX = dY where Y > 0, else 0."""

    alpha: float = 1.0


@kernel(ThresholdedRelu)
def thresholded_relu(op: ThresholdedRelu, ctx: RunContext, x: Any) -> Arrays:
    return (ctx.xp.where(x > op.alpha, x, x.dtype.type(0)),)


@kernel(ThresholdedReluGradient)
def thresholded_relu_gradient(op: ThresholdedReluGradient, ctx: RunContext, y: Any, dy: Any) -> Arrays:
    return (dy * (y > 0),)


@register
@dataclass(frozen=True)
class ReluN(Activation):
    """Y = X clipped to [0, n].

    Source: Krizhevsky, "Convolutional Deep Belief Networks on CIFAR-10", 2010.
    """

    n: float = 6.0

    def check(self) -> None:
        if self.n <= 0:
            raise ArgumentError(f"ReluN: n must be positive, got {self.n}")


@register
@dataclass(frozen=True)
class ReluNGradient(ActivationGradient):
    """dX = dY where 0 < Y < n, else 0."""

    n: float = 6.0


@kernel(ReluN)
def relu_n(op: ReluN, ctx: RunContext, x: Any) -> Arrays:
    return (ctx.xp.clip(x, 0, op.n),)


@kernel(ReluNGradient)
def relu_n_gradient(op: ReluNGradient, ctx: RunContext, y: Any, dy: Any) -> Arrays:
    return (dy * ((y > 0) & (y < op.n)),)
