"""Add, Sub, Mul, Div and their gradients."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from netbuilder.ops.core.broadcasting import Broadcasting, sum_to
from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import Exchange, InBatch, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "Add",
    "AddGradient",
    "BinaryGradient",
    "Div",
    "DivGradient",
    "Mul",
    "MulGradient",
    "Sub",
    "SubGradient",
    "sum_to_operands",
]

Arrays = tuple[Any, ...]


@dataclass(frozen=True)
class _Binary(Broadcasting):
    """Base of arithmetic on two tensors, which are broadcast to a common shape."""

    signature = """
        A (*S): float|int
        B (*T): as A, broadcast to A's shape or, by NumPy's rule, with it
        -> Y (...): as A
    """
    inplace: ClassVar[tuple[tuple[int, int], ...]] = ((0, 0), (1, 0))

    def infer(self, a: TensorSpec, b: TensorSpec) -> tuple[TensorSpec, ...]:
        if a.dtype.kind not in "fiu":
            require(False, self, f"the inputs must be numbers, got {a.dtype}")
        return (a.with_shape(self.joined(a, b)),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.d_output("Y"), self.operand(g, "A"), self.operand(g, "B")]
        return [make_op(self.type + "Gradient", inputs, [g.d_input("A"), g.d_input("B")])]

    def operand(self, g: GradientContext, name: str) -> str:
        """Return the blob that the gradient takes an operand's shape from: the result, if that overwrote it."""
        return g.output("Y") if g.op.input[self.inputs.index(name)] == g.op.output[0] else g.input(name)


@dataclass(frozen=True)
class BinaryGradient(Broadcasting):
    """Base of the gradients of operators on two tensors, which are broadcast to a common shape."""

    signature = "dY, A, B -> dA, dB"
    flops_per_element = 2
    inplace: ClassVar[tuple[tuple[int, int], ...]] = ((0, 0), (0, 1))

    def check_inputs(self, dy: TensorSpec, a: TensorSpec, b: TensorSpec, *y: TensorSpec) -> None:
        shape = self.joined(a, b)
        for name, spec in zip(("dY", "Y"), (dy, *y)):
            require(spec.shape == shape, self, f"{name} must have the shape of the result, {shape}, got {spec.shape}")


def sum_to_operands(op: BinaryGradient, a: Any, b: Any, da: Any, db: Any) -> Arrays:
    """Sum gradients of the broadcast shape to the operands' shapes."""
    view = op.view(a.shape, b.shape)
    return sum_to(da, a.shape, a.shape), sum_to(db, view, b.shape)


@register
@dataclass(frozen=True)
class Add(_Binary):
    """Y = A + B."""

    in_batch = InBatch.LINEAR | InBatch.ROW_BY_ROW
    exchanges = Exchange.BETWEEN_DEVICES


@kernel(Add)
def add(op: Add, ctx: RunContext, a: Any, b: Any) -> Arrays:
    return (ctx.xp.add(*op.aligned(a, b)),)


@register
@dataclass(frozen=True)
class AddGradient(BinaryGradient):
    """dA = dY and dB = dY, each summed over the axes along which its operand was broadcast."""


@kernel(AddGradient)
def add_gradient(op: AddGradient, ctx: RunContext, dy: Any, a: Any, b: Any) -> Arrays:
    return sum_to_operands(op, a, b, dy, dy)


@register
@dataclass(frozen=True)
class Sub(_Binary):
    """Y = A - B."""

    in_batch = InBatch.LINEAR | InBatch.ROW_BY_ROW


@kernel(Sub)
def sub(op: Sub, ctx: RunContext, a: Any, b: Any) -> Arrays:
    return (ctx.xp.subtract(*op.aligned(a, b)),)


@register
@dataclass(frozen=True)
class SubGradient(BinaryGradient):
    """dA = dY and dB = -dY, each summed over the axes along which its operand was broadcast."""


@kernel(SubGradient)
def sub_gradient(op: SubGradient, ctx: RunContext, dy: Any, a: Any, b: Any) -> Arrays:
    return sum_to_operands(op, a, b, dy, -dy)


@register
@dataclass(frozen=True)
class Mul(_Binary):
    """Y = A * B."""

    def operand(self, g: GradientContext, name: str) -> str:
        return g.input(name)  # the gradient reads its elements too


@kernel(Mul)
def mul(op: Mul, ctx: RunContext, a: Any, b: Any) -> Arrays:
    return (ctx.xp.multiply(*op.aligned(a, b)),)


@register
@dataclass(frozen=True)
class MulGradient(BinaryGradient):
    """dA = dY * B and dB = dY * A, each summed over the axes along which its operand was broadcast."""


@kernel(MulGradient)
def mul_gradient(op: MulGradient, ctx: RunContext, dy: Any, a: Any, b: Any) -> Arrays:
    wide_a, wide_b = op.aligned(a, b)
    return sum_to_operands(op, a, b, dy * wide_b, dy * wide_a)


@register
@dataclass(frozen=True)
class Div(_Binary):
    """Y = A / B; the quotient of integers is truncated toward zero."""

    inplace = ((0, 0),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.d_output("Y"), self.operand(g, "A"), g.input("B"), g.output("Y")]
        return [make_op("DivGradient", inputs, [g.d_input("A"), g.d_input("B")])]


@kernel(Div)
def div(op: Div, ctx: RunContext, a: Any, b: Any) -> Arrays:
    a, b = op.aligned(a, b)
    if a.dtype.kind == "f":
        with np.errstate(all="ignore"):  # x / 0 is an infinity, as in C
            return (ctx.xp.divide(a, b),)
    if bool((b == 0).any()):
        raise ZeroDivisionError("Div: the integers of B must not be 0; cast to float, or keep 0 out of B")
    quotient = a // b
    return (quotient + ((quotient < 0) & (quotient * b != a)).astype(a.dtype),)


@register
@dataclass(frozen=True)
class DivGradient(BinaryGradient):
    """dA = dY / B and dB = -dY * Y / B, each summed over the axes along which its operand was broadcast.

    With three inputs, as in older nets, the inputs are B, Y and dY, and A has the shape of Y.
    """

    signature = "dY, A, B, Y? -> dA, dB"
    inplace = ((0, 0),)

    def infer(
        self, dy: TensorSpec, a: TensorSpec, b: TensorSpec, y: TensorSpec | None = None
    ) -> tuple[TensorSpec, ...]:
        return super().infer(dy, a, b, y) if y is not None else super().infer(b, a, dy)


@kernel(DivGradient)
def div_gradient(op: DivGradient, ctx: RunContext, dy: Any, a: Any, b: Any, y: Any = None) -> Arrays:
    if y is None:
        b, y, dy = dy, a, b
        a = y
    wide_b = op.aligned(a, b)[1]
    with np.errstate(all="ignore"):
        da = dy / wide_b
        db = -da * y
    return sum_to_operands(op, a, b, da, db)
