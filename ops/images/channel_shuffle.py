"""ChannelShuffle: the channels of several groups interleaved."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.image_order import channel_axis, check_order
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["ChannelShuffle", "ChannelShuffleGradient"]


@dataclass(frozen=True)
class _Shuffle(Operator):
    signature = "X -> Y"
    flops_per_element = 0
    group: int = 1
    order: str = "NCHW"
    kernel: int = 1  # ignored; an argument of Caffe2's operator

    def check(self) -> None:
        check_order(self, self.order)
        if self.group < 1:
            raise ArgumentError(f"{self.type}: group must be 1 or more, got {self.group}")

    def check_inputs(self, x: TensorSpec) -> None:
        channels = x.shape[channel_axis(self.order, x.ndim)]
        text = f"the {channels} channels of {self.inputs[0]} must be divisible by group={self.group}"
        require(channels % self.group == 0, self, text)


@register
@dataclass(frozen=True)
class ChannelShuffle(_Shuffle):
    """Y = the first channel of each of ``group`` groups, then the second of each, and so on.

    Source: Zhang et al., "ShuffleNet", 2017, arXiv:1707.01083, section 3.1.
    """

    signature = "X (N, C, *S) if NCHW else (N, *S, C): any -> Y: as X"

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("ChannelShuffleGradient", [g.d_output("Y")], [g.d_input("X")])]


@register
@dataclass(frozen=True)
class ChannelShuffleGradient(_Shuffle):
    """dX = the channels of dY in the order that ChannelShuffle changed."""

    signature = "dY -> dX"


def _swap(op: _Shuffle, ctx: RunContext, x: Any, rows: int) -> tuple[Any, ...]:
    """Return X with its channels written row by row into a table of ``rows`` rows, and read column by column."""
    axis = channel_axis(op.order, x.ndim)
    channels = x.shape[axis]
    table = x.reshape(*x.shape[:axis], rows, channels // rows, *x.shape[axis + 1 :])
    return (ctx.xp.ascontiguousarray(table.swapaxes(axis, axis + 1)).reshape(x.shape),)


@kernel(ChannelShuffle)
def channel_shuffle(op: ChannelShuffle, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    return _swap(op, ctx, x, op.group)


@kernel(ChannelShuffleGradient)
def channel_shuffle_gradient(op: ChannelShuffleGradient, ctx: RunContext, dy: Any) -> tuple[Any, ...]:
    return _swap(op, ctx, dy, max(1, dy.shape[channel_axis(op.order, dy.ndim)] // op.group))
