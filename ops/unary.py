"""Functions of one operand, element by element: Negative, Sqr, Sqrt, Exp, Log, Abs, Clip and their like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from netbuilder.ops.contexts import GradientContext, PlanContext, Prepared, RunContext
from netbuilder.ops.operator import Operator, TensorSpec, require
from netbuilder.ops.registry import CPU, kernel, prepare, register
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op

__all__ = [
    "Abs",
    "AbsGradient",
    "Ceil",
    "Clip",
    "ClipGradient",
    "Cos",
    "CosGradient",
    "Cube",
    "CubeGradient",
    "Exp",
    "Floor",
    "Log",
    "Negative",
    "Reciprocal",
    "ReciprocalGradient",
    "Rsqrt",
    "RsqrtGradient",
    "Sign",
    "Sin",
    "SinGradient",
    "Sqr",
    "Sqrt",
]

Arrays = tuple[Any, ...]

_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class _Unary(Operator):
    inputs = ("X",)
    outputs = ("Y",)
    inplace: ClassVar[tuple[tuple[int, int], ...]] = ((0, 0),)
    kinds: ClassVar[str] = "f"  # of dtypes served

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        require(x.dtype.kind in self.kinds, self, f"X must hold {_KINDS[self.kinds]}, got {x.dtype}")
        return (x.plain,)


_KINDS = {"f": "floating-point numbers", "fi": "signed numbers", "fiu": "numbers"}


@dataclass(frozen=True)
class _UnaryGradient(Operator):
    """Base of gradients made of the output's gradient and one more tensor of its shape."""

    outputs = ("dX",)

    def infer(self, first: TensorSpec, second: TensorSpec) -> tuple[TensorSpec, ...]:
        names = " and ".join(self.inputs)
        require(first.shape == second.shape, self, f"{names} must have one shape, got {first.shape}, {second.shape}")
        return (first.plain,)


@register
@dataclass(frozen=True)
class Negative(_Unary):
    """Y = -X."""

    kinds = "fi"

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("Negative", [g.d_output("Y")], [g.d_input("X")])]


@kernel(Negative)
def negative(op: Negative, ctx: RunContext, x: Any) -> Arrays:
    return (-x,)


@register
@dataclass(frozen=True)
class Sqr(_Unary):
    """Y = X * X."""

    kinds = "fiu"

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        # Caffe2 scales the output's gradient in place; it may be another operator's input too (behind a Sum).
        x, dy, dx = g.input("X"), g.d_output("Y"), g.d_input("X")
        return [make_op("Scale", [dy], [dx], scale=2.0), make_op("Mul", [dx, x], [dx])]


@kernel(Sqr)
def sqr(op: Sqr, ctx: RunContext, x: Any) -> Arrays:
    return (x * x,)


@register
@dataclass(frozen=True)
class Sqrt(_Unary):
    """Y = the square root of X; not a number where X is negative."""

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        dx = g.d_input("X")
        return [make_op("Scale", [g.d_output("Y")], [dx], scale=0.5), make_op("Div", [dx, g.output("Y")], [dx])]


@kernel(Sqrt)
def sqrt(op: Sqrt, ctx: RunContext, x: Any) -> Arrays:
    with np.errstate(all="ignore"):
        return (ctx.xp.sqrt(x),)


@register
@dataclass(frozen=True)
class Exp(_Unary):
    """Y = e to the power of X."""

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("Mul", [g.output("Y"), g.d_output("Y")], [g.d_input("X")])]


@kernel(Exp)
def exp(op: Exp, ctx: RunContext, x: Any) -> Arrays:
    with np.errstate(all="ignore"):
        return (ctx.xp.exp(x),)


@register
@dataclass(frozen=True)
class Log(_Unary):
    """Y = the natural logarithm of X."""

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("Div", [g.d_output("Y"), g.input("X")], [g.d_input("X")])]


@kernel(Log)
def log(op: Log, ctx: RunContext, x: Any) -> Arrays:
    with np.errstate(all="ignore"):
        return (ctx.xp.log(x),)


