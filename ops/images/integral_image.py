"""IntegralImage: sums over the pixels above and to the left of each position; and its gradient."""

from __future__ import annotations

from typing import Any, Literal

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["IntegralImage", "IntegralImageGradient"]


@register
@dataclass(frozen=True)
class IntegralImage(Operator):
    """Y[n, c, i, j] = the sum of X[n, c] over the first i rows and j columns, (N, C, H + 1, W + 1).

    Source: Viola and Jones, "Rapid Object Detection using a Boosted Cascade of Simple Features", 2001.
    """

    signature = "X (N, C, H, W): float -> Y (N, C, H + 1, W + 1): as X"
    flops_per_element = 2

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("IntegralImageGradient", [g.input("X"), g.d_output("Y")], [g.d_input("X")])]


@register
@dataclass(frozen=True)
class IntegralImageGradient(Operator):
    """dX[n, c, i, j] = the sum of dY[n, c] over the rows after i and the columns after j."""

    signature = "X, dY -> dX"
    flops_per_element = 2

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "here" if index else "any"  # only the shape of X is used


@kernel(IntegralImage)
def integral_image(op: IntegralImage, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    n, channels, height, width = x.shape
    y = ctx.xp.zeros((n, channels, height + 1, width + 1), x.dtype)
    y[:, :, 1:, 1:] = narrow(ctx.xp.cumsum(ctx.xp.cumsum(widen(x), axis=2), axis=3), x)
    return (y,)


@kernel(IntegralImageGradient)
def integral_image_gradient(op: IntegralImageGradient, ctx: RunContext, x: Any, dy: Any) -> tuple[Any, ...]:
    xp = ctx.xp
    flipped = xp.cumsum(xp.cumsum(widen(dy)[:, :, :0:-1, :0:-1], axis=2), axis=3)
    return (xp.ascontiguousarray(narrow(flipped[:, :, ::-1, ::-1], dy)),)
