"""Sums per channel, from which several devices compute the statistics of one batch normalization."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.image_order import (
    channel_shape,
    check_order,
    count_per_channel,
    other_axes,
)
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["ChannelBackpropStats", "ChannelStats"]


@dataclass(frozen=True)
class _PerChannel(Operator):
    order: str = "NCHW"

    def check(self) -> None:
        check_order(self, self.order)


@register
@dataclass(frozen=True)
class ChannelStats(_PerChannel):
    """sum = the sum of X, sumsq = the sum of X * X, count = the number of elements, per channel.

    A part of a batch with weight 0 is a placeholder: all outputs are 0. The outputs are float32 if X is float16.
    """

    signature = """
        X (N, C, *S) if NCHW else (N, *S, C): float
        weight? {1}: float, the weight of this part of the batch
        -> sum (C): wide X
        -> sumsq (C): wide X
        -> count? (1): wide X
    """
    flops_per_element = 3


@kernel(ChannelStats)
def channel_stats(op: ChannelStats, ctx: RunContext, x: Any, weight: Any = None) -> tuple[Any, ...]:
    values, axes = widen(x), other_axes(op.order, x.ndim)
    sums = [v.sum(axis=axes) for v in (values, values * values)]
    sums.append(ctx.xp.full((1,), count_per_channel(op.order, x), values.dtype))
    if weight is not None:  # not a product: X of a placeholder may have infinities
        sums = [ctx.xp.where(weight == 0, 0, part).astype(values.dtype, copy=False) for part in sums]
    return tuple(sums[: op.n_out])


@register
@dataclass(frozen=True)
class ChannelBackpropStats(_PerChannel):
    """The gradients of scale and bias of SpatialBN on this device: the sums of dY * (X - mean) * inv_std and of dY."""

    signature = """
        X (N, C, *S) if NCHW else (N, *S, C): float
        mean (C): wide X
        inv_std (C): wide X
        dY: as X
        -> dscale: as mean
        -> dbias: as mean
    """
    flops_per_element = 5


@kernel(ChannelBackpropStats)
def channel_backprop_stats(
    op: ChannelBackpropStats, ctx: RunContext, x: Any, mean: Any, inv_std: Any, dy: Any
) -> tuple[Any, ...]:
    axes, shape = other_axes(op.order, x.ndim), channel_shape(op.order, x.ndim)
    values, d_values = (widen(a) for a in (x, dy))
    dscale = (d_values * (values - mean.reshape(shape))).sum(axis=axes) * inv_std
    return (narrow(dscale, mean), narrow(d_values.sum(axis=axes), mean))