@register
@dataclass(frozen=True)
class Reciprocal(_Unary):
    """Y = 1 / X."""

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("ReciprocalGradient", [g.output("Y"), g.d_output("Y")], [g.d_input("X")])]


@kernel(Reciprocal)
def reciprocal(op: Reciprocal, ctx: RunContext, x: Any) -> Arrays:
    with np.errstate(all="ignore"):
        return (ctx.xp.reciprocal(x),)


@register
@dataclass(frozen=True)
class ReciprocalGradient(_UnaryGradient):
    """dX = -dY * Y * Y."""

    inputs = ("Y", "dY")
    inplace = ((1, 0),)


@kernel(ReciprocalGradient)
def reciprocal_gradient(op: ReciprocalGradient, ctx: RunContext, y: Any, dy: Any) -> Arrays:
    return (-dy * y * y,)


@register
@dataclass(frozen=True)
class Rsqrt(_Unary):
    """Y = 1 / the square root of X."""

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("RsqrtGradient", [g.d_output("Y"), g.output("Y")], [g.d_input("X")])]


@kernel(Rsqrt)
def rsqrt(op: Rsqrt, ctx: RunContext, x: Any) -> Arrays:
    with np.errstate(all="ignore"):
        return (ctx.xp.reciprocal(ctx.xp.sqrt(x)),)


@register
@dataclass(frozen=True)
class RsqrtGradient(_UnaryGradient):
    """dX = -dY * Y * Y * Y / 2."""

    inputs = ("dY", "Y")
    inplace = ((0, 0),)


@kernel(RsqrtGradient)
def rsqrt_gradient(op: RsqrtGradient, ctx: RunContext, dy: Any, y: Any) -> Arrays:
    return (dy * (y * y * y) * y.dtype.type(-0.5),)


@register
@dataclass(frozen=True)
class Abs(_Unary):
    """Y = the absolute value of X; its gradient at 0 is 0."""

    inplace = ()

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("AbsGradient", [g.input("X"), g.d_output("Y")], [g.d_input("X")])]


@kernel(Abs)
def absolute(op: Abs, ctx: RunContext, x: Any) -> Arrays:
    return (ctx.xp.abs(x),)


@register
@dataclass(frozen=True)
class AbsGradient(_UnaryGradient):
    """dX = dY * sign(X)."""

    inputs = ("X", "dY")


@kernel(AbsGradient)
def abs_gradient(op: AbsGradient, ctx: RunContext, x: Any, dy: Any) -> Arrays:
    return (dy * ctx.xp.sign(x),)


@register
@dataclass(frozen=True)
class Sign(_Unary):
    """Y = -1, 0 or 1 by the sign of X; it has no gradient."""

    inplace = ()


@kernel(Sign)
def sign(op: Sign, ctx: RunContext, x: Any) -> Arrays:
    return (ctx.xp.sign(x),)


@register
@dataclass(frozen=True)
class Cube(_Unary):
    """Y = X * X * X."""

    inplace = ()
    kinds = "fi"

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("CubeGradient", [g.d_output("Y"), g.input("X")], [g.d_input("X")])]


@kernel(Cube)
def cube(op: Cube, ctx: RunContext, x: Any) -> Arrays:
    return (x * x * x,)


@register
@dataclass(frozen=True)
class CubeGradient(_UnaryGradient):
    """dX = 3 * dY * X * X."""

    inputs = ("dY", "X")


@kernel(CubeGradient)
def cube_gradient(op: CubeGradient, ctx: RunContext, dy: Any, x: Any) -> Arrays:
    return (dy * x * x * x.dtype.type(3),)


@register
@dataclass(frozen=True)
class Floor(_Unary):
    """Y = the largest whole number not above X; it has no gradient."""


@kernel(Floor)
def floor(op: Floor, ctx: RunContext, x: Any) -> Arrays:
    return (ctx.xp.floor(x),)


