"""The axis of channels moved: NCHW2NHWC and NHWC2NCHW."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.contexts import GradientContext, RunContext
from netbuilder.ops.declaration import dataclass
from netbuilder.ops.operator import Operator, TensorSpec, require
from netbuilder.ops.registry import kernel, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op

__all__ = ["NCHW2NHWC", "NHWC2NCHW"]


@dataclass(frozen=True)
class _MovesChannels(Operator):
    inputs = ("X",)
    outputs = ("Y",)

    def check_axes(self, x: TensorSpec) -> None:
        require(x.ndim >= 3, self, f"X must have axes of samples, channels and places, got shape {x.shape}")

    def flops(self, *inputs: TensorSpec) -> int:
        return 0


@register
@dataclass(frozen=True)
class NCHW2NHWC(_MovesChannels):
    """Y is X with its axis 1, the channels, as the last one."""

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        self.check_axes(x)
        return (x.with_shape((x.shape[0], *x.shape[2:], x.shape[1])),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("NHWC2NCHW", [g.d_output("Y")], [g.d_input("X")])]


@kernel(NCHW2NHWC)
def nchw_to_nhwc(op: NCHW2NHWC, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    return (ctx.xp.ascontiguousarray(ctx.xp.moveaxis(x, 1, -1)),)


@register
@dataclass(frozen=True)
class NHWC2NCHW(_MovesChannels):
    """Y is X with its last axis, the channels, as axis 1."""

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        self.check_axes(x)
        return (x.with_shape((x.shape[0], x.shape[-1], *x.shape[1:-1])),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("NCHW2NHWC", [g.d_output("Y")], [g.d_input("X")])]


@kernel(NHWC2NCHW)
def nhwc_to_nchw(op: NHWC2NCHW, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    return (ctx.xp.ascontiguousarray(ctx.xp.moveaxis(x, -1, 1)),)
