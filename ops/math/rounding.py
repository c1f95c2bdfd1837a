"""Absolute value, sign, rounding and clipping: Abs, Sign, Floor, Ceil, Round, Clip."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.math.unary import Unary, UnaryGradient
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Abs", "AbsGradient", "Ceil", "Clip", "ClipGradient", "Floor", "Round", "Sign"]

Arrays = tuple[Any, ...]

_FLOAT32_MAX = float(np.finfo(np.float32).max)


@register
@dataclass(frozen=True)
class Abs(Unary):
    """Y = the absolute value of X; its gradient at 0 is 0."""

    signature = "X (*S): float|int -> Y (*S): as X"
    inplace = ()

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("AbsGradient", [g.input("X"), g.d_output("Y")], [g.d_input("X")])]


@kernel(Abs)
def absolute(op: Abs, ctx: RunContext, x: Any) -> Arrays:
    return (ctx.xp.abs(x),)


@register
@dataclass(frozen=True)
class AbsGradient(UnaryGradient):
    """dX = dY * sign(X)."""

    signature = "X, dY -> dX"


@kernel(AbsGradient)
def abs_gradient(op: AbsGradient, ctx: RunContext, x: Any, dy: Any) -> Arrays:
    return (dy * ctx.xp.sign(x),)


@register
@dataclass(frozen=True)
class Sign(Unary):
    """Y = -1, 0 or 1, the sign of X. No gradient."""

    inplace = ()


@kernel(Sign)
def sign(op: Sign, ctx: RunContext, x: Any) -> Arrays:
    return (ctx.xp.sign(x),)


@register
@dataclass(frozen=True)
class Floor(Unary):
    """Y = the largest integer not above X. No gradient."""


@kernel(Floor)
def floor(op: Floor, ctx: RunContext, x: Any) -> Arrays:
    return (ctx.xp.floor(x),)


@register
@dataclass(frozen=True)
class Ceil(Unary):
    """Y = the smallest integer not below X. No gradient."""


@kernel(Ceil)
def ceil(op: Ceil, ctx: RunContext, x: Any) -> Arrays:
    return (ctx.xp.ceil(x),)


@register
@dataclass(frozen=True)
class Round(Unary):
    """Y = the integer nearest to X, of two the even one. No gradient."""


@kernel(Round)
def round_(op: Round, ctx: RunContext, x: Any) -> Arrays:
    return (ctx.xp.rint(x),)


@register
@dataclass(frozen=True)
class Clip(Unary):
    """Y = X clipped to [min, max]; its gradient at the bounds is 0."""

    min: float = -_FLOAT32_MAX
    max: float = _FLOAT32_MAX

    def check(self) -> None:
        if not self.min <= self.max:
            raise ArgumentError(f"Clip: min must not exceed max, got min={self.min}, max={self.max}")

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("ClipGradient", [g.output("Y"), g.d_output("Y")], [g.d_input("X")])]


def _bounds(op: Clip | ClipGradient, dtype: Any) -> tuple[Any, Any]:
    """Return the bounds in the type of the elements: infinite, if it has no numbers as large."""
    with np.errstate(over="ignore"):
        return dtype.type(op.min), dtype.type(op.max)


@kernel(Clip)
def clip(op: Clip, ctx: RunContext, x: Any) -> Arrays:
    least, most = _bounds(op, x.dtype)
    return (ctx.xp.minimum(ctx.xp.maximum(x, least), most),)


@register
@dataclass(frozen=True)
class ClipGradient(UnaryGradient):
    """dX = dY where min < Y < max, else 0."""

    signature = "Y, dY -> dX"
    inplace = ((1, 0),)
    min: float = -_FLOAT32_MAX
    max: float = _FLOAT32_MAX


@kernel(ClipGradient)
def clip_gradient(op: ClipGradient, ctx: RunContext, y: Any, dy: Any) -> Arrays:
    least, most = _bounds(op, y.dtype)
    return (dy * ((y > least) & (y < most)),)
