"""FlexibleTopK: the largest elements of each row, with a k of its own for each row; and its gradient."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.indexing import checked_indices
from netbuilder.ops.core.operator import Operator, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import OperatorDef, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["FlexibleTopK", "FlexibleTopKGradient"]

_INT64 = np.dtype(np.int64)


def _counts(op: Operator, k: Any, length: int) -> Any:
    """Return K as a vector.

    Raises:
        ShapeError: an element is not in [1, length].
    """
    counts = k.reshape(-1)
    if counts.size and not 1 <= int(counts.min()) <= int(counts.max()) <= length:
        raise ShapeError(f"{op.type}: K must lie in [1, {length}], got {counts.min()} to {counts.max()}")
    return counts


@register
@dataclass(frozen=True)
class FlexibleTopK(Operator):
    """The K[i] largest elements of each row i of X, in descending order, row after row; ties go to the lower index.

    Rows are along the last axis. The second output is the position of each element in its row.
    """

    signature = """
        X (*S, N): float
        K {prod(S)}: int64, one number per row
        -> Values (M): as X, M the sum of K
        -> Indices (M): int64
    """
    dynamic = True
    flops_per_element = 2

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if index else "here"

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("X"), g.input("K"), g.d_output("Values"), g.output("Indices")]
        return [make_op("FlexibleTopKGradient", inputs, [g.d_input("X")])]


@register
@dataclass(frozen=True)
class FlexibleTopKGradient(Operator):
    """dX = dV at the positions of the elements, else 0."""

    signature = "X, K, dValues, Indices -> dX"
    flops_per_element = 0

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return ("any", "host", "here", "here")[index]


@kernel(FlexibleTopK)
def flexible_top_k(op: FlexibleTopK, ctx: RunContext, x: Any, k: Any) -> tuple[Any, ...]:
    op.check_specs(x, k)
    xp, length = ctx.xp, x.shape[-1]
    counts = _counts(op, ctx.host(k), length)
    rows = x.reshape(counts.size, length)
    order = xp.argsort(-rows, axis=1, kind="stable")
    selected = xp.asarray(np.flatnonzero(np.arange(length) < counts[:, None]))
    values = xp.take_along_axis(rows, order, axis=1).reshape(-1)[selected]
    return values, order.reshape(-1)[selected].astype(_INT64, copy=False)


@kernel(FlexibleTopKGradient)
def flexible_top_k_gradient(
    op: FlexibleTopKGradient, ctx: RunContext, x: Any, k: Any, dv: Any, indices: Any
) -> tuple[Any, ...]:
    xp, length = ctx.xp, x.shape[-1]
    counts = _counts(op, ctx.host(k), length)
    total = int(counts.sum())
    require(dv.size == total, op, f"dV must have {total} elements, the sum of K, got {dv.size}")
    indices = checked_indices(ctx, op.type, indices, length)
    starts = xp.asarray(np.repeat(np.arange(counts.size), counts) * length)
    dx = xp.zeros(x.size, dv.dtype)
    dx[starts + indices] = dv
    return (dx.reshape(x.shape),)
