"""Elementwise functions of one operand: Negative, powers, roots, Exp and Log; and the base class of all such."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import InBatch, Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "Cube",
    "CubeGradient",
    "Exp",
    "Log",
    "Negative",
    "Reciprocal",
    "ReciprocalGradient",
    "Rsqrt",
    "RsqrtGradient",
    "Sqr",
    "Sqrt",
    "Unary",
    "UnaryGradient",
]

Arrays = tuple[Any, ...]


@dataclass(frozen=True)
class Unary(Operator):
    """Base of elementwise functions of one operand: the output has its shape and type."""

    signature = "X (*S): float -> Y (*S): as X"
    inplace: ClassVar[tuple[tuple[int, int], ...]] = ((0, 0),)
    in_batch: ClassVar[InBatch] = InBatch.ROW_BY_ROW


@dataclass(frozen=True)
class UnaryGradient(Operator):
    """Base of gradients computed from the output's gradient and one more tensor of its shape."""

    signature = "-> dX"


@register
@dataclass(frozen=True)
class Negative(Unary):
    """Y = -X."""

    signature = "X (*S): float|int32|int64 -> Y (*S): as X"
    in_batch = InBatch.LINEAR | InBatch.ROW_BY_ROW

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("Negative", [g.d_output("Y")], [g.d_input("X")])]


@kernel(Negative)
def negative(op: Negative, ctx: RunContext, x: Any) -> Arrays:
    return (-x,)


@register
@dataclass(frozen=True)
class Sqr(Unary):
    """Y = X * X."""

    signature = "X (*S): float|int -> Y (*S): as X"

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        # Caffe2 scales dY in place; here dY may be the gradient of another operator's output too (after a Sum).
        x, dy, dx = g.input("X"), g.d_output("Y"), g.d_input("X")
        return [make_op("Scale", [dy], [dx], scale=2.0), make_op("Mul", [dx, x], [dx])]


@kernel(Sqr)
def sqr(op: Sqr, ctx: RunContext, x: Any) -> Arrays:
    return (x * x,)


@register
@dataclass(frozen=True)
class Sqrt(Unary):
    """Y = the square root of X; NaN where X is negative."""

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        dx = g.d_input("X")
        return [make_op("Scale", [g.d_output("Y")], [dx], scale=0.5), make_op("Div", [dx, g.output("Y")], [dx])]


@kernel(Sqrt)
def sqrt(op: Sqrt, ctx: RunContext, x: Any) -> Arrays:
    with np.errstate(all="ignore"):
        return (ctx.xp.sqrt(x),)


@register
@dataclass(frozen=True)
class Exp(Unary):
    """Y = e to the power of X."""

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("Mul", [g.output("Y"), g.d_output("Y")], [g.d_input("X")])]


@kernel(Exp)
def exp(op: Exp, ctx: RunContext, x: Any) -> Arrays:
    with np.errstate(all="ignore"):
        return (ctx.xp.exp(x),)


@register
@dataclass(frozen=True)
class Log(Unary):
    """Y = the natural logarithm of X."""

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("Div", [g.d_output("Y"), g.input("X")], [g.d_input("X")])]


@kernel(Log)
def log(op: Log, ctx: RunContext, x: Any) -> Arrays:
    with np.errstate(all="ignore"):
        return (ctx.xp.log(x),)


@register
@dataclass(frozen=True)
class Reciprocal(Unary):
    """Y = 1 / X."""

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("ReciprocalGradient", [g.output("Y"), g.d_output("Y")], [g.d_input("X")])]


@kernel(Reciprocal)
def reciprocal(op: Reciprocal, ctx: RunContext, x: Any) -> Arrays:
    with np.errstate(all="ignore"):
        return (ctx.xp.reciprocal(x),)


@register
@dataclass(frozen=True)
class ReciprocalGradient(UnaryGradient):
    """dX = -dY * Y * Y."""

    signature = "Y, dY -> dX"
    inplace = ((1, 0),)


@kernel(ReciprocalGradient)
def reciprocal_gradient(op: ReciprocalGradient, ctx: RunContext, y: Any, dy: Any) -> Arrays:
    return (-dy * y * y,)


@register
@dataclass(frozen=True)
class Rsqrt(Unary):
    """Y = 1 / the square root of X."""

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("RsqrtGradient", [g.d_output("Y"), g.output("Y")], [g.d_input("X")])]


@kernel(Rsqrt)
def rsqrt(op: Rsqrt, ctx: RunContext, x: Any) -> Arrays:
    with np.errstate(all="ignore"):
        return (ctx.xp.reciprocal(ctx.xp.sqrt(x)),)


@register
@dataclass(frozen=True)
class RsqrtGradient(UnaryGradient):
    """dX = -dY * Y * Y * Y / 2."""

    signature = "dY, Y -> dX"
    inplace = ((0, 0),)


@kernel(RsqrtGradient)
def rsqrt_gradient(op: RsqrtGradient, ctx: RunContext, dy: Any, y: Any) -> Arrays:
    return (dy * (y * y * y) * y.dtype.type(-0.5),)


@register
@dataclass(frozen=True)
class Cube(Unary):
    """Y = X * X * X."""

    signature = "X (*S): float|int32|int64 -> Y (*S): as X"
    inplace = ()

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("CubeGradient", [g.d_output("Y"), g.input("X")], [g.d_input("X")])]


@kernel(Cube)
def cube(op: Cube, ctx: RunContext, x: Any) -> Arrays:
    return (x * x * x,)


@register
@dataclass(frozen=True)
class CubeGradient(UnaryGradient):
    """dX = 3 * dY * X * X."""

    signature = "dY (*S): float, X: as dY -> dX"


@kernel(CubeGradient)
def cube_gradient(op: CubeGradient, ctx: RunContext, dy: Any, x: Any) -> Arrays:
    return (dy * x * x * x.dtype.type(3),)