@register
@dataclass(frozen=True)
class Ceil(_Unary):
    """Y = the smallest whole number not below X; it has no gradient."""


@kernel(Ceil)
def ceil(op: Ceil, ctx: RunContext, x: Any) -> Arrays:
    return (ctx.xp.ceil(x),)


@register
@dataclass(frozen=True)
class Sin(_Unary):
    """Y = the sine of X, in radians."""

    inplace = ()

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("SinGradient", [g.input("X"), g.d_output("Y")], [g.d_input("X")])]


@kernel(Sin)
def sin(op: Sin, ctx: RunContext, x: Any) -> Arrays:
    return (ctx.xp.sin(x),)


@register
@dataclass(frozen=True)
class SinGradient(_UnaryGradient):
    """dX = dY * cos(X)."""

    inputs = ("X", "dY")


@kernel(SinGradient)
def sin_gradient(op: SinGradient, ctx: RunContext, x: Any, dy: Any) -> Arrays:
    return (dy * ctx.xp.cos(x),)


@register
@dataclass(frozen=True)
class Cos(_Unary):
    """Y = the cosine of X, in radians."""

    inplace = ()

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("CosGradient", [g.input("X"), g.d_output("Y")], [g.d_input("X")])]


@kernel(Cos)
def cos(op: Cos, ctx: RunContext, x: Any) -> Arrays:
    return (ctx.xp.cos(x),)


@register
@dataclass(frozen=True)
class CosGradient(_UnaryGradient):
    """dX = -dY * sin(X)."""

    inputs = ("X", "dY")


@kernel(CosGradient)
def cos_gradient(op: CosGradient, ctx: RunContext, x: Any, dy: Any) -> Arrays:
    return (-dy * ctx.xp.sin(x),)


@register
@dataclass(frozen=True)
class Clip(_Unary):
    """Y = X held within [min, max]; its gradient at the bounds is 0."""

    min: float = -_FLOAT32_MAX
    max: float = _FLOAT32_MAX

    def check(self) -> None:
        if not self.min <= self.max:
            raise ArgumentError(f"Clip: min must not exceed max, got min={self.min}, max={self.max}")

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("ClipGradient", [g.output("Y"), g.d_output("Y")], [g.d_input("X")])]


@kernel(Clip)
def clip(op: Clip, ctx: RunContext, x: Any) -> Arrays:
    kind = x.dtype.type
    return (ctx.xp.minimum(ctx.xp.maximum(x, kind(op.min)), kind(op.max)),)


@register
@dataclass(frozen=True)
class ClipGradient(_UnaryGradient):
    """dX = dY where min < Y < max, else 0."""

    inputs = ("Y", "dY")
    inplace = ((1, 0),)
    min: float = -_FLOAT32_MAX
    max: float = _FLOAT32_MAX


@kernel(ClipGradient)
def clip_gradient(op: ClipGradient, ctx: RunContext, y: Any, dy: Any) -> Arrays:
    kind = y.dtype.type
    return (dy * ((y > kind(op.min)) & (y < kind(op.max))),)


_FUNCTIONS: dict[type[_Unary], Any] = {
    Abs: np.abs,
    Ceil: np.ceil,
    Exp: np.exp,
    Floor: np.floor,
    Log: np.log,
    Negative: np.negative,
    Sqr: np.square,
    Sqrt: np.sqrt,
}


def _prepare_unary(op: _Unary, ctx: PlanContext, x: TensorSpec) -> Prepared:
    """One call of a universal function with ``out``."""
    function = _FUNCTIONS[type(op)]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        call = partial(function, inputs[0], outputs[0])

        def quiet() -> None:
            with np.errstate(all="ignore"):
                call()

        return quiet if isinstance(op, (Exp, Log, Sqrt)) else call

    return Prepared((x.plain,), op.infer(x.plain), bind, inplace=op.inplace, name=f"numpy.{function.__name__}")


for _cls in _FUNCTIONS:
    prepare(_cls, device=CPU)(_prepare_unary)
