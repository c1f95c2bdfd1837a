"""Trigonometric and hyperbolic functions, with their gradients; Tanh is with the activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.math.unary import Unary, UnaryGradient
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "Acos",
    "AcosGradient",
    "Asin",
    "AsinGradient",
    "Atan",
    "AtanGradient",
    "Cos",
    "CosGradient",
    "Cosh",
    "CoshGradient",
    "Sin",
    "SinGradient",
    "Sinh",
    "SinhGradient",
    "Tan",
    "TanGradient",
]

Arrays = tuple[Any, ...]


@dataclass(frozen=True)
class _Function(Unary):
    """Base of functions whose gradient operator reads X, then dY."""

    inplace = ()

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op(f"{self.type}Gradient", [g.input("X"), g.d_output("Y")], [g.d_input("X")])]


@dataclass(frozen=True)
class _FunctionGradient(UnaryGradient):
    signature = "X, dY -> dX"


@dataclass(frozen=True)
class _Hyperbolic(Unary):
    """Base of functions whose gradient operator reads dY, then X."""

    inplace = ()

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op(f"{self.type}Gradient", [g.d_output("Y"), g.input("X")], [g.d_input("X")])]


@dataclass(frozen=True)
class _HyperbolicGradient(UnaryGradient):
    signature = "dY, X -> dX"


@register
@dataclass(frozen=True)
class Sin(_Function):
    """Y = the sine of X, in radians."""


@register
@dataclass(frozen=True)
class SinGradient(_FunctionGradient):
    """dX = dY * cos(X)."""


@register
@dataclass(frozen=True)
class Cos(_Function):
    """Y = the cosine of X, in radians."""


@register
@dataclass(frozen=True)
class CosGradient(_FunctionGradient):
    """dX = -dY * sin(X)."""


@register
@dataclass(frozen=True)
class Tan(_Function):
    """Y = the tangent of X, in radians."""


@register
@dataclass(frozen=True)
class TanGradient(_FunctionGradient):
    """dX = dY / cos(X) ** 2."""


@register
@dataclass(frozen=True)
class Asin(_Function):
    """Y = the angle in [-pi/2, pi/2] whose sine is X; NaN outside [-1, 1]."""


@register
@dataclass(frozen=True)
class AsinGradient(_FunctionGradient):
    """dX = dY / sqrt(1 - X * X)."""


@register
@dataclass(frozen=True)
class Acos(_Function):
    """Y = the angle in [0, pi] whose cosine is X; NaN outside [-1, 1]."""


@register
@dataclass(frozen=True)
class AcosGradient(_FunctionGradient):
    """dX = -dY / sqrt(1 - X * X)."""


@register
@dataclass(frozen=True)
class Atan(_Function):
    """Y = the angle in (-pi/2, pi/2) whose tangent is X."""


@register
@dataclass(frozen=True)
class AtanGradient(_FunctionGradient):
    """dX = dY / (1 + X * X)."""


@register
@dataclass(frozen=True)
class Sinh(_Hyperbolic):
    """Y = (exp(X) - exp(-X)) / 2."""


@register
@dataclass(frozen=True)
class SinhGradient(_HyperbolicGradient):
    """dX = dY * cosh(X)."""


@register
@dataclass(frozen=True)
class Cosh(_Hyperbolic):
    """Y = (exp(X) + exp(-X)) / 2."""


@register
@dataclass(frozen=True)
class CoshGradient(_HyperbolicGradient):
    """dX = dY * sinh(X)."""


_FUNCTIONS: dict[type[Unary], str] = {
    Sin: "sin",
    Cos: "cos",
    Tan: "tan",
    Asin: "arcsin",
    Acos: "arccos",
    Atan: "arctan",
    Sinh: "sinh",
    Cosh: "cosh",
}

_GRADIENTS: dict[type[UnaryGradient], Callable[[Any, Any, Any], Any]] = {
    SinGradient: lambda xp, x, dy: dy * xp.cos(x),
    CosGradient: lambda xp, x, dy: -dy * xp.sin(x),
    TanGradient: lambda xp, x, dy: dy / xp.square(xp.cos(x)),
    AsinGradient: lambda xp, x, dy: dy / xp.sqrt(1 - x * x),
    AcosGradient: lambda xp, x, dy: -dy / xp.sqrt(1 - x * x),
    AtanGradient: lambda xp, x, dy: dy / (1 + x * x),
    SinhGradient: lambda xp, x, dy: dy * xp.cosh(x),
    CoshGradient: lambda xp, x, dy: dy * xp.sinh(x),
}


def _register_function(cls: type[Unary], name: str) -> None:
    @kernel(cls)
    def function(op: Unary, ctx: RunContext, x: Any) -> Arrays:
        with np.errstate(all="ignore"):
            return (getattr(ctx.xp, name)(x),)


def _register_gradient(cls: type[UnaryGradient], compute: Callable[[Any, Any, Any], Any]) -> None:
    dy_first = cls.inputs[0] == "dY"

    @kernel(cls)
    def gradient(op: UnaryGradient, ctx: RunContext, first: Any, second: Any) -> Arrays:
        x, dy = (second, first) if dy_first else (first, second)
        with np.errstate(all="ignore"):
            return (compute(ctx.xp, x, dy),)


for _cls, _name in _FUNCTIONS.items():
    _register_function(_cls, _name)
for _gradient, _compute in _GRADIENTS.items():
    _register_gradient(_gradient, _compute)
