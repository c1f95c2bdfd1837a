"""Pow: powers with a fixed exponent, or with exponents from a second operand."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.broadcasting import Broadcasting
from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.math.elementwise import BinaryGradient, sum_to_operands
from netbuilder.proto import ArgumentError, GradientError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Pow", "PowGradient"]


@register
@dataclass(frozen=True)
class Pow(Broadcasting):
    """Y = X to the power of ``exponent``, or of the second input, which is broadcast as in Add."""

    signature = """
        X (*S): float|int
        E? (...): as X, broadcast as in Add
        -> Y (...): as X
    """
    inplace = ((0, 0), (1, 0))
    copy_arguments = False
    exponent: float | None = None

    def check(self) -> None:
        super().check()
        if self.n_in < 2 and self.exponent is None:
            raise ArgumentError("Pow: give the argument exponent, or a second input")

    def infer(self, x: TensorSpec, e: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        require(
            x.dtype.kind == "f" or x.dtype.kind in "iu" and e is not None,
            self,
            f"X must hold floating-point numbers, or integers with a second input, got {x.dtype}",
        )
        return (x.plain if e is None else x.with_shape(self.joined(x, e)),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        if len(g.op.input) == 1:
            return self._fixed_exponent_gradient(g)
        return self._two_input_gradient(g)

    def _fixed_exponent_gradient(self, g: GradientContext) -> list[OperatorDef]:
        exponent = self.exponent or 0.0
        dy, dx = g.d_output("Y"), g.d_input("X")
        if g.op.input[0] == g.op.output[0]:
            # X is overwritten; where it was positive it is Y to the power of 1 / exponent.
            if exponent == 0.0:
                raise GradientError(
                    "Pow: in place with exponent 0, X cannot be recovered from Y; give the output another name"
                )
            base, power = g.output("Y"), (exponent - 1.0) / exponent
        else:
            base, power = g.input("X"), exponent - 1.0
        # In place, dX and dY are one blob, which must not be overwritten before it is read.
        part = dx if dx != dy else f"{dx}_autogen_power"
        return [
            make_op("Pow", [base], [part], exponent=power),
            make_op("Mul", [part, dy], [dx]),
            make_op("Scale", [dx], [dx], scale=exponent),
        ]

    def _two_input_gradient(self, g: GradientContext) -> list[OperatorDef]:
        args: dict[str, Any] = {"broadcast": 1, "axis": self.axis, "axis_str": self.axis_str, "order": self.order}
        inputs = [g.d_output("Y"), g.input("X"), g.input("E"), g.output("Y")]
        outputs = [g.d_input("X"), g.d_input("E")]
        return [make_op("PowGradient", inputs, outputs, **(args if self.broadcast else {}))]

    def flops(self, x: TensorSpec, e: TensorSpec | None = None) -> int:
        return 10 * self.infer(x, e)[0].size


@kernel(Pow)
def power(op: Pow, ctx: RunContext, x: Any, e: Any = None) -> tuple[Any, ...]:
    with np.errstate(all="ignore"):
        if e is not None and x.dtype.kind in "iu":
            return (_integer_power(ctx, *op.aligned(x, e)),)
        if e is not None:
            return (ctx.xp.power(*op.aligned(x, e)),)
        if op.exponent == 2.0:
            return (x * x,)
        return (ctx.xp.power(x, x.dtype.type(op.exponent)),)


def _integer_power(ctx: RunContext, x: Any, e: Any) -> Any:
    """Return the powers of integers; with a negative exponent truncated toward zero, as by C's pow and a cast."""
    if e.dtype.kind == "u" or not bool((e < 0).any()):
        return ctx.xp.power(x, e)
    below = ctx.xp.where(e < 0, ctx.xp.where(ctx.xp.abs(x) == 1, x ** (e & 1), 0), 0)
    return ctx.xp.where(e < 0, below, ctx.xp.power(x, ctx.xp.maximum(e, 0))).astype(x.dtype)


@register
@dataclass(frozen=True)
class PowGradient(BinaryGradient):
    """dX = dY * E * X^(E - 1) and dE = dY * Y * log(X), each summed over the axes along which it was broadcast."""

    signature = "dY, X, E, Y -> dX, dE"
    inplace = ((0, 0), (0, 1))


@kernel(PowGradient)
def power_gradient(op: PowGradient, ctx: RunContext, dy: Any, x: Any, e: Any, y: Any) -> tuple[Any, ...]:
    wide_x, wide_e = op.aligned(x, e)
    with np.errstate(all="ignore"):
        dx = dy * wide_e * ctx.xp.power(wide_x, wide_e - 1)
        de = dy * y * ctx.xp.log(wide_x)
    return sum_to_operands(op, x, e, dx, de)
