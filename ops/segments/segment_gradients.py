"""Gradients of segment reductions under further names of Caffe2, which its backward passes no longer use.

Nets stored by old versions of Caffe2 contain them. They compute the same as the operators in use, but find the number
of rows from their own inputs.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.given_numbers import check_extents
from netbuilder.ops.core.operator import Operator, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.segment_groups import (
    counts_of_lengths,
    lengths_on_host,
    per_row,
    segment_numbers,
)
from netbuilder.ops.segments.sorted_segments import (
    SortedSegmentMeanGradient,
    SortedSegmentSumGradient,
    sorted_segments_gradient,
)
from netbuilder.ops.segments.sparse import (
    UnsortedSegmentMeanGradient,
    UnsortedSegmentSumGradient,
    unsorted_segment_mean_gradient,
    unsorted_segment_sum_gradient,
)
from netbuilder.ops.segments.sparse_lengths import (
    SparseLengthsIndicesInGradientWeightedSumWithMainInputGradient,
    weighted_gradient_both,
)
from netbuilder.ops.segments.sparse_segments import (
    SortedSegmentWeightedSumGradient,
    UnsortedSegmentWeightedSumGradient,
    weighted_sum_gradient,
)
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "LengthsMeanGradient",
    "LengthsSumGradient",
    "SparseLengthsMeanGradient",
    "SparseLengthsSumGradient",
    "SparseLengthsWeightedSumGradient",
    "SparseLengthsWeightedSumWithMainInputGradient",
    "SparseSortedSegmentMeanGradient",
    "SparseSortedSegmentSumGradient",
    "SparseSortedSegmentWeightedSumGradient",
    "SparseUnsortedSegmentMeanGradient",
    "SparseUnsortedSegmentSumGradient",
    "SparseUnsortedSegmentWeightedSumGradient",
]


@dataclass(frozen=True)
class _Spread(Operator):
    """Base: the number of rows follows from the lengths."""

    signature = "dY, lengths -> dX"
    flops_per_element = 0
    dynamic: ClassVar[bool] = True
    mean: ClassVar[bool] = False

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if type(self).inputs[index] == "lengths" else "here"


def _check_dy(op: Operator, dy: Any, lengths: Any) -> None:
    text = f"dY must have a row for each of the lengths, {lengths.shape}, got shape {dy.shape}"
    require(dy.ndim >= 1 and dy.shape[:1] == lengths.shape, op, text)


def _spread(op: _Spread, ctx: RunContext, dy: Any, lengths: Any) -> tuple[Any, ...]:
    counts = lengths_on_host(op, ctx, lengths)
    _check_dy(op, dy, lengths)
    check_extents(f"{op.type}: dX", (int(counts.sum()), *dy.shape[1:]), dy.dtype)
    share = dy / per_row(ctx.xp.asarray(counts.clip(1)), dy) if op.mean else dy
    return (share.take(segment_numbers(ctx, counts), axis=0),)


@register
@dataclass(frozen=True)
class LengthsSumGradient(_Spread):
    """For each row of a segment, the segment's row of dY."""


@register
@dataclass(frozen=True)
class LengthsMeanGradient(_Spread):
    """For each row of a segment, the segment's row of dY divided by the segment's length."""

    mean = True


@register
@dataclass(frozen=True)
class SparseLengthsSumGradient(_Spread):
    """For each index of a segment, the segment's row of dY."""


@register
@dataclass(frozen=True)
class SparseLengthsMeanGradient(_Spread):
    """For each index of a segment, the segment's row of dY divided by the segment's length."""

    mean = True


for _cls in (LengthsSumGradient, LengthsMeanGradient, SparseLengthsSumGradient, SparseLengthsMeanGradient):
    kernel(_cls)(_spread)


@register
@dataclass(frozen=True)
class SparseLengthsWeightedSumGradient(_Spread):
    """For each index of a segment, the segment's row of dY times the weight of the index."""

    signature = "weights (I): float, dY (M, *S): as weights, lengths (M): int32|int64 -> dX (I, *S): as dY"
    dynamic = False
    grad_on_weights: bool = False


@kernel(SparseLengthsWeightedSumGradient)
def weighted_rows(op: Operator, ctx: RunContext, weights: Any, dy: Any, lengths: Any) -> tuple[Any, ...]:
    numbers = segment_numbers(ctx, counts_of_lengths(op, ctx, lengths, weights.shape[0]))
    return (dy.take(numbers, axis=0) * per_row(weights, dy),)


@register
@dataclass(frozen=True)
class SparseLengthsWeightedSumWithMainInputGradient(SparseLengthsIndicesInGradientWeightedSumWithMainInputGradient):
    """The same as SparseLengthsIndicesInGradientWeightedSumWithMainInputGradient."""


@register
@dataclass(frozen=True)
class SparseSortedSegmentSumGradient(SortedSegmentSumGradient):
    """The same as SortedSegmentSumGradient: one row per index."""


@register
@dataclass(frozen=True)
class SparseSortedSegmentMeanGradient(SortedSegmentMeanGradient):
    """The same as SortedSegmentMeanGradient: one row per index."""


@register
@dataclass(frozen=True)
class SparseSortedSegmentWeightedSumGradient(SortedSegmentWeightedSumGradient):
    """The same as SortedSegmentWeightedSumGradient: one row per index."""


@register
@dataclass(frozen=True)
class SparseUnsortedSegmentSumGradient(UnsortedSegmentSumGradient):
    """The same as UnsortedSegmentSumGradient: one row per index."""


@register
@dataclass(frozen=True)
class SparseUnsortedSegmentMeanGradient(UnsortedSegmentMeanGradient):
    """The same as UnsortedSegmentMeanGradient: one row per index."""


@register
@dataclass(frozen=True)
class SparseUnsortedSegmentWeightedSumGradient(UnsortedSegmentWeightedSumGradient):
    """The same as UnsortedSegmentWeightedSumGradient: one row per index."""


kernel(SparseLengthsWeightedSumWithMainInputGradient)(weighted_gradient_both)
kernel(SparseSortedSegmentSumGradient)(sorted_segments_gradient)
kernel(SparseSortedSegmentMeanGradient)(sorted_segments_gradient)
kernel(SparseSortedSegmentWeightedSumGradient)(weighted_sum_gradient)
kernel(SparseUnsortedSegmentSumGradient)(unsorted_segment_sum_gradient)
kernel(SparseUnsortedSegmentMeanGradient)(unsorted_segment_mean_gradient)
kernel(SparseUnsortedSegmentWeightedSumGradient)(weighted_sum_gradient)
