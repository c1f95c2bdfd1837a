"""Sin, Cos and their gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from netbuilder.ops.contexts import GradientContext, RunContext
from netbuilder.ops.registry import kernel, register
from netbuilder.ops.unary import Unary, UnaryGradient
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op

__all__ = ["Cos", "CosGradient", "Sin", "SinGradient"]

Arrays = tuple[Any, ...]


@register
@dataclass(frozen=True)
class Sin(Unary):
    """Y = the sine of X, in radians."""

    inplace = ()

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("SinGradient", [g.input("X"), g.d_output("Y")], [g.d_input("X")])]


@kernel(Sin)
def sin(op: Sin, ctx: RunContext, x: Any) -> Arrays:
    return (ctx.xp.sin(x),)


@register
@dataclass(frozen=True)
class SinGradient(UnaryGradient):
    """dX = dY * cos(X)."""

    inputs = ("X", "dY")


@kernel(SinGradient)
def sin_gradient(op: SinGradient, ctx: RunContext, x: Any, dy: Any) -> Arrays:
    return (dy * ctx.xp.cos(x),)


@register
@dataclass(frozen=True)
class Cos(Unary):
    """Y = the cosine of X, in radians."""

    inplace = ()

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("CosGradient", [g.input("X"), g.d_output("Y")], [g.d_input("X")])]


@kernel(Cos)
def cos(op: Cos, ctx: RunContext, x: Any) -> Arrays:
    return (ctx.xp.cos(x),)


@register
@dataclass(frozen=True)
class CosGradient(UnaryGradient):
    """dX = -dY * sin(X)."""

    inputs = ("X", "dY")


@kernel(CosGradient)
def cos_gradient(op: CosGradient, ctx: RunContext, x: Any, dy: Any) -> Arrays:
    return (-dy * ctx.xp.sin(x),)
