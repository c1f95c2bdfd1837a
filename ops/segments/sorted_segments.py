"""Reductions of segments given by sorted ids, one per row: SortedSegmentSum, SortedSegmentMean."""

from __future__ import annotations

from typing import Any, ClassVar

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.indexing import checked_indices, count_rows
from netbuilder.ops.core.operator import Operator, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.segment_groups import (
    check_integers,
    counts_of_sorted,
    per_row,
)
from netbuilder.ops.segments.lengths_reductions import reduce_rows
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["SortedSegmentMean", "SortedSegmentMeanGradient", "SortedSegmentSum", "SortedSegmentSumGradient"]


@dataclass(frozen=True)
class _Sorted(Operator):
    """Base: the segment ids are sorted, begin with 0 and have no gaps."""

    signature = "X (N, *S): float, segments (N): int32|int64 -> Y (M, *S): as X"
    inputs_on_host = (1,)
    flops_per_element = 1
    mean: ClassVar[bool] = False
    dynamic = True

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op(self.type + "Gradient", [g.d_output("Y"), g.input("segments")], [g.d_input("X")])]


@register
@dataclass(frozen=True)
class SortedSegmentSum(_Sorted):
    """Y[s] = the sum of the rows of X whose segment is s; the ids are sorted, without gaps."""


@register
@dataclass(frozen=True)
class SortedSegmentMean(_Sorted):
    """Y[s] = the mean of the rows of X whose segment is s; the ids are sorted, without gaps."""

    mean = True


@kernel(SortedSegmentSum)
@kernel(SortedSegmentMean)
def sorted_segments(op: _Sorted, ctx: RunContext, x: Any, segments: Any) -> tuple[Any, ...]:
    check_integers(op, "segments", segments)
    require(x.dtype.kind == "f", op, f"X must hold floating-point numbers, got {x.dtype}")
    require(
        x.shape[:1] == segments.shape,
        op,
        f"there must be a segment for each row of X {x.shape}, got {segments.shape[0]}",
    )
    counts = counts_of_sorted(op, ctx, segments)
    total = reduce_rows(ctx, counts, x)
    if op.mean:
        total /= per_row(ctx.xp.asarray(counts), total)
    return (total,)


@dataclass(frozen=True)
class _SortedGradient(Operator):
    signature = "dY, segments -> dX"
    mean: ClassVar[bool] = False


@register
@dataclass(frozen=True)
class SortedSegmentSumGradient(_SortedGradient):
    """dX[i] = dY[segments[i]]."""


@register
@dataclass(frozen=True)
class SortedSegmentMeanGradient(_SortedGradient):
    """dX[i] = dY[segments[i]] / number of rows in that segment."""

    mean = True


@kernel(SortedSegmentSumGradient)
@kernel(SortedSegmentMeanGradient)
def sorted_segments_gradient(op: _SortedGradient, ctx: RunContext, dy: Any, segments: Any) -> tuple[Any, ...]:
    segments = checked_indices(ctx, op.type, segments, dy.shape[0])
    if op.mean:
        dy = dy / per_row(ctx.xp.maximum(count_rows(ctx.xp, segments, dy.shape[0]), 1), dy)
    return (dy.take(segments, axis=0),)
