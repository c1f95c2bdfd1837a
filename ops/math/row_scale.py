"""One number per sample: RowMul multiplies by it, SquareRootDivide by its inverse root, ReduceTailSum computes it."""

from __future__ import annotations

import math
from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.half import narrow, require_one_float_type, widen
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.segment_groups import per_row
from netbuilder.proto import OperatorDef, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["ReduceTailSum", "RowMul", "SquareRootDivide"]


def _check_rows(op: Operator, x: TensorSpec, name: str, numbers: TensorSpec) -> None:
    require(x.ndim >= 1, op, "the first axis of the first input must be that of the samples, got a scalar")
    require(
        numbers.size == x.shape[0],
        op,
        f"{name} must have one number per sample, {x.shape[0]} in all, got shape {numbers.shape}",
    )


@register
@dataclass(frozen=True)
class RowMul(Operator):
    """Y[i] = mat[i] * w[i], for each sample i of the first axis."""

    signature = "mat (N, *S): float, w {N}: as mat -> output (N, *S): as mat"

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        dy, dw = g.d_output("output"), g.d_input("w")
        products = dw + "before_aggregate"
        return [
            make_op("RowMul", [dy, g.input("w")], [g.d_input("mat")]),
            make_op("Mul", [dy, g.input("mat")], [products]),
            make_op("ReduceTailSum", [products], [dw + "_rows"]),
            make_op("ResizeLike", [dw + "_rows", g.input("w")], [dw]),
        ]


@kernel(RowMul)
def row_mul(op: RowMul, ctx: RunContext, x: Any, w: Any) -> tuple[Any, ...]:
    return (x * per_row(w, x),)


@register
@dataclass(frozen=True)
class ReduceTailSum(Operator):
    """Y[i] = the sum of mat[i], for each sample i of the first axis. No gradient."""

    signature = "mat (N, ...): float -> output (N): as mat"
    flops_per_element = 1


@kernel(ReduceTailSum)
def reduce_tail_sum(op: ReduceTailSum, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    rows = widen(x).reshape(x.shape[0], math.prod(x.shape[1:]))
    return (narrow(rows.sum(axis=1), x),)


@register
@dataclass(frozen=True)
class SquareRootDivide(Operator):
    """Y[i] = data[i] / sqrt(scale[i]), for each sample i of the first axis; data[i] where scale[i] is 0.

    The scale is of the type of data, or int32 or int64.
    """

    signature = "data (N, *S): float, scale {N}: float|int32|int64 -> output: as data"
    inplace = ((0, 0),)
    flops_per_element = 1

    def check_inputs(self, x: TensorSpec, scale: TensorSpec) -> None:
        if scale.dtype.kind == "f":
            require_one_float_type(self, data=x, scale=scale)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("SquareRootDivide", [g.d_output("output"), g.input("scale")], [g.d_input("data")])]


@kernel(SquareRootDivide)
def square_root_divide(op: SquareRootDivide, ctx: RunContext, x: Any, scale: Any) -> tuple[Any, ...]:
    if scale.size and bool((scale < 0).any()):
        raise ShapeError(f"SquareRootDivide: scale must not be negative, got {float(scale.min())}")
    roots = ctx.xp.sqrt(ctx.xp.where(scale > 0, scale, scale.dtype.type(1)))
    return (x / per_row(roots, x),)
