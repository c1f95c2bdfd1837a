"""Sums per channel, from which several devices compute the statistics of one batch normalization."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.image_order import channel_shape, check_order, check_per_channel, other_axes
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register

__all__ = ["ChannelBackpropStats", "ChannelStats"]


@operator_class(frozen=True)
class _PerChannel(Operator):
    order: str = "NCHW"

    def check(self) -> None:
        check_order(self, self.order)


@register
@operator_class(frozen=True)
class ChannelStats(_PerChannel):
    """sum = the sum of X, sumsq = the sum of X * X, per channel.

    Inputs:
        X (N, C, *S) or (N, *S, C): float, by the order
    Outputs:
        sum (C): as X
        sumsq (C): as X
    """

    inputs = ("X",)
    outputs = ("sum", "sumsq")

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        sums = x.with_shape((check_per_channel(self, self.order, x),))
        return (sums, sums)

    def flops(self, x: TensorSpec) -> int:
        return 3 * x.size


@kernel(ChannelStats)
def channel_stats(op: ChannelStats, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    values, axes = widen(x), other_axes(op.order, x.ndim)
    return tuple(narrow(v.sum(axis=axes), x) for v in (values, values * values))


@register
@operator_class(frozen=True)
class ChannelBackpropStats(_PerChannel):
    """The gradients of scale and bias of SpatialBN on this device: the sums of dY * (X - mean) * inv_std and of dY.

    Inputs:
        X (N, C, *S) or (N, *S, C): float, by the order
        mean (C): as X
        inv_std (C): as X
        dY (N, C, *S) or (N, *S, C): as X
    Outputs:
        dscale (C): as X
        dbias (C): as X
    """

    inputs = ("X", "mean", "inv_std", "dY")
    outputs = ("dscale", "dbias")

    def infer(self, x: TensorSpec, mean: TensorSpec, inv_std: TensorSpec, dy: TensorSpec) -> tuple[TensorSpec, ...]:
        check_per_channel(self, self.order, x, mean=mean, inv_std=inv_std)
        require(dy.shape == x.shape, self, f"dY must have the shape of X, {x.shape}, got {dy.shape}")
        return (mean.plain, mean.plain)

    def flops(self, x: TensorSpec, mean: TensorSpec, inv_std: TensorSpec, dy: TensorSpec) -> int:
        return 5 * x.size


@kernel(ChannelBackpropStats)
def channel_backprop_stats(
    op: ChannelBackpropStats, ctx: RunContext, x: Any, mean: Any, inv_std: Any, dy: Any
) -> tuple[Any, ...]:
    axes, shape = other_axes(op.order, x.ndim), channel_shape(op.order, x.ndim)
    values, d_values = (widen(a) for a in (x, dy))
    dscale = (d_values * (values - mean.reshape(shape))).sum(axis=axes) * inv_std
    return (narrow(dscale, mean), narrow(d_values.sum(axis=axes), mean))
