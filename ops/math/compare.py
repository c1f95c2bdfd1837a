"""Comparisons (EQ, NE, LT, LE, GT, GE), logic (And, Or, Xor, Not), Where and Conditional."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np

from netbuilder.ops.core.broadcasting import Broadcasting, broadcast_shape, sum_to
from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["EQ", "GE", "GT", "LE", "LT", "NE", "And", "Conditional", "Not", "Or", "Where", "WhereGradient", "Xor"]

_BOOL = np.dtype(np.bool_)


@dataclass(frozen=True)
class _Comparison(Broadcasting):
    """Base of comparisons of two tensors, element by element."""

    signature = """
        A (*S): float|int|bool
        B (...): as A, broadcast as in Add
        -> Y (...): bool, of the shape of Add's result
    """
    inplace: ClassVar[tuple[tuple[int, int], ...]] = ()
    kinds: ClassVar[str] = "fiub"  # the dtype kinds supported

    def infer(self, a: TensorSpec, b: TensorSpec) -> tuple[TensorSpec, ...]:
        require(a.dtype.kind in self.kinds, self, f"cannot compare elements of type {a.dtype}")
        return (TensorSpec(self.joined(a, b), _BOOL),)


@register
@dataclass(frozen=True)
class EQ(_Comparison):
    """Y = whether A equals B, element by element. No gradient."""


@register
@dataclass(frozen=True)
class NE(_Comparison):
    """Y = whether A differs from B, element by element. No gradient."""


@register
@dataclass(frozen=True)
class LT(_Comparison):
    """Y = A < B, element by element; false is less than true. No gradient."""


@register
@dataclass(frozen=True)
class LE(_Comparison):
    """Y = A <= B, element by element; false is less than true. No gradient."""


@register
@dataclass(frozen=True)
class GT(_Comparison):
    """Y = A > B, element by element; false is less than true. No gradient."""


@register
@dataclass(frozen=True)
class GE(_Comparison):
    """Y = A >= B, element by element; false is less than true. No gradient."""


@dataclass(frozen=True)
class _Logic(_Comparison):
    """Base of logic of two tensors, element by element."""

    signature = """
        A (*S): bool
        B (...): bool, broadcast as in Add
        -> Y (...): bool, of the shape of Add's result
    """
    inplace = ((0, 0),)
    kinds = "b"


@register
@dataclass(frozen=True)
class And(_Logic):
    """Y = A and B, element by element. No gradient."""


@register
@dataclass(frozen=True)
class Or(_Logic):
    """Y = A or B, element by element. No gradient."""


@register
@dataclass(frozen=True)
class Xor(_Logic):
    """Y = A or B but not both, element by element. No gradient."""


_FUNCTIONS = {
    EQ: "equal",
    NE: "not_equal",
    LT: "less",
    LE: "less_equal",
    GT: "greater",
    GE: "greater_equal",
    And: "logical_and",
    Or: "logical_or",
    Xor: "logical_xor",
}


def _compare(op: _Comparison, ctx: RunContext, a: Any, b: Any) -> tuple[Any, ...]:
    return (getattr(ctx.xp, _FUNCTIONS[type(op)])(*op.aligned(a, b)),)


for _cls in _FUNCTIONS:
    kernel(_cls)(_compare)


@register
@dataclass(frozen=True)
class Not(Operator):
    """Y = not X, element by element. No gradient."""

    signature = "X (*S): bool -> Y (*S): bool"


@kernel(Not)
def logical_not(op: Not, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    return (ctx.xp.logical_not(x),)


@dataclass(frozen=True)
class _Choice(Operator):
    broadcast_on_rows: bool = False

    def mask_shape(self, c: tuple[int, ...], x: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of C in which it is broadcast by NumPy's rule."""
        if not self.broadcast_on_rows:
            return c
        require(len(c) == 1 and c == x[:1], self, f"C must have one element for each row of X {x}, got shape {c}")
        return c + (1,) * (len(x) - 1)


@register
@dataclass(frozen=True)
class Where(_Choice):
    """Y = X where C is true, else Z, broadcast as by NumPy; with ``broadcast_on_rows`` C has one element per row."""

    signature = """
        C (...): bool
        X (...): any
        Z (...): as X
        -> Y (...): as X
    """

    def infer(self, c: TensorSpec, x: TensorSpec, z: TensorSpec) -> tuple[TensorSpec, ...]:
        self.check_specs(c, x, z)
        return (x.with_shape(broadcast_shape(self, C=self.mask_shape(c.shape, x.shape), X=x.shape, Z=z.shape)),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("C"), g.input("X"), g.input("Z"), g.d_output("Y")]
        return [make_op("WhereGradient", inputs, [g.d_input("X"), g.d_input("Z")])]


@kernel(Where)
def where(op: Where, ctx: RunContext, c: Any, x: Any, z: Any) -> tuple[Any, ...]:
    return (ctx.xp.where(c.reshape(op.mask_shape(c.shape, x.shape)), x, z),)


@register
@dataclass(frozen=True)
class WhereGradient(_Choice):
    """dX = dY where C is true, else 0, and dZ the reverse, each summed over axes along which it was broadcast."""

    signature = "C, X, Z, dY -> dX, dZ"
    gradient_of = Where

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "any" if index in (1, 2) else "here"  # only their shapes are used


@kernel(WhereGradient)
def where_gradient(op: WhereGradient, ctx: RunContext, c: Any, x: Any, z: Any, dy: Any) -> tuple[Any, ...]:
    c, nothing = c.reshape(op.mask_shape(c.shape, x.shape)), dy.dtype.type(0)
    dx, dz = ctx.xp.where(c, dy, nothing), ctx.xp.where(c, nothing, dy)
    return sum_to(dx, x.shape, x.shape), sum_to(dz, z.shape, z.shape)


@register
@dataclass(frozen=True)
class Conditional(Operator):
    """Y = the rows of X where C, one element per row, is true, else those of Z. No gradient."""

    signature = "C (N): bool, X (N, *S): any, Z (N, *S): as X -> Y (N, *S): as X"


@kernel(Conditional)
def conditional(op: Conditional, ctx: RunContext, c: Any, x: Any, z: Any) -> tuple[Any, ...]:
    return (ctx.xp.where(c.reshape(c.shape + (1,) * (x.ndim - 1)), x, z),)
