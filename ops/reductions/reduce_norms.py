"""ReduceMax, ReduceMin, ReduceL1 and ReduceL2: extrema and norms over axes, with their gradients."""

from __future__ import annotations

import math
from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import InBatch, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.reductions.reduce import Reduction, ReductionGradient
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "ReduceL1",
    "ReduceL1Gradient",
    "ReduceL2",
    "ReduceL2Gradient",
    "ReduceMax",
    "ReduceMaxGradient",
    "ReduceMin",
    "ReduceMinGradient",
]


@dataclass(frozen=True)
class _Extremum(Reduction):
    """Base of maxima and minima over axes."""

    signature = "X (...): float|int32|int64 -> Y (...): as X"

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        count = math.prod(x.shape[i] for i in self.reduced_axes(x.shape))
        require(
            count > 0,
            self,
            f"X of shape {x.shape} has no elements to choose from along axes {self.reduced_axes(x.shape)}",
        )
        return super().infer(x)


@register
@dataclass(frozen=True)
class ReduceMax(_Extremum):
    """Y = the maximum of X over ``axes``, by default all; with ``keepdims`` reduced axes keep extent 1."""

    in_batch = InBatch.OVER_SAMPLES


@register
@dataclass(frozen=True)
class ReduceMin(_Extremum):
    """Y = the minimum of X over ``axes``, by default all; with ``keepdims`` reduced axes keep extent 1."""

    in_batch = InBatch.OVER_SAMPLES


@kernel(ReduceMax)
def reduce_max(op: ReduceMax, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    return (ctx.xp.asarray(x.max(axis=op.reduced_axes(x.shape), keepdims=op.keepdims)),)


@kernel(ReduceMin)
def reduce_min(op: ReduceMin, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    return (ctx.xp.asarray(x.min(axis=op.reduced_axes(x.shape), keepdims=op.keepdims)),)


@register
@dataclass(frozen=True)
class ReduceMaxGradient(ReductionGradient):
    """dX = dY where X is the maximum, at each of tied elements, else 0."""


@register
@dataclass(frozen=True)
class ReduceMinGradient(ReductionGradient):
    """dX = dY where X is the minimum, at each of tied elements, else 0."""


def _extremum_gradient(op: ReductionGradient, ctx: RunContext, dy: Any, x: Any, y: Any) -> tuple[Any, ...]:
    kept = op.keepdims_shape(x.shape)
    return (dy.reshape(kept) * (x == y.reshape(kept)),)


kernel(ReduceMaxGradient)(_extremum_gradient)
kernel(ReduceMinGradient)(_extremum_gradient)


@dataclass(frozen=True)
class _Norm(Reduction):
    kinds = "f"
    flops_per_element = 2


@register
@dataclass(frozen=True)
class ReduceL1(_Norm):
    """Y = the sum of abs(X) over ``axes``, by default all; with ``keepdims`` reduced axes keep extent 1."""

    in_batch = InBatch.SUM


@register
@dataclass(frozen=True)
class ReduceL2(_Norm):
    """Y = the Euclidean norm of X over ``axes``, by default all; with ``keepdims`` reduced axes keep extent 1.

    Where Y is 0, its gradient is dY for each element of X, as in Caffe2.
    """

    in_batch = InBatch.OVER_SAMPLES


@kernel(ReduceL1)
def reduce_l1(op: ReduceL1, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    return (narrow(ctx.xp.asarray(abs(widen(x)).sum(axis=op.reduced_axes(x.shape), keepdims=op.keepdims)), x),)


@kernel(ReduceL2)
def reduce_l2(op: ReduceL2, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    values = widen(x)
    squares = ctx.xp.asarray((values * values).sum(axis=op.reduced_axes(x.shape), keepdims=op.keepdims))
    return (narrow(ctx.xp.sqrt(squares), x),)


@register
@dataclass(frozen=True)
class ReduceL1Gradient(ReductionGradient):
    """dX = dY * sign(X)."""


@kernel(ReduceL1Gradient)
def reduce_l1_gradient(op: ReduceL1Gradient, ctx: RunContext, dy: Any, x: Any, y: Any) -> tuple[Any, ...]:
    return (dy.reshape(op.keepdims_shape(x.shape)) * ctx.xp.sign(x),)


@register
@dataclass(frozen=True)
class ReduceL2Gradient(ReductionGradient):
    """dX = dY * X / Y; dY where Y is 0."""


@kernel(ReduceL2Gradient)
def reduce_l2_gradient(op: ReduceL2Gradient, ctx: RunContext, dy: Any, x: Any, y: Any) -> tuple[Any, ...]:
    xp, kept = ctx.xp, op.keepdims_shape(x.shape)
    norms, d_norms = widen(y).reshape(kept), widen(dy).reshape(kept)
    zero = norms == 0
    ratio = widen(x) / xp.where(zero, norms.dtype.type(1), norms)
    return (narrow(d_norms * xp.where(zero, norms.dtype.type(1), ratio), x),)
