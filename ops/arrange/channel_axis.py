"""NCHW2NHWC and NHWC2NCHW, which move the channel axis."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["NCHW2NHWC", "NHWC2NCHW"]


@dataclass(frozen=True)
class _MovesChannels(Operator):
    signature = "X -> Y"
    flops_per_element = 0

    def check_inputs(self, x: TensorSpec) -> None:
        require(x.ndim >= 3, self, f"X must have axes of samples, channels and positions, got shape {x.shape}")


@register
@dataclass(frozen=True)
class NCHW2NHWC(_MovesChannels):
    """Y = X with the channel axis moved from axis 1 to the last axis."""

    signature = "X (N, C, *S): any -> Y (N, *S, C): as X"

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("NHWC2NCHW", [g.d_output("Y")], [g.d_input("X")])]


@kernel(NCHW2NHWC)
def nchw_to_nhwc(op: NCHW2NHWC, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    return (ctx.xp.ascontiguousarray(ctx.xp.moveaxis(x, 1, -1)),)


@register
@dataclass(frozen=True)
class NHWC2NCHW(_MovesChannels):
    """Y = X with the channel axis moved from the last axis to axis 1."""

    signature = "X (N, *S, C): any -> Y (N, C, *S): as X"

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("NCHW2NHWC", [g.d_output("Y")], [g.d_input("X")])]


@kernel(NHWC2NCHW)
def nhwc_to_nchw(op: NHWC2NCHW, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    return (ctx.xp.ascontiguousarray(ctx.xp.moveaxis(x, -1, 1)),)
