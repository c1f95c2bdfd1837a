"""ConvRelu and SumRelu: an operator fused with the Relu after it, for inference only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import InBatch, TensorSpec
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.math.sum import Sum, sum_
from netbuilder.ops.windows.conv import Conv, conv
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import arguments

__all__ = ["ConvRelu", "SumRelu", "as_fused"]

_PLAIN = ("", "identity")


@register
@dataclass(frozen=True)
class ConvRelu(Conv):
    """Y = max(convolution of X, 0); the arguments are those of Conv."""

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        raise NotImplementedError(f"{self.type}: is for inference and has no gradient; use the operator and Relu")


@register
@dataclass(frozen=True)
class SumRelu(Sum):
    """Y = max(X0 + X1 + ..., 0)."""

    in_batch = InBatch.ROW_BY_ROW

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        raise NotImplementedError(f"{self.type}: is for inference and has no gradient; use the operator and Relu")

    def flops(self, *x: TensorSpec) -> int:
        return len(x) * x[0].size


def as_fused(op: OperatorDef) -> OperatorDef:
    """Return a Conv with the argument ``activation="Relu"`` as a ConvRelu; any other operator unchanged.

    Caffe2's transformation FuseNNPACKConvRelu removes a Relu and sets this argument of the Conv before it, for the
    engine NNPACK.

    Raises:
        ArgumentError: the activation is another one.
    """
    if op.type != "Conv" or op.engine != "NNPACK":
        return op
    value = arguments(op).get("activation", "")
    activation = value.decode() if isinstance(value, bytes) else value
    if activation in _PLAIN:
        return op
    if activation != "Relu":
        raise ArgumentError(f"Conv: activation must be 'Relu' or 'identity', got {activation!r}")
    fused = OperatorDef()
    fused.CopyFrom(op)
    fused.type = "ConvRelu"
    return fused


@kernel(ConvRelu)
def conv_relu(op: ConvRelu, ctx: RunContext, x: Any, w: Any, b: Any = None) -> tuple[Any, ...]:
    return (ctx.xp.maximum(conv(op, ctx, x, w, b)[0], 0),)


@kernel(SumRelu)
def sum_relu(op: SumRelu, ctx: RunContext, *xs: Any) -> tuple[Any, ...]:
    return (ctx.xp.maximum(sum_(op, ctx, *xs)[0], 0),)
