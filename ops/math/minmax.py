"""Max and Min of several tensors, element by element, and ArgMax and ArgMin along an axis."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from netbuilder.ops.core.broadcasting import broadcast_shape, sum_to
from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["ArgMax", "ArgMin", "Max", "MaxGradient", "Min", "MinGradient"]


@dataclass(frozen=True)
class _Extremum(Operator):
    """Base: the extremum of several tensors, element by element, broadcast as by NumPy."""

    signature = """
        X+ (...): one float|int
        -> Y (...): as X
    """
    inplace = ((0, 0),)

    def infer(self, *xs: TensorSpec) -> tuple[TensorSpec, ...]:
        self.check_specs(*xs)
        return (xs[0].with_shape(broadcast_shape(self, **{f"X{i}": x.shape for i, x in enumerate(xs)})),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        count = range(len(g.op.input))
        inputs = [g.output("Y"), g.d_output("Y"), *(g.input(i) for i in count)]
        return [make_op(self.type + "Gradient", inputs, [g.d_input(i) for i in count])]

    def flops(self, *x: TensorSpec) -> int:
        return (len(x) - 1) * self.infer(*x)[0].size


@dataclass(frozen=True)
class _ExtremumGradient(Operator):
    """dXi = dY where Xi = Y, else 0, summed over axes along which Xi was broadcast; in a tie each gets the whole dY."""

    signature = "Y, dY, X+ -> dX+"

    def check_inputs(self, y: TensorSpec, dy: TensorSpec, *xs: TensorSpec) -> None:
        shape = broadcast_shape(self, **{f"X{i}": x.shape for i, x in enumerate(xs)})
        fits = y.shape == dy.shape == shape
        require(fits, self, f"Y and dY must have the shape of the result, {shape}, got {y.shape} and {dy.shape}")


@register
@dataclass(frozen=True)
class Max(_Extremum):
    """Y = the largest of X0, X1, ..., element by element."""


@register
@dataclass(frozen=True)
class Min(_Extremum):
    """Y = the smallest of X0, X1, ..., element by element."""


@register
@dataclass(frozen=True)
class MaxGradient(_ExtremumGradient):
    """dXi = dY where Xi is the largest, else 0; where inputs tie, each gets the whole dY."""


@register
@dataclass(frozen=True)
class MinGradient(_ExtremumGradient):
    """dXi = dY where Xi is the smallest, else 0; where inputs tie, each gets the whole dY."""


@kernel(Max)
def max_(op: Max, ctx: RunContext, *xs: Any) -> tuple[Any, ...]:
    return (reduce(ctx.xp.maximum, xs),)


@kernel(Min)
def min_(op: Min, ctx: RunContext, *xs: Any) -> tuple[Any, ...]:
    return (reduce(ctx.xp.minimum, xs),)


def _extremum_gradient(op: _ExtremumGradient, ctx: RunContext, y: Any, dy: Any, *xs: Any) -> tuple[Any, ...]:
    return tuple(sum_to(dy * (x == y), x.shape, x.shape) for x in xs)


kernel(MaxGradient)(_extremum_gradient)
kernel(MinGradient)(_extremum_gradient)


@dataclass(frozen=True)
class _ArgExtremum(Operator):
    """Base: the index of an extremum along ``axis``."""

    signature = """
        X (*A, N @ axis, *B): float|int
        -> Y (*A, 1, *B) if keepdims else (*A, *B): int64
    """
    flops_per_element = 1
    axis: int = -1
    keepdims: bool = True

    def check_inputs(self, x: TensorSpec) -> None:
        require(x.shape[self.axis] > 0, self, f"axis {self.axis} of X {x.shape} has no elements to choose from")


@register
@dataclass(frozen=True)
class ArgMax(_ArgExtremum):
    """Y = the index of the largest element along ``axis``, the first if several are equal. No gradient."""


@register
@dataclass(frozen=True)
class ArgMin(_ArgExtremum):
    """Y = the index of the smallest element along ``axis``, the first if several are equal. No gradient."""


def _arg_extremum(op: _ArgExtremum, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    axis = op.axis % x.ndim
    index = ctx.xp.asarray((x.argmax if isinstance(op, ArgMax) else x.argmin)(axis=axis)).astype(np.int64)
    return (ctx.xp.expand_dims(index, axis) if op.keepdims else index,)


kernel(ArgMax)(_arg_extremum)
kernel(ArgMin)(_arg_extremum)
