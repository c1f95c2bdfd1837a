"""Elementwise activations whose gradients are computed from Y: Relu, LeakyRelu, Elu, Sigmoid and Tanh."""

from __future__ import annotations

from typing import Any, ClassVar

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import InBatch, Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import GradientError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "Elu",
    "EluGradient",
    "LeakyRelu",
    "LeakyReluGradient",
    "Relu",
    "ReluGradient",
    "Sigmoid",
    "SigmoidGradient",
    "Tanh",
    "TanhGradient",
]


@dataclass(frozen=True)
class Activation(Operator):
    """Base of elementwise functions whose derivative can be computed from their value."""

    signature = "X (*S): float -> Y (*S): as X"
    inplace = ((0, 0),)
    in_batch: ClassVar[InBatch] = InBatch.ROW_BY_ROW

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op(self.type + "Gradient", [g.output("Y"), g.d_output("Y")], [g.d_input("X")])]


@dataclass(frozen=True)
class _WithAlpha(Activation):
    """Base of activations that are X where X >= 0, with a factor ``alpha`` elsewhere."""

    alpha: float = 1.0

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        if self.alpha < 0:
            raise GradientError(
                f"{self.type}: its gradient takes the sign of X from that of Y, so alpha must be at least 0, got "
                f"{self.alpha}; use PRelu, whose slope may be negative"
            )
        return super().gradient(g)


def is_passed(op: Any, y: Any) -> Any:
    """Return where the gradient passes through a LeakyRelu or Elu unchanged."""
    return y > 0 if op.alpha == 0 else y >= 0


@dataclass(frozen=True)
class ActivationGradient(Operator):
    """Base of gradients dX = dY * f'(X), with the derivative f'(X) computed from Y = f(X)."""

    signature = "Y, dY -> dX"
    inplace = ((1, 0),)


@register
@dataclass(frozen=True)
class Relu(Activation):
    """Y = max(X, 0).

    Source: Nair and Hinton, "Rectified Linear Units Improve Restricted Boltzmann Machines", 2010.
    """


@register
@dataclass(frozen=True)
class ReluGradient(ActivationGradient):
    """dX = dY where Y > 0, else 0."""


@register
@dataclass(frozen=True)
class LeakyRelu(_WithAlpha):
    """Y = X where X >= 0, else alpha * X.

    Source: Maas, Hannun and Ng, "Rectifier Nonlinearities Improve Neural Network Acoustic Models", 2013.
    """

    alpha: float = 0.01


@register
@dataclass(frozen=True)
class LeakyReluGradient(ActivationGradient):
    """dX = dY where Y >= 0, else alpha * dY; with alpha = 0, where Y is 0 for all negative X, dX = 0 where Y = 0."""

    alpha: float = 0.01


@register
@dataclass(frozen=True)
class Elu(_WithAlpha):
    """Y = X where X >= 0, else alpha * (exp(X) - 1).

    Source: Clevert et al., "Fast and Accurate Deep Network Learning by ELUs", 2015, arXiv:1511.07289.
    """

    alpha: float = 1.0


@register
@dataclass(frozen=True)
class EluGradient(ActivationGradient):
    """dX = dY where Y >= 0, else dY * (Y + alpha); with alpha = 0, dX = 0 where Y = 0."""

    alpha: float = 1.0


@register
@dataclass(frozen=True)
class Sigmoid(Activation):
    """Y = 1 / (1 + exp(-X))."""


@register
@dataclass(frozen=True)
class SigmoidGradient(ActivationGradient):
    """dX = dY * Y * (1 - Y)."""


@register
@dataclass(frozen=True)
class Tanh(Activation):
    """Y = tanh(X)."""


@register
@dataclass(frozen=True)
class TanhGradient(ActivationGradient):
    """dX = dY * (1 - Y * Y)."""


@kernel(Relu)
def relu(op: Relu, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    return (ctx.xp.maximum(x, 0),)


@kernel(ReluGradient)
def relu_gradient(op: ReluGradient, ctx: RunContext, y: Any, dy: Any) -> tuple[Any, ...]:
    return (dy * (y > 0),)


@kernel(LeakyRelu)
def leaky_relu(op: LeakyRelu, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    if op.alpha == 0:
        return (ctx.xp.maximum(x, 0),)  # 0 * -inf would be NaN
    return (ctx.xp.where(x >= 0, x, op.alpha * x),)


@kernel(LeakyReluGradient)
def leaky_relu_gradient(op: LeakyReluGradient, ctx: RunContext, y: Any, dy: Any) -> tuple[Any, ...]:
    return (ctx.xp.where(is_passed(op, y), dy, op.alpha * dy),)


@kernel(Elu)
def elu(op: Elu, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    xp = ctx.xp
    return (xp.where(x >= 0, x, op.alpha * xp.expm1(xp.minimum(x, 0))),)


@kernel(EluGradient)
def elu_gradient(op: EluGradient, ctx: RunContext, y: Any, dy: Any) -> tuple[Any, ...]:
    return (ctx.xp.where(is_passed(op, y), dy, dy * (y + op.alpha)),)


def logistic(xp: Any, x: Any) -> Any:
    """Return 1 / (1 + exp(-x))."""
    e = xp.exp(-xp.abs(x))  # never overflows
    of_magnitude = 1 / (1 + e)
    return xp.where(x >= 0, of_magnitude, e * of_magnitude)


@kernel(Sigmoid)
def sigmoid(op: Sigmoid, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    return (logistic(ctx.xp, x),)


@kernel(SigmoidGradient)
def sigmoid_gradient(op: SigmoidGradient, ctx: RunContext, y: Any, dy: Any) -> tuple[Any, ...]:
    return (dy * y * (1 - y),)


@kernel(Tanh)
def tanh(op: Tanh, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    return (ctx.xp.tanh(x),)


@kernel(TanhGradient)
def tanh_gradient(op: TanhGradient, ctx: RunContext, y: Any, dy: Any) -> tuple[Any, ...]:
    return (dy * (1 - y * y),)
