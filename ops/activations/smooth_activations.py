"""Smooth activations: Softplus, Softsign, Swish, Gelu, Mish and Selu, with their gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from netbuilder.ops.activations.activations import Activation, ActivationGradient, logistic
from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.math.error_function import normal_cdf, normal_density
from netbuilder.ops.math.unary import Unary, UnaryGradient
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "Gelu",
    "GeluGradient",
    "Mish",
    "MishGradient",
    "Selu",
    "SeluGradient",
    "Softplus",
    "SoftplusGradient",
    "Softsign",
    "SoftsignGradient",
    "Swish",
    "SwishGradient",
]

Arrays = tuple[Any, ...]


@register
@dataclass(frozen=True)
class Softplus(Activation):
    """Y = log(1 + exp(X)), computed so that it does not overflow.

    Source: Dugas et al., "Incorporating Second-Order Functional Knowledge for Better Option Pricing", 2000.
    """


@register
@dataclass(frozen=True)
class SoftplusGradient(ActivationGradient):
    """dX = dY * (1 - exp(-Y))."""


@kernel(Softplus)
def softplus(op: Softplus, ctx: RunContext, x: Any) -> Arrays:
    xp = ctx.xp
    return (xp.maximum(x, 0) + xp.log1p(xp.exp(-xp.abs(x))),)


@kernel(SoftplusGradient)
def softplus_gradient(op: SoftplusGradient, ctx: RunContext, y: Any, dy: Any) -> Arrays:
    return (dy * -ctx.xp.expm1(-y),)


@register
@dataclass(frozen=True)
class Selu(Activation):
    """Y = scale * X where X > 0, else scale * alpha * (exp(X) - 1).

    Source: Klambauer et al., "Self-Normalizing Neural Networks", 2017, arXiv:1706.02515.
    """

    alpha: float = 1.6732632423543772848170429916717
    scale: float = 1.0507009873554804934193349852946


@register
@dataclass(frozen=True)
class SeluGradient(ActivationGradient):
    """dX = scale * dY where Y > 0, else dY * (Y + scale * alpha)."""

    alpha: float = 1.6732632423543772848170429916717
    scale: float = 1.0507009873554804934193349852946


@kernel(Selu)
def selu(op: Selu, ctx: RunContext, x: Any) -> Arrays:
    xp = ctx.xp
    return (op.scale * xp.where(x > 0, x, op.alpha * xp.expm1(xp.minimum(x, 0))),)


@kernel(SeluGradient)
def selu_gradient(op: SeluGradient, ctx: RunContext, y: Any, dy: Any) -> Arrays:
    return (ctx.xp.where(y > 0, op.scale * dy, dy * (y + op.scale * op.alpha)),)


@register
@dataclass(frozen=True)
class Softsign(Unary):
    """Y = X / (1 + |X|).

    Source: Turian et al., "Quadratic Features and Deep Architectures for Chunking", 2009.
    """

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("SoftsignGradient", [g.input("X"), g.d_output("Y")], [g.d_input("X")])]


@register
@dataclass(frozen=True)
class SoftsignGradient(UnaryGradient):
    """dX = dY / (1 + |X|) ** 2."""

    signature = "X, dY -> dX"
    inplace = ((1, 0),)


@kernel(Softsign)
def softsign(op: Softsign, ctx: RunContext, x: Any) -> Arrays:
    return (x / (1 + ctx.xp.abs(x)),)


@kernel(SoftsignGradient)
def softsign_gradient(op: SoftsignGradient, ctx: RunContext, x: Any, dy: Any) -> Arrays:
    below = 1 + ctx.xp.abs(x)
    return (dy / below / below,)


@register
@dataclass(frozen=True)
class Gelu(Unary):
    """Y = X * P(X), with P the distribution function of the standard normal.

    With ``fast_gelu``, the approximation Y = X / 2 * (1 + tanh(sqrt(2 / pi) * (X + 0.044715 * X ** 3))).

    Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016, arXiv:1606.08415.
    """

    inplace = ()
    flops_per_element = 8
    fast_gelu: bool = False

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("GeluGradient", [g.d_output("Y"), g.input("X")], [g.d_input("X")])]


@register
@dataclass(frozen=True)
class GeluGradient(UnaryGradient):
    """dX = dY times the derivative of Gelu at X."""

    signature = "dY, X -> dX"
    flops_per_element = 10
    fast_gelu: bool = False


_RATE, _CUBIC = math.sqrt(2 / math.pi), 0.044715


@kernel(Gelu)
def gelu(op: Gelu, ctx: RunContext, x: Any) -> Arrays:
    xp, wide = ctx.xp, widen(x)
    if op.fast_gelu:
        return (narrow(wide * (0.5 * xp.tanh(wide * (_RATE + _RATE * _CUBIC * (wide * wide))) + 0.5), x),)
    return (narrow(wide * normal_cdf(xp, wide), x),)


@kernel(GeluGradient)
def gelu_gradient(op: GeluGradient, ctx: RunContext, dy: Any, x: Any) -> Arrays:
    xp, wide = ctx.xp, widen(x)
    if op.fast_gelu:
        squares = wide * wide
        t = xp.tanh(wide * (_RATE + _RATE * _CUBIC * squares))
        inner = wide * (_RATE + 3 * _RATE * _CUBIC * squares)
        slope = 0.5 * (1 + t) + 0.5 * (1 - t * t) * inner
    else:
        slope = normal_cdf(xp, wide) + wide * normal_density(xp, wide)
    return (narrow(widen(dy) * slope, dy),)


@dataclass(frozen=True)
class _GradientFromBoth(Operator):
    """Base of gradients that read both X and Y."""

    signature = "X, Y, dY -> dX"
    flops_per_element = 6


@dataclass(frozen=True)
class _WithGradientFromBoth(Unary):
    """Base of activations whose gradients read both X and Y."""

    inplace = ()
    flops_per_element = 5

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("X"), g.output("Y"), g.d_output("Y")]
        return [make_op(f"{self.type}Gradient", inputs, [g.d_input("X")])]


@register
@dataclass(frozen=True)
class Swish(_WithGradientFromBoth):
    """Y = X / (1 + exp(-X)).

    Source: Ramachandran et al., "Searching for Activation Functions", 2017, arXiv:1710.05941.
    """


@register
@dataclass(frozen=True)
class SwishGradient(_GradientFromBoth):
    """dX = dY * (Y + (1 - Y) / (1 + exp(-X)))."""

    inplace = ((2, 0),)


@kernel(Swish)
def swish(op: Swish, ctx: RunContext, x: Any) -> Arrays:
    return (x * logistic(ctx.xp, x),)


@kernel(SwishGradient)
def swish_gradient(op: SwishGradient, ctx: RunContext, x: Any, y: Any, dy: Any) -> Arrays:
    return (dy * (y + logistic(ctx.xp, x) * (1 - y)),)


@register
@dataclass(frozen=True)
class Mish(_WithGradientFromBoth):
    """Y = X * tanh(log(1 + exp(X))).

    Source: Misra, "Mish: A Self Regularized Non-Monotonic Activation Function", 2019, arXiv:1908.08681.
    """


@register
@dataclass(frozen=True)
class MishGradient(_GradientFromBoth):
    """dX = dY * (t + X * (1 - t * t) / (1 + exp(-X))), where t = tanh(log(1 + exp(X)))."""


def _tanh_softplus(xp: Any, x: Any) -> Any:
    e = xp.exp(-xp.abs(x))
    square = xp.where(x >= 0, 1 + 2 * e, e * (e + 2))  # (1 + exp(X)) ** 2 - 1, times exp(-2 * X) where X >= 0
    return square / (square + xp.where(x >= 0, 2 * e * e, 2))


@kernel(Mish)
def mish(op: Mish, ctx: RunContext, x: Any) -> Arrays:
    return (x * _tanh_softplus(ctx.xp, x),)


@kernel(MishGradient)
def mish_gradient(op: MishGradient, ctx: RunContext, x: Any, y: Any, dy: Any) -> Arrays:
    t = _tanh_softplus(ctx.xp, x)
    with np.errstate(under="ignore"):
        return (dy * (t + x * logistic(ctx.xp, x) * (1 - t * t)),)
