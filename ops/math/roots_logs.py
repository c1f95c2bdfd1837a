"""Cbrt, Log1p and Logit, with their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.math.unary import Unary, UnaryGradient
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Cbrt", "CbrtGradient", "Log1p", "Log1pGradient", "Logit", "LogitGradient"]

Arrays = tuple[Any, ...]


@register
@dataclass(frozen=True)
class Cbrt(Unary):
    """Y = the cube root of X."""

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("CbrtGradient", [g.d_output("Y"), g.output("Y")], [g.d_input("X")])]


@register
@dataclass(frozen=True)
class CbrtGradient(UnaryGradient):
    """dX = dY / (3 * Y * Y)."""

    signature = "dY, Y -> dX"
    inplace = ((0, 0),)


@kernel(Cbrt)
def cbrt(op: Cbrt, ctx: RunContext, x: Any) -> Arrays:
    return (narrow(ctx.xp.cbrt(widen(x)), x),)


@kernel(CbrtGradient)
def cbrt_gradient(op: CbrtGradient, ctx: RunContext, dy: Any, y: Any) -> Arrays:
    with np.errstate(all="ignore"):
        return (dy / (3 * y * y),)


@register
@dataclass(frozen=True)
class Log1p(Unary):
    """Y = the natural logarithm of 1 + X, accurate for small X too."""

    inplace = ()

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("Log1pGradient", [g.input("X"), g.d_output("Y")], [g.d_input("X")])]


@register
@dataclass(frozen=True)
class Log1pGradient(UnaryGradient):
    """dX = dY / (1 + X)."""

    signature = "X, dY -> dX"


@kernel(Log1p)
def log1p(op: Log1p, ctx: RunContext, x: Any) -> Arrays:
    with np.errstate(all="ignore"):
        return (ctx.xp.log1p(x),)


@kernel(Log1pGradient)
def log1p_gradient(op: Log1pGradient, ctx: RunContext, x: Any, dy: Any) -> Arrays:
    with np.errstate(all="ignore"):
        return (dy / (1 + x),)


def _check_eps(op: Logit | LogitGradient) -> None:
    if not 0 < op.eps < 0.5:
        raise ArgumentError(f"{op.type}: eps must lie between 0 and 0.5, got {op.eps}")


@register
@dataclass(frozen=True)
class Logit(Unary):
    """Y = log(p / (1 - p)), where p is X clipped to [eps, 1 - eps]."""

    eps: float = 1e-6

    def check(self) -> None:
        _check_eps(self)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("LogitGradient", [g.input("X"), g.d_output("Y")], [g.d_input("X")])]


@register
@dataclass(frozen=True)
class LogitGradient(UnaryGradient):
    """dX = dY / (X * (1 - X)) where X is in [eps, 1 - eps], else 0."""

    signature = "X, dY -> dX"
    eps: float = 1e-6

    def check(self) -> None:
        _check_eps(self)


@kernel(Logit)
def logit(op: Logit, ctx: RunContext, x: Any) -> Arrays:
    xp, wide = ctx.xp, widen(x)
    p = xp.clip(wide, op.eps, 1 - op.eps)
    return (narrow(xp.log(p / (1 - p)), x),)


@kernel(LogitGradient)
def logit_gradient(op: LogitGradient, ctx: RunContext, x: Any, dy: Any) -> Arrays:
    xp, wide = ctx.xp, widen(x)
    inside = (wide >= op.eps) & (wide <= 1 - op.eps)
    p = xp.where(inside, wide, 0.5)
    return (narrow(xp.where(inside, widen(dy) / (p * (1 - p)), 0), dy),)
