"""Reductions of sorted segments: SortedSegmentRangeSum, Mean, Max, LogSumExp and LogMeanExp, with their gradients."""

from __future__ import annotations

import math
from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.segment_groups import (
    check_integers,
    counts_of_sorted,
    per_row,
    segment_numbers,
)
from netbuilder.ops.segments.lengths_reductions import reduce_rows
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "SortedSegmentRangeLogMeanExp",
    "SortedSegmentRangeLogMeanExpGradient",
    "SortedSegmentRangeLogSumExp",
    "SortedSegmentRangeLogSumExpGradient",
    "SortedSegmentRangeMax",
    "SortedSegmentRangeMaxGradient",
    "SortedSegmentRangeMean",
    "SortedSegmentRangeMeanGradient",
    "SortedSegmentRangeSum",
    "SortedSegmentRangeSumGradient",
]


@dataclass(frozen=True)
class _Range(Operator):
    """Base: the segment ids are sorted, begin with 0 and have no gaps."""

    signature = "X (N, *S): float, segments (N): int32|int64 -> Y (M, *S): as X"
    dynamic = True
    inputs_on_host = (1,)
    flops_per_element = 1

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("X"), g.output("Y"), g.d_output("Y"), g.input("segments")]
        return [make_op(self.type + "Gradient", inputs, [g.d_input("X")])]


@dataclass(frozen=True)
class _RangeGradient(Operator):
    signature = """
        X (N, *S): float
        Y (...): as X, states of step nets have an additional first axis
        dY (...): as X, of the shape of Y
        segments (N): int32|int64
        -> dX (N, *S): as X
    """
    inputs_on_host = (3,)

    def check_inputs(self, x: TensorSpec, y: TensorSpec, dy: TensorSpec, segments: TensorSpec) -> None:
        rows = x.shape[1:]
        require(
            y.shape == dy.shape and y.shape[y.ndim - len(rows) :] == rows and y.ndim >= x.ndim,
            self,
            f"Y and dY must have rows of shape {rows}, got {y.shape} and {dy.shape}",
        )


def _check(op: Operator, x: Any, segments: Any) -> None:
    check_integers(op, "segments", segments)
    require(x.dtype.kind == "f", op, f"X must hold floating-point numbers, got {x.dtype}")
    require(
        x.shape[:1] == segments.shape,
        op,
        f"there must be a segment for each row of X {x.shape}, got {segments.shape[0]}",
    )


@register
@dataclass(frozen=True)
class SortedSegmentRangeSum(_Range):
    """Y[s] = the sum of the rows of X whose segment is s."""


@register
@dataclass(frozen=True)
class SortedSegmentRangeMean(_Range):
    """Y[s] = the mean of the rows of X whose segment is s."""


@register
@dataclass(frozen=True)
class SortedSegmentRangeMax(_Range):
    """Y[s] = the elementwise maximum of the rows of X whose segment is s."""


@register
@dataclass(frozen=True)
class SortedSegmentRangeLogSumExp(_Range):
    """Y[s] = log(sum of exp(X)) over the rows of X whose segment is s."""


@register
@dataclass(frozen=True)
class SortedSegmentRangeLogMeanExp(_Range):
    """Y[s] = log(mean of exp(X)) over the rows of X whose segment is s."""


def _counts(op: Operator, ctx: RunContext, x: Any, segments: Any) -> Any:
    _check(op, x, segments)
    return counts_of_sorted(op, ctx, segments)


@kernel(SortedSegmentRangeSum)
@kernel(SortedSegmentRangeMean)
def range_sum(op: _Range, ctx: RunContext, x: Any, segments: Any) -> tuple[Any, ...]:
    counts = _counts(op, ctx, x, segments)
    total = reduce_rows(ctx, counts, x)
    return (total / per_row(ctx.xp.asarray(counts), total) if isinstance(op, SortedSegmentRangeMean) else total,)


@kernel(SortedSegmentRangeMax)
def range_max(op: _Range, ctx: RunContext, x: Any, segments: Any) -> tuple[Any, ...]:
    return (reduce_rows(ctx, _counts(op, ctx, x, segments), x, how="max"),)


