"""Sums per channel, from which several devices make the statistics of one batch normalization."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.image_order import channel_axis, check_order
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register

__all__ = ["ChannelBackpropStats", "ChannelStats"]


@operator_class(frozen=True)
class _PerChannel(Operator):
    order: str = "NCHW"

    def check(self) -> None:
        check_order(self, self.order)

    def channels(self, x: TensorSpec) -> int:
        require(x.ndim >= 2, self, f"X must have a batch and a channel axis at least, got shape {x.shape}")
        return x.shape[channel_axis(self.order, x.ndim)]


@register
@operator_class(frozen=True)
class ChannelStats(_PerChannel):
    """The sums of X and of its squares, channel by channel.

    Inputs:
        X (N, C, *S) or (N, *S, C): float, by the order
    Outputs:
        sum (C): as X
        sumsq (C): as X
    """

    inputs = ("X",)
    outputs = ("sum", "sumsq")

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        sums = x.with_shape((self.channels(x),))
        return (sums, sums)

    def flops(self, x: TensorSpec) -> int:
        return 3 * x.size


def _sum_axes(op: _PerChannel, x: Any) -> tuple[int, ...]:
    channel = channel_axis(op.order, x.ndim)
    return tuple(i for i in range(x.ndim) if i != channel)


@kernel(ChannelStats)
def channel_stats(op: ChannelStats, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    values = widen(x)
    axes = _sum_axes(op, x)
    return tuple(narrow(v.sum(axis=axes), x) for v in (values, values * values))


@register
@operator_class(frozen=True)
class ChannelBackpropStats(_PerChannel):
    """The gradients of scale and bias of SpatialBN on this device: sums of dY * (X - mean) * inv_std, and of dY.

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
        channels = self.channels(x)
        for name, spec in (("mean", mean), ("inv_std", inv_std)):
            require(
                spec.shape == (channels,),
                self,
                f"{name} must have shape ({channels},), one number per channel of X {x.shape}, got {spec.shape}",
            )
        require(dy.shape == x.shape, self, f"dY must have the shape of X, {x.shape}, got {dy.shape}")
        return (mean.plain, mean.plain)

    def flops(self, x: TensorSpec, mean: TensorSpec, inv_std: TensorSpec, dy: TensorSpec) -> int:
        return 5 * x.size


@kernel(ChannelBackpropStats)
def channel_backprop_stats(
    op: ChannelBackpropStats, ctx: RunContext, x: Any, mean: Any, inv_std: Any, dy: Any
) -> tuple[Any, ...]:
    axes = _sum_axes(op, x)
    laid = tuple(1 if i in axes else -1 for i in range(x.ndim))
    values, slopes = (widen(a) for a in (x, dy))
    dscale = (slopes * (values - mean.reshape(laid))).sum(axis=axes) * inv_std
    return (narrow(dscale, mean), narrow(slopes.sum(axis=axes), mean))
