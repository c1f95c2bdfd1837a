"""PRelu, whose slope below zero is learned, and its gradient."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.image_order import channel_axis, channel_shape, check_order, other_axes
from netbuilder.ops.core.operator import InBatch, Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["PRelu", "PReluGradient"]


@dataclass(frozen=True)
class PReluArguments(Operator):
    """The arguments and checks of PRelu and of its gradient."""

    order: str = "NCHW"

    def check(self) -> None:
        check_order(self, self.order)

    def check_inputs(self, *inputs: TensorSpec) -> None:
        *_, x, slope = inputs
        if slope.shape == (1,):
            return
        require(x.ndim >= 2, self, f"X of shape {x.shape} has no channels, so slope must have shape (1,)")
        channels = x.shape[channel_axis(self.order, x.ndim)]
        require(
            slope.shape == (channels,),
            self,
            f"slope must have shape (1,) or ({channels},), one number per channel of X {x.shape}, got {slope.shape}",
        )


@register
@dataclass(frozen=True)
class PRelu(PReluArguments):
    """Y = X where X > 0, else slope * X, with a slope per channel or one for all.

    Source: He et al., "Delving Deep into Rectifiers", 2015, arXiv:1502.01852.
    """

    signature = "X (*S): float, slope (K): as X -> Y: as X"
    inplace = ((0, 0),)
    in_batch = InBatch.ROW_BY_ROW
    flops_per_element = 2

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.output("Y"), g.d_output("Y"), g.input("X"), g.input("slope")]
        return [make_op("PReluGradient", inputs, [g.d_input("X"), g.d_input("slope")])]


@register
@dataclass(frozen=True)
class PReluGradient(PReluArguments):
    """dX = dY where X > 0, else slope * dY; dslope is the sum of dY * X over where X <= 0, per slope."""

    signature = "Y, dY, X, slope -> dX, dslope"

    def flops(self, y: TensorSpec, dy: TensorSpec, x: TensorSpec, slope: TensorSpec) -> int:
        return 4 * x.size


def _along_channels(op: PReluArguments, x: Any, slope: Any) -> Any:
    """Return the slope in the shape that broadcasts along the channels of X."""
    if slope.shape == (1,):
        return slope
    return slope.reshape(channel_shape(op.order, x.ndim))


@kernel(PRelu)
def prelu(op: PRelu, ctx: RunContext, x: Any, slope: Any) -> tuple[Any, ...]:
    return (ctx.xp.where(x > 0, x, _along_channels(op, x, slope) * x),)


@kernel(PReluGradient)
def prelu_gradient(op: PReluGradient, ctx: RunContext, y: Any, dy: Any, x: Any, slope: Any) -> tuple[Any, ...]:
    xp = ctx.xp
    dx = xp.where(x > 0, dy, _along_channels(op, x, slope) * dy)
    below = xp.where(x > 0, xp.zeros((), x.dtype), dy * x)
    if slope.shape == (1,):
        return (dx, below.sum().reshape(1))
    return (dx, below.sum(axis=other_axes(op.order, x.ndim)))
