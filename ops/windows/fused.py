"""ConvRelu and SumRelu: an operator fused with the Relu after it, for inference only."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import InBatch, TensorSpec
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.math.sum import Sum, sum_
from netbuilder.ops.windows.conv import Conv, conv
from netbuilder.proto import OperatorDef
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["ConvRelu", "SumRelu"]


@register
@dataclass(frozen=True)
class ConvRelu(Conv):
    """Y = max(convolution of X, 0); the arguments are those of Conv."""

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        raise NotImplementedError(f"{self.type} is for inference and has no gradient; use the operator and Relu")


@register
@dataclass(frozen=True)
class SumRelu(Sum):
    """Y = max(X0 + X1 + ..., 0)."""

    in_batch = InBatch.ROW_BY_ROW

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        raise NotImplementedError(f"{self.type} is for inference and has no gradient; use the operator and Relu")

    def flops(self, *x: TensorSpec) -> int:
        return len(x) * x[0].size


@kernel(ConvRelu)
def conv_relu(op: ConvRelu, ctx: RunContext, x: Any, w: Any, b: Any = None) -> tuple[Any, ...]:
    return (ctx.xp.maximum(conv(op, ctx, x, w, b)[0], 0),)


@kernel(SumRelu)
def sum_relu(op: SumRelu, ctx: RunContext, *xs: Any) -> tuple[Any, ...]:
    return (ctx.xp.maximum(sum_(op, ctx, *xs)[0], 0),)