@kernel(SortedSegmentRangeLogSumExp)
@kernel(SortedSegmentRangeLogMeanExp)
def range_log_exp(op: _Range, ctx: RunContext, x: Any, segments: Any) -> tuple[Any, ...]:
    counts = _counts(op, ctx, x, segments)
    maxima = reduce_rows(ctx, counts, x, how="max")  # subtracted, so that exp does not overflow
    total = reduce_rows(ctx, counts, ctx.xp.exp(x - maxima.take(segment_numbers(ctx, counts), axis=0)))
    if isinstance(op, SortedSegmentRangeLogMeanExp):
        total /= per_row(ctx.xp.asarray(counts), total)
    return (ctx.xp.log(total) + maxima,)


@register
@dataclass(frozen=True)
class SortedSegmentRangeSumGradient(_RangeGradient):
    """dX[i] = dY of the segment of row i."""


@register
@dataclass(frozen=True)
class SortedSegmentRangeMeanGradient(_RangeGradient):
    """dX[i] = dY of the segment of row i, divided by the segment's number of rows."""


@register
@dataclass(frozen=True)
class SortedSegmentRangeMaxGradient(_RangeGradient):
    """dX = dY of the segment where X is the segment's maximum (at all of them, if several are equal), else 0."""


@register
@dataclass(frozen=True)
class SortedSegmentRangeLogSumExpGradient(_RangeGradient):
    """dX = dY of the segment times exp(X - Y)."""


@register
@dataclass(frozen=True)
class SortedSegmentRangeLogMeanExpGradient(_RangeGradient):
    """dX = dY of the segment times exp(X - Y), divided by the segment's number of rows."""


def _spread(op: Operator, ctx: RunContext, x: Any, y: Any, dy: Any, segments: Any, *, mean: bool) -> tuple[Any, Any]:
    """Return for each row of X its segment's rows of dY (divided by the number of rows if ``mean``) and of Y."""
    counts = counts_of_sorted(op, ctx, segments)
    rows = math.prod(dy.shape[: dy.ndim - x.ndim + 1])  # states of step nets have an additional first axis
    y, dy = (array.reshape((rows, *x.shape[1:])) for array in (y, dy))
    require(
        counts.size == dy.shape[0], op, f"dY must have a row for each of the {counts.size} segments, got {dy.shape[0]}"
    )
    numbers = segment_numbers(ctx, counts)
    share = dy / per_row(ctx.xp.asarray(counts), dy) if mean else dy
    return share.take(numbers, axis=0), y.take(numbers, axis=0)


@kernel(SortedSegmentRangeSumGradient)
@kernel(SortedSegmentRangeMeanGradient)
def range_sum_gradient(op: _RangeGradient, ctx: RunContext, x: Any, y: Any, dy: Any, segments: Any) -> tuple[Any, ...]:
    return _spread(op, ctx, x, y, dy, segments, mean=isinstance(op, SortedSegmentRangeMeanGradient))[:1]


@kernel(SortedSegmentRangeMaxGradient)
def range_max_gradient(op: _RangeGradient, ctx: RunContext, x: Any, y: Any, dy: Any, segments: Any) -> tuple[Any, ...]:
    d_rows, maxima = _spread(op, ctx, x, y, dy, segments, mean=False)
    return (ctx.xp.where(x == maxima, d_rows, dy.dtype.type(0)),)


@kernel(SortedSegmentRangeLogSumExpGradient)
@kernel(SortedSegmentRangeLogMeanExpGradient)
def range_log_exp_gradient(
    op: _RangeGradient, ctx: RunContext, x: Any, y: Any, dy: Any, segments: Any
) -> tuple[Any, ...]:
    mean = isinstance(op, SortedSegmentRangeLogMeanExpGradient)
    d_rows, logs = _spread(op, ctx, x, y, dy, segments, mean=mean)
    return (d_rows * ctx.xp.exp(x - logs),)
