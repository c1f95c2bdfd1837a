"""LengthsTopK and its gradient; LengthsToShape."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import Operator, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.segment_groups import (
    counts_of_lengths,
    lengths_on_host,
    positions_in_segments,
    segment_numbers,
    segment_starts,
)
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["LengthsToShape", "LengthsTopK", "LengthsTopKGradient"]


@dataclass(frozen=True)
class _TopK(Operator):
    flops_per_element = 0
    k: int = 1

    def check(self) -> None:
        if self.k < 1:
            raise ArgumentError(f"{self.type}: k must be positive, got {self.k}")


@register
@dataclass(frozen=True)
class LengthsTopK(_TopK):
    """The ``k`` largest elements of each segment of a vector, descending, and their positions in it (int32).

    Equal elements keep their order. A segment with fewer elements is padded with 0, at position -1.
    """

    signature = "X (N): float, lengths (M): int32|int64 -> values (M, k): as X, indices (M, k): int32"
    inputs_on_host = (1,)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("lengths"), g.output("indices"), g.d_output("values")]
        return [make_op("LengthsTopKGradient", inputs, [g.d_input("X")])]


@kernel(LengthsTopK)
def lengths_top_k(op: LengthsTopK, ctx: RunContext, x: Any, lengths: Any) -> tuple[Any, ...]:
    xp = ctx.xp
    counts = counts_of_lengths(op, ctx, lengths, x.shape[0])
    order = xp.argsort(-x, kind="stable")
    order = order[xp.argsort(segment_numbers(ctx, counts)[order], kind="stable")]
    position = positions_in_segments(counts)
    kept = np.flatnonzero(position < op.k)
    rows, columns = np.repeat(np.arange(counts.size), counts)[kept], position[kept]
    where, chosen = xp.asarray(rows * op.k + columns), order.take(xp.asarray(kept))
    values = xp.zeros(counts.size * op.k, x.dtype)
    values[where] = x.take(chosen)
    indices = xp.full(counts.size * op.k, -1, np.int32)
    indices[where] = chosen - xp.asarray(segment_starts(counts)[rows])
    return values.reshape(counts.size, op.k), indices.reshape(counts.size, op.k)


@register
@dataclass(frozen=True)
class LengthsTopKGradient(_TopK):
    """dX = dvalues at the positions of the chosen elements, 0 elsewhere."""

    signature = "lengths, indices, dvalues -> dX"
    dynamic = True

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if index < 2 else "here"


@kernel(LengthsTopKGradient)
def lengths_top_k_gradient(
    op: LengthsTopKGradient, ctx: RunContext, lengths: Any, indices: Any, dy: Any
) -> tuple[Any, ...]:
    counts = lengths_on_host(op, ctx, lengths)
    require(
        indices.shape == dy.shape == (counts.size, op.k),
        op,
        f"indices and dvalues must have shape {(counts.size, op.k)}, got {indices.shape} and {dy.shape}",
    )
    require(indices.dtype.kind == "i", op, f"indices must be integers, got {indices.dtype}")
    positions = ctx.host(indices)
    require(
        bool((positions < counts[:, None]).all()), op, "indices must lie within their segments, or be negative for none"
    )
    given = np.flatnonzero(positions.reshape(-1) >= 0)
    rows = (positions + segment_starts(counts)[:, None]).reshape(-1)[given]
    dx = ctx.xp.zeros(int(counts.sum()), dy.dtype)
    dx[ctx.xp.asarray(rows)] = dy.reshape(-1).take(ctx.xp.asarray(given))
    return (dx,)


@register
@dataclass(frozen=True)
class LengthsToShape(Operator):
    """Y = (the number of segments, their common length), int32."""

    signature = "lengths (M): int32|int64 -> Y (2): int32"
    inputs_on_host = True

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return []  # not differentiable


@kernel(LengthsToShape)
def lengths_to_shape(op: LengthsToShape, ctx: RunContext, lengths: Any) -> tuple[Any, ...]:
    counts = lengths_on_host(op, ctx, lengths)
    require(
        counts.size > 0 and counts.min() == counts.max(),
        op,
        f"all lengths must be the same, got {counts[:16].tolist()}",
    )
    return (ctx.xp.asarray(np.array([counts.size, counts[0]], np.int32)),)
