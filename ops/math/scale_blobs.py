"""ScaleBlobs, several tensors times a constant, and ReduceFrontWeightedSum, a weighted sum of rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.given_numbers import check_extents
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.segment_groups import per_row
from netbuilder.proto import ArgumentError, NetError, OperatorDef, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.proto.errors import counted
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["ReduceFrontWeightedSum", "ReduceFrontWeightedSumGradient", "ScaleBlobs"]


@register
@dataclass(frozen=True)
class ScaleBlobs(Operator):
    """Each output is its input times ``scale``. No gradient."""

    signature = "X+ (...): float -> Y+ (...): as X"
    inplace = "one-to-one"
    scale: float = 1.0

    def check(self) -> None:
        if self.n_in != self.n_out:
            raise NetError(
                f"ScaleBlobs needs one output per input, got {self.n_in} inputs and {counted(self.n_out, 'output')}"
            )


@kernel(ScaleBlobs)
def scale_blobs(op: ScaleBlobs, ctx: RunContext, *xs: Any) -> tuple[Any, ...]:
    return tuple(narrow(widen(x) * x.dtype.type(op.scale), x) for x in xs)


@register
@dataclass(frozen=True)
class ReduceFrontWeightedSum(Operator):
    """Y = the sum of the rows of X, each times its weight; the weights have no gradient."""

    signature = "X (N, *S): float, weights (N): as X -> Y (*S): as X"
    flops_per_element = 2
    grad_on_weights: bool = False

    def check(self) -> None:
        if self.grad_on_weights:
            raise ArgumentError(
                f"{self.type}: grad_on_weights is supported only by operators with lengths, such as LengthsWeightedSum"
            )

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        shape = f"_{g.output('Y')}_dims"
        inputs = [g.input("weights"), g.d_output("Y"), shape]
        return [
            make_op("Shape", [g.input("X")], [shape]),
            make_op("ReduceFrontWeightedSumGradient", inputs, [g.d_input("X")]),
        ]


@kernel(ReduceFrontWeightedSum)
def reduce_front_weighted_sum(op: ReduceFrontWeightedSum, ctx: RunContext, x: Any, weights: Any) -> tuple[Any, ...]:
    return (narrow((widen(x) * per_row(weights, widen(x))).sum(axis=0), x),)


@register
@dataclass(frozen=True)
class ReduceFrontWeightedSumGradient(Operator):
    """dX[i] = dY times ``weights[i]``; the third input is the shape of X."""

    signature = "weights, dY, shape -> dX"
    dynamic = True
    inputs_on_host = (2,)
    flops_per_element = 0
    grad_on_weights: bool = False


@kernel(ReduceFrontWeightedSumGradient)
def reduce_front_weighted_sum_gradient(
    op: ReduceFrontWeightedSumGradient, ctx: RunContext, weights: Any, dy: Any, shape: Any
) -> tuple[Any, ...]:
    expected = tuple(np.asarray(ctx.host(shape)).tolist())
    if expected != (*weights.shape, *dy.shape):
        raise ShapeError(
            f"{op.type}: weights {weights.shape} and dY {dy.shape} make a gradient of shape "
            f"{(*weights.shape, *dy.shape)}, but the input shape says {expected}"
        )
    check_extents(f"{op.type}: dX", expected, dy.dtype)
    return (weights.reshape((-1,) + (1,) * dy.ndim) * dy,)
