"""Moments over axes and BatchMoments per channel, with their gradients."""

from __future__ import annotations

import math
from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.half import narrow, require_one_float_type, widen
from netbuilder.ops.core.image_order import channel_axis, channel_shape, check_order, other_axes
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.reductions.reduce import OverAxes, count_of
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["BatchMoments", "BatchMomentsGradient", "Moments", "MomentsGradient"]


@register
@dataclass(frozen=True)
class Moments(OverAxes):
    """Mean and variance (biased) of X over ``axes``, by default all; with ``keepdims`` reduced axes keep extent 1."""

    signature = "data (...): float -> mean (...): as data, variance (...): as data"
    flops_per_element = 4

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        require_one_float_type(self, data=x)
        over = self.reduced_axes(x.shape)
        kept = [n for i, n in enumerate(x.shape) if i not in over]
        stats = x.with_shape(self.keepdims_shape(x.shape) if self.keepdims else kept)
        return (stats, stats)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.d_output("mean"), g.d_output("variance"), g.input("data"), g.output("mean")]
        return [make_op("MomentsGradient", inputs, [g.d_input("data")])]


@register
@dataclass(frozen=True)
class MomentsGradient(OverAxes):
    """dX = (dmean + 2 * (X - mean) * dvariance) / the number of elements per mean."""

    signature = "dmean, dvariance, data, mean -> ddata"

    def check_inputs(self, dmean: TensorSpec, dvar: TensorSpec, x: TensorSpec, mean: TensorSpec) -> None:
        size = math.prod(self.keepdims_shape(x.shape))
        for name, spec in (("dmean", dmean), ("dvariance", dvar), ("mean", mean)):
            require(spec.size == size, self, f"{name} {spec.shape} is not the reduced shape of X {x.shape}")

    def flops(self, dmean: TensorSpec, dvar: TensorSpec, x: TensorSpec, mean: TensorSpec) -> int:
        return 4 * x.size


@kernel(Moments)
def moments(op: Moments, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    values, over, count = widen(x), op.reduced_axes(x.shape), count_of(op, x.shape)
    mean = ctx.xp.asarray(values.sum(axis=over, keepdims=True)) / values.dtype.type(count)
    centered = values - mean
    variance = ctx.xp.asarray((centered * centered).sum(axis=over, keepdims=True)) / values.dtype.type(count)
    shape = mean.shape if op.keepdims else tuple(n for i, n in enumerate(x.shape) if i not in over)
    return narrow(mean, x).reshape(shape), narrow(variance, x).reshape(shape)


@kernel(MomentsGradient)
def moments_gradient(op: MomentsGradient, ctx: RunContext, dmean: Any, dvar: Any, x: Any, mean: Any) -> tuple[Any, ...]:
    kept = op.keepdims_shape(x.shape)
    d_mean, d_var, center = (widen(a).reshape(kept) for a in (dmean, dvar, mean))
    values = widen(x)
    return (narrow((d_mean + 2 * (values - center) * d_var) / values.dtype.type(count_of(op, x.shape)), x),)


@dataclass(frozen=True)
class _PerChannel(Operator):
    order: str = "NCHW"

    def check(self) -> None:
        check_order(self, self.order)

    def count(self, x: Any) -> int:
        """Return the number of elements per channel, at least 1."""
        return max(1, x.size // max(x.shape[channel_axis(self.order, x.ndim)], 1))


@register
@dataclass(frozen=True)
class BatchMoments(_PerChannel):
    """mu = the mean of X, var = the mean of X * X, per channel."""

    signature = """
        X (N, C, *S) if NCHW else (N, *S, C): float
        -> mu (C): as X
        -> var (C): as X
    """
    flops_per_element = 3

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.d_output("mu"), g.d_output("var"), g.input("X")]
        return [make_op("BatchMomentsGradient", inputs, [g.d_input("X")])]


@register
@dataclass(frozen=True)
class BatchMomentsGradient(_PerChannel):
    """dX = (dmu + 2 * X * dvar) / the number of elements per channel."""

    signature = "dmu, dvar, X -> dX"

    def flops(self, dmu: TensorSpec, dvar: TensorSpec, x: TensorSpec) -> int:
        return 4 * x.size


@kernel(BatchMoments)
def batch_moments(op: BatchMoments, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    values = widen(x)
    axes, share = other_axes(op.order, x.ndim), values.dtype.type(1 / op.count(x))
    return tuple(narrow(v.sum(axis=axes) * share, x) for v in (values, values * values))


@kernel(BatchMomentsGradient)
def batch_moments_gradient(op: BatchMomentsGradient, ctx: RunContext, dmu: Any, dvar: Any, x: Any) -> tuple[Any, ...]:
    values = widen(x)
    shape = channel_shape(op.order, x.ndim)
    dx = widen(dmu).reshape(shape) + 2 * values * widen(dvar).reshape(shape)
    return (narrow(dx / values.dtype.type(op.count(x)), x),)
