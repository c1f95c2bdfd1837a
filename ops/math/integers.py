"""Operators on integers: the remainder, Mod, and BitwiseAnd, BitwiseOr and BitwiseXor."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.broadcasting import Broadcasting, broadcast_shape
from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["BitwiseAnd", "BitwiseOr", "BitwiseXor", "Mod"]


@register
@dataclass(frozen=True)
class Mod(Operator):
    """Y = the remainder of X / ``divisor``, with the sign of X or, with ``sign_follow_divisor``, of the divisor.

    The divisor is an argument, or the second input, which is broadcast with X as by NumPy. Only the second may be
    floating-point. No gradient.
    """

    signature = "X (...): float|int, D? (...): as X -> Y (...): as X"
    inplace = ((0, 0),)
    divisor: int = 0
    sign_follow_divisor: bool = False

    def check(self) -> None:
        if self.n_in < 2 and self.divisor == 0:
            raise ArgumentError("Mod: the argument divisor, or a second input, must be given, and must not be 0")

    def infer(self, x: TensorSpec, d: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        if d is None:
            self._check_divisor(x)
            return (x.plain,)
        return (x.with_shape(broadcast_shape(self, X=x.shape, D=d.shape)),)

    def _check_divisor(self, x: TensorSpec) -> None:
        require(x.dtype.kind == "i", self, f"X must hold signed integers, got {x.dtype}; give the divisor as an input")
        least, most = np.iinfo(x.dtype).min, np.iinfo(x.dtype).max
        require(
            least <= self.divisor <= most,
            self,
            f"the divisor of {x.dtype} numbers must lie in [{least}, {most}], got {self.divisor}",
        )


@kernel(Mod)
def mod(op: Mod, ctx: RunContext, x: Any, d: Any = None) -> tuple[Any, ...]:
    if x.dtype.kind == "f" and d is not None:
        with np.errstate(all="ignore"):
            return ((ctx.xp.remainder if op.sign_follow_divisor else ctx.xp.fmod)(x, d),)
    if d is None and abs(op.divisor) == 1:  # the smallest integer divided by -1 overflows
        return (ctx.xp.zeros_like(x),)
    if d is not None and bool((d == 0).any()):
        raise ZeroDivisionError("Mod: the integers of D must not be 0; cast to float, or keep 0 out of D")
    divisor = x.dtype.type(op.divisor) if d is None else d
    rest = ctx.xp.remainder(x, divisor)
    if op.sign_follow_divisor:
        return (rest,)
    other_sign = (x < 0) != (divisor < 0)  # not `fmod`: CuPy's computes integers as doubles
    return (ctx.xp.where(other_sign & (rest != 0), rest - divisor, rest),)


@dataclass(frozen=True)
class _Bitwise(Broadcasting):
    """Base of bitwise operations on two tensors."""

    signature = """
        A (*S): int|bool
        B (...): as A, broadcast as in Add
        -> C (...): as A, of the shape of Add's result
    """
    inplace = ((0, 0),)

    def infer(self, a: TensorSpec, b: TensorSpec) -> tuple[TensorSpec, ...]:
        require(a.dtype.kind in "iub", self, f"A and B must hold integers or bools, got {a.dtype}")
        return (a.with_shape(self.joined(a, b)),)


@register
@dataclass(frozen=True)
class BitwiseAnd(_Bitwise):
    """C = the bits set in both A and B. No gradient."""


@register
@dataclass(frozen=True)
class BitwiseOr(_Bitwise):
    """C = the bits set in A or B. No gradient."""


@register
@dataclass(frozen=True)
class BitwiseXor(_Bitwise):
    """C = the bits set in exactly one of A and B. No gradient."""


@kernel(BitwiseAnd)
def bitwise_and(op: BitwiseAnd, ctx: RunContext, a: Any, b: Any) -> tuple[Any, ...]:
    return (ctx.xp.bitwise_and(*op.aligned(a, b)),)


@kernel(BitwiseOr)
def bitwise_or(op: BitwiseOr, ctx: RunContext, a: Any, b: Any) -> tuple[Any, ...]:
    return (ctx.xp.bitwise_or(*op.aligned(a, b)),)


@kernel(BitwiseXor)
def bitwise_xor(op: BitwiseXor, ctx: RunContext, a: Any, b: Any) -> tuple[Any, ...]:
    return (ctx.xp.bitwise_xor(*op.aligned(a, b)),)
