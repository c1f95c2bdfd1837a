"""UpsampleNearest: each pixel of images repeated; and its gradient."""

from __future__ import annotations

from typing import Any, Literal

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["UpsampleNearest", "UpsampleNearestGradient"]


@dataclass(frozen=True)
class _Scaling(Operator):
    scale: int = 2

    def check(self) -> None:
        if self.scale < 1:
            raise ArgumentError(f"{self.type}: scale must be at least 1, got {self.scale}")

    def scaled(self, x: TensorSpec) -> TensorSpec:
        require(x.ndim == 4, self, f"X must be (N, C, H, W), got shape {x.shape}")
        n, channels, height, width = x.shape
        return x.with_shape((n, channels, height * self.scale, width * self.scale))


@register
@dataclass(frozen=True)
class UpsampleNearest(_Scaling):
    """Y = X with each pixel repeated ``scale`` times vertically and horizontally."""

    signature = "X (N, C, H, W): float -> Y (N, C, H * scale, W * scale): as X"

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("UpsampleNearestGradient", [g.input("X"), g.d_output("Y")], [g.d_input("X")])]


@register
@dataclass(frozen=True)
class UpsampleNearestGradient(_Scaling):
    """dX = the sum of dY over the copies of each pixel."""

    signature = "X, dY -> dX"

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "here" if index else "any"  # only the shape of X is used

    def flops(self, x: TensorSpec, dy: TensorSpec) -> int:
        return dy.size


@kernel(UpsampleNearest)
def upsample_nearest(op: UpsampleNearest, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    n, channels, height, width = x.shape
    copies = ctx.xp.broadcast_to(x[:, :, :, None, :, None], (n, channels, height, op.scale, width, op.scale))
    return (ctx.xp.ascontiguousarray(copies).reshape(n, channels, height * op.scale, width * op.scale),)


@kernel(UpsampleNearestGradient)
def upsample_nearest_gradient(op: UpsampleNearestGradient, ctx: RunContext, x: Any, dy: Any) -> tuple[Any, ...]:
    n, channels, height, width = x.shape
    copies = widen(dy).reshape(n, channels, height, op.scale, width, op.scale)
    return (narrow(copies.sum(axis=(3, 5)), dy),)
