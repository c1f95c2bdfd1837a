"""Reductions by segment ids of gathered or weighted rows: SparseSortedSegmentSum and related operators."""

from __future__ import annotations

import abc
from typing import Any, ClassVar, Literal

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.given_numbers import check_extents
from netbuilder.ops.core.indexing import check_indices, checked_indices
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.segment_groups import (
    as_rows,
    check_integers,
    check_weights,
    counts_of_sorted,
    per_row,
    reduce_segments,
)
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "SortedSegmentWeightedSum",
    "SortedSegmentWeightedSumGradient",
    "SparseSortedSegmentMean",
    "SparseSortedSegmentSum",
    "SparseSortedSegmentWeightedSum",
    "SparseUnsortedSegmentMean",
    "SparseUnsortedSegmentSum",
    "SparseUnsortedSegmentWeightedSum",
    "UnsortedSegmentWeightedSum",
    "UnsortedSegmentWeightedSumGradient",
]


@dataclass(frozen=True)
class _SegmentReduction(Operator, abc.ABC):
    """Base: sums of rows by segment. The gradient operator is named ``kind`` + "Gradient"."""

    signature = "X (R, *S): float, indices (I): int32|int64, segments (I): int32|int64 -> Y (M, *S): as X"
    kind: ClassVar[str]
    mean: ClassVar[bool] = False
    dynamic = True

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if type(self).inputs[index] == "segments" else "here"

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        names = type(self).inputs
        sparse = "indices" in names
        d_x = g.d_input("X") + ("_values" if sparse else "")
        inputs = [g.input("weights")] if "weights" in names else []
        if sparse:
            g.set_d_input_sparse("X", g.input("indices"), d_x)
        return [make_op(self.kind + "Gradient", [*inputs, g.d_output("Y"), g.input("segments")], [d_x])]

    def flops(self, *inputs: TensorSpec) -> int:
        x, *others = inputs
        return 2 * others[-1].size * (x.size // max(x.shape[0], 1))

    @abc.abstractmethod
    def counts(self, ctx: RunContext, x: Any, segments: Any) -> tuple[Any, Any]:
        """Return the rows per segment, on the host, and the order that sorts the rows by segment (None: sorted)."""


@dataclass(frozen=True)
class _Sorted(_SegmentReduction):
    """Base: the segment ids are sorted, begin with 0 and have no gaps."""

    def counts(self, ctx: RunContext, x: Any, segments: Any) -> tuple[Any, Any]:
        return counts_of_sorted(self, ctx, segments), None


@dataclass(frozen=True)
class _Unsorted(_SegmentReduction):
    """Base: the segment ids have any order; there are ``num_segments``, or as many as the greatest id requires."""

    num_segments: int = -1

    def counts(self, ctx: RunContext, x: Any, segments: Any) -> tuple[Any, Any]:
        numbers = ctx.host(segments)
        count = self.num_segments if self.num_segments > 0 else int(numbers.max(initial=-1)) + 1
        check_indices(self.type, numbers, count)
        check_extents(f"{self.type}: the numbers of rows of segments", (count,), np.int64)
        check_extents(f"{self.type}: Y", (count, *x.shape[1:]), x.dtype)
        return np.bincount(numbers, minlength=count), np.argsort(numbers, kind="stable")


@register
@dataclass(frozen=True)
class SparseSortedSegmentSum(_Sorted):
    """Y[s] = the sum of the rows X[indices[i]] whose segment is s; the ids are sorted, without gaps.

    The gradient of X is sparse: the indices, and for each of them its segment's row of dY.
    """

    kind = "SortedSegmentSum"


@register
@dataclass(frozen=True)
class SparseSortedSegmentMean(_Sorted):
    """Y[s] = the mean of the rows X[indices[i]] whose segment is s; the ids are sorted, without gaps."""

    kind = "SortedSegmentMean"
    mean = True


@register
@dataclass(frozen=True)
class SparseUnsortedSegmentSum(_Unsorted):
    """Y[s] = the sum of the rows X[indices[i]] whose segment is s, in any order; 0 if there are none.

    There are ``num_segments`` segments, or as many as the greatest id requires. The gradient of X is sparse.
    """

    kind = "UnsortedSegmentSum"


@register
@dataclass(frozen=True)
class SparseUnsortedSegmentMean(_Unsorted):
    """Y[s] = the mean of the rows X[indices[i]] whose segment is s, in any order; 0 if there are none."""

    kind = "UnsortedSegmentMean"
    mean = True


@dataclass(frozen=True)
class _Weighted(_SegmentReduction):
    """Base: the rows are weighted."""

    grad_on_weights: bool = False

    def check(self) -> None:
        if self.grad_on_weights:
            raise ArgumentError(
                f"{self.type}: grad_on_weights is not supported; use an operator on lengths, such as LengthsWeightedSum"
            )


@register
@dataclass(frozen=True)
class SparseSortedSegmentWeightedSum(_Weighted, _Sorted):
    """Y[s] = the sum of the rows X[indices[i]] whose segment is s, each times ``weights[i]``, without a gradient."""

    signature = """
        X (R, *S): float
        weights (I): as X
        indices (I): int32|int64
        segments (I): int32|int64
        -> Y (M, *S): as X
    """
    kind = "SortedSegmentWeightedSum"


@register
@dataclass(frozen=True)
class SortedSegmentWeightedSum(_Weighted, _Sorted):
    """Y[s] = the sum of the rows of X whose segment is s, each times its weight; weights get no gradient."""

    signature = "X (N, *S): float, weights (N): as X, segments (N): int32|int64 -> Y (M, *S): as X"
    kind = "SortedSegmentWeightedSum"


@register
@dataclass(frozen=True)
class SparseUnsortedSegmentWeightedSum(_Weighted, _Unsorted):
    """Y[s] = the sum of the rows X[indices[i]] whose segment is s, in any order, each times ``weights[i]``."""

    signature = """
        X (R, *S): float
        weights (I): as X
        indices (I): int32|int64
        segments (I): int32|int64
        -> Y (M, *S): as X
    """
    kind = "UnsortedSegmentWeightedSum"


@register
@dataclass(frozen=True)
class UnsortedSegmentWeightedSum(_Weighted, _Unsorted):
    """Y[s] = the sum of the rows of X whose segment is s, in any order, each times its weight."""

    signature = "X (N, *S): float, weights (N): as X, segments (N): int32|int64 -> Y (M, *S): as X"
    kind = "UnsortedSegmentWeightedSum"


def _sum_rows(op: _SegmentReduction, ctx: RunContext, *given: Any) -> tuple[Any, ...]:
    named: dict[str, Any] = dict(zip(type(op).inputs, given))
    x, segments, indices, weights = named["X"], named["segments"], named.get("indices"), named.get("weights")
    indices = _check_given(op, ctx, x, segments, indices, weights)
    counts, order = op.counts(ctx, x, segments)
    rows = as_rows(x)
    out = ctx.xp.empty((counts.size, rows.shape[1]), x.dtype)
    ordered = None if order is None else ctx.xp.asarray(order)

    def gather(positions: Any) -> Any:
        positions = positions if ordered is None else ordered.take(positions)
        found = rows.take(positions if indices is None else indices.take(positions), axis=0)
        return found if weights is None else found * weights.take(positions)[:, None]

    reduce_segments(ctx.xp, counts, gather, out)
    if op.mean:
        out /= per_row(ctx.xp.asarray(counts.clip(1)), out)
    return (out.reshape((counts.size, *x.shape[1:])),)


def _check_given(op: _SegmentReduction, ctx: RunContext, x: Any, segments: Any, indices: Any, weights: Any) -> Any:
    """Raise an error unless the inputs fit each other; return the indices."""
    check_integers(op, "segments", segments)
    require(
        x.ndim >= 1 and x.dtype.kind == "f", op, f"X must be rows of floating-point numbers, got {x.shape} {x.dtype}"
    )
    count = x.shape[0]
    if indices is not None:
        check_integers(op, "indices", indices)
        indices = checked_indices(ctx, op.type, indices, x.shape[0])
        count = indices.shape[0]
    require(
        segments.shape == (count,),
        op,
        f"there must be a segment for each of the {count} {'rows of X' if indices is None else 'indices'}, "
        f"got {segments.shape[0]}",
    )
    if weights is not None:
        check_weights(op, weights, x, count)
    return indices


for _cls in (
    SortedSegmentWeightedSum,
    SparseSortedSegmentMean,
    SparseSortedSegmentSum,
    SparseSortedSegmentWeightedSum,
    SparseUnsortedSegmentMean,
    SparseUnsortedSegmentSum,
    SparseUnsortedSegmentWeightedSum,
    UnsortedSegmentWeightedSum,
):
    kernel(_cls)(_sum_rows)


@dataclass(frozen=True)
class _WeightedGradient(Operator):
    signature = "weights, dY, segments -> dX"
    grad_on_weights: bool = False


@register
@dataclass(frozen=True)
class SortedSegmentWeightedSumGradient(_WeightedGradient):
    """dX[i] = dY[segments[i]] times ``weights[i]``."""


@register
@dataclass(frozen=True)
class UnsortedSegmentWeightedSumGradient(_WeightedGradient):
    """dX[i] = dY[segments[i]] times ``weights[i]``, for segments in any order."""

    num_segments: int = -1


@kernel(SortedSegmentWeightedSumGradient)
@kernel(UnsortedSegmentWeightedSumGradient)
def weighted_sum_gradient(
    op: _WeightedGradient, ctx: RunContext, weights: Any, dy: Any, segments: Any
) -> tuple[Any, ...]:
    segments = checked_indices(ctx, op.type, segments, dy.shape[0])
    return (dy.take(segments, axis=0) * per_row(weights, dy),)
