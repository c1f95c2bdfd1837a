"""Comparisons (EQ, NE, LT, LE, GT, GE), logic (And, Or, Xor, Not), Where and Conditional."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from netbuilder.ops.core.broadcasting import Broadcasting
from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register

__all__ = ["EQ", "GE", "GT", "LE", "LT", "NE", "And", "Conditional", "Not", "Or", "Where", "Xor"]

_BOOL = np.dtype(np.bool_)


@operator_class(frozen=True)
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
@operator_class(frozen=True)
class EQ(_Comparison):
    """Y = whether A equals B, element by element. No gradient."""


@register
@operator_class(frozen=True)
class NE(_Comparison):
    """Y = whether A differs from B, element by element. No gradient."""


@register
@operator_class(frozen=True)
class LT(_Comparison):
    """Y = A < B, element by element; false is less than true. No gradient."""


@register
@operator_class(frozen=True)
class LE(_Comparison):
    """Y = A <= B, element by element; false is less than true. No gradient."""


@register
@operator_class(frozen=True)
class GT(_Comparison):
    """Y = A > B, element by element; false is less than true. No gradient."""


@register
@operator_class(frozen=True)
class GE(_Comparison):
    """Y = A >= B, element by element; false is less than true. No gradient."""


@operator_class(frozen=True)
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
@operator_class(frozen=True)
class And(_Logic):
    """Y = A and B, element by element. No gradient."""


@register
@operator_class(frozen=True)
class Or(_Logic):
    """Y = A or B, element by element. No gradient."""


@register
@operator_class(frozen=True)
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
@operator_class(frozen=True)
class Not(Operator):
    """Y = not X, element by element. No gradient."""

    signature = "X (*S): bool -> Y (*S): bool"


@kernel(Not)
def logical_not(op: Not, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    return (ctx.xp.logical_not(x),)


@register
@operator_class(frozen=True)
class Where(Operator):
    """Y = X where C is true, else Z; with ``broadcast_on_rows`` C has one element per row. No gradient."""

    signature = """
        C (N) if broadcast_on_rows else (*S): bool
        X (N, *R) if broadcast_on_rows else (*S): any
        Z: as X
        -> Y: as X
    """
    broadcast_on_rows: bool = False


@kernel(Where)
def where(op: Where, ctx: RunContext, c: Any, x: Any, z: Any) -> tuple[Any, ...]:
    if op.broadcast_on_rows:
        c = c.reshape(c.shape + (1,) * (x.ndim - 1))
    return (ctx.xp.where(c, x, z),)


@register
@operator_class(frozen=True)
class Conditional(Operator):
    """Y = the rows of X where C, one element per row, is true, else those of Z. No gradient."""

    signature = "C (N): bool, X (N, *S): any, Z (N, *S): as X -> Y (N, *S): as X"


@kernel(Conditional)
def conditional(op: Conditional, ctx: RunContext, c: Any, x: Any, z: Any) -> tuple[Any, ...]:
    return (ctx.xp.where(c.reshape(c.shape + (1,) * (x.ndim - 1)), x, z),)
