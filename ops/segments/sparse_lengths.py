"""Rows of a table gathered by indices and reduced by lengths: sums, means, maxima, and weighted sums."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.indexing import checked_indices
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.segment_groups import (
    as_rows,
    counts_of_lengths,
    per_row,
    reduce_segments,
    segment_numbers,
)
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "SparseLengthsIndicesInGradientMeanGradient",
    "SparseLengthsIndicesInGradientSumGradient",
    "SparseLengthsIndicesInGradientWeightedSumGradient",
    "SparseLengthsIndicesInGradientWeightedSumWithMainInputGradient",
    "SparseLengthsMax",
    "SparseLengthsMean",
    "SparseLengthsPositionalWeightedSum",
    "SparseLengthsSum",
    "SparseLengthsWeightedSum",
]


@dataclass(frozen=True)
class _Lookup(Operator):
    """Base: the lengths are read on the host. Rows of float16 are summed in float32; weights and Y are float32 then."""

    signature = "X, indices, lengths -> Y"
    how: ClassVar[str] = "sum"
    mean: ClassVar[bool] = False
    by_position: ClassVar[bool] = False  # whether the weights belong to positions in segments

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if type(self).inputs[index] == "lengths" else "here"

    def check_inputs(self, x: TensorSpec, *others: TensorSpec) -> None:
        wide = np.dtype(np.float32) if x.dtype == np.float16 else x.dtype
        for weights in others[:-2]:
            require(weights.dtype == wide, self, f"weights must have type {wide}, got {weights.dtype}")

    def weights_of_rows(self, ctx: RunContext, weights: Any, counts: Any) -> Any:
        """Return the weight of each index."""
        return weights

    def flops(self, *inputs: TensorSpec) -> int:
        x, *weights, indices, _ = inputs
        return (1 + len(weights)) * indices.size * (x.size // max(x.shape[0], 1))


def _look_up(op: _Lookup, ctx: RunContext, *given: Any) -> tuple[Any, ...]:
    x, *weights, indices, lengths = given
    indices = checked_indices(ctx, op.type, indices, x.shape[0])
    counts = counts_of_lengths(op, ctx, lengths, indices.shape[0])
    out = ctx.xp.empty((lengths.shape[0], *x.shape[1:]), np.float32 if x.dtype == np.float16 else x.dtype)
    rows, total = as_rows(x), as_rows(out)
    weight = op.weights_of_rows(ctx, weights[0], counts) if weights else None

    def gather(positions: Any) -> Any:
        found = rows.take(indices.take(positions), axis=0).astype(total.dtype, copy=False)
        if weight is not None:
            found *= weight.take(positions)[:, None]
        return found

    reduce_segments(ctx.xp, counts, gather, total, how=op.how)
    if op.mean:
        total /= per_row(ctx.xp.asarray(counts.clip(1)), total)
    return (out,)


@register
@dataclass(frozen=True)
class SparseLengthsSum(_Lookup):
    """Y[s] = the sum of the rows X[i] over the indices i of segment s; the first ``lengths[0]`` indices are segment 0.

    The gradient of X is sparse: the indices, and for each of them its segment's row of dY.
    """

    signature = """
        X (R, *S): float
        indices (I): int32|int64
        lengths (M): int32|int64
        -> Y (M, *S): wide X
    """

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return _sparse_gradient(g, "SparseLengthsIndicesInGradientSumGradient")


@register
@dataclass(frozen=True)
class SparseLengthsMean(_Lookup):
    """Y[s] = the mean of the rows X[i] over the indices i of segment s, 0 for one of length 0."""

    signature = """
        X (R, *S): float
        indices (I): int32|int64
        lengths (M): int32|int64
        -> Y (M, *S): wide X
    """
    mean = True

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return _sparse_gradient(g, "SparseLengthsIndicesInGradientMeanGradient")


@register
@dataclass(frozen=True)
class SparseLengthsMax(_Lookup):
    """Y[s] = the elementwise maximum of the rows X[i] over the indices i of segment s, 0 for one of length 0.

    No gradient: use Gather and LengthsMax for that. (Caffe2 declares this operator, but has no CPU kernel for it.)
    """

    signature = """
        X (R, *S): float
        indices (I): int32|int64
        lengths (M): int32|int64
        -> Y (M, *S): wide X
    """
    how = "max"


def _sparse_gradient(g: GradientContext, op_type: str) -> list[OperatorDef]:
    indices, values = g.input("indices"), g.d_input("X") + "_values"
    made = make_op(op_type, [g.d_output("Y"), g.input("lengths"), indices], [values])
    g.set_d_input_sparse("X", indices, values)
    return [made]


@register
@dataclass(frozen=True)
class SparseLengthsWeightedSum(_Lookup):
    """Y[s] = the sum of the rows X[i] over the indices i of segment s, each times its weight.

    The weights, one per index, have a gradient only with ``grad_on_weights``.
    """

    signature = """
        X (R, *S): float
        weights (I): wide X
        indices (I): int32|int64
        lengths (M): int32|int64
        -> Y (M, *S): wide X
    """
    grad_on_weights: bool = False

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        weights, dy, lengths, indices = g.input("weights"), g.d_output("Y"), g.input("lengths"), g.input("indices")
        values = g.d_input("X") + "_values"
        if self.grad_on_weights:
            op_type = "SparseLengthsIndicesInGradientWeightedSumWithMainInputGradient"
            inputs, outputs = [weights, dy, lengths, g.input("X"), indices], [values, g.d_input("weights")]
        else:
            op_type = "SparseLengthsIndicesInGradientWeightedSumGradient"
            inputs, outputs = [weights, dy, lengths, indices], [values]
        g.set_d_input_sparse("X", indices, values)
        return [make_op(op_type, inputs, outputs)]


@register
@dataclass(frozen=True)
class SparseLengthsPositionalWeightedSum(_Lookup):
    """As SparseLengthsWeightedSum, but with weights by position: ``weights[k]`` for index k of each segment.

    There must be at least as many weights as the longest segment has indices. No gradient.
    """

    signature = """
        X (R, *S): float
        weights (P): wide X
        indices (I): int32|int64
        lengths (M): int32|int64
        -> Y (M, *S): wide X
    """
    by_position = True

    def weights_of_rows(self, ctx: RunContext, weights: Any, counts: Any) -> Any:
        longest = int(counts.max(initial=0))
        require(
            longest <= weights.shape[0],
            self,
            f"weights must have an element for each index of the longest segment, {longest}; got {weights.shape[0]}",
        )
        starts = np.cumsum(counts) - counts
        return weights.take(ctx.xp.asarray(np.arange(counts.sum()) - np.repeat(starts, counts)))


for _cls in (
    SparseLengthsSum,
    SparseLengthsMean,
    SparseLengthsMax,
    SparseLengthsWeightedSum,
    SparseLengthsPositionalWeightedSum,
):
    kernel(_cls)(_look_up)


@dataclass(frozen=True)
class _Values(Operator):
    """Base: the values of a sparse gradient, one row per index."""

    signature = "-> values"

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if type(self).inputs[index] == "lengths" else "here"


@dataclass(frozen=True)
class _Spread(_Values):
    signature = """
        dY (M, *S): any
        lengths (M): int32|int64
        indices (I): int32|int64
        -> values (I, *S): as dY
    """
    mean: ClassVar[bool] = False


@register
@dataclass(frozen=True)
class SparseLengthsIndicesInGradientSumGradient(_Spread):
    """values = for each index, its segment's row of dY."""


@register
@dataclass(frozen=True)
class SparseLengthsIndicesInGradientMeanGradient(_Spread):
    """values = for each index, its segment's row of dY divided by the segment's length."""

    mean = True


@kernel(SparseLengthsIndicesInGradientSumGradient)
@kernel(SparseLengthsIndicesInGradientMeanGradient)
def _spread(op: _Spread, ctx: RunContext, dy: Any, lengths: Any, indices: Any) -> tuple[Any, ...]:
    counts = counts_of_lengths(op, ctx, lengths, indices.shape[0])
    share = dy / per_row(ctx.xp.asarray(counts.clip(1)), dy) if op.mean else dy
    return (share.take(segment_numbers(ctx, counts), axis=0),)


@register
@dataclass(frozen=True)
class SparseLengthsIndicesInGradientWeightedSumGradient(_Values):
    """values = for each index, its segment's row of dY times the weight of the index."""

    signature = """
        weights (I): float
        dY (M, *S): as weights
        lengths (M): int32|int64
        indices (I): int32|int64
        -> values (I, *S): as dY
    """
    grad_on_weights: bool = False


@kernel(SparseLengthsIndicesInGradientWeightedSumGradient)
def weighted_gradient(
    op: Operator, ctx: RunContext, weights: Any, dy: Any, lengths: Any, indices: Any
) -> tuple[Any, ...]:
    numbers = segment_numbers(ctx, counts_of_lengths(op, ctx, lengths, indices.shape[0]))
    values = dy.take(numbers, axis=0)
    values *= per_row(weights, dy)
    return (values,)


@register
@dataclass(frozen=True)
class SparseLengthsIndicesInGradientWeightedSumWithMainInputGradient(_Values):
    """values as without the main input; dweights = the inner products of the rows of X and of their segments' dY."""

    signature = """
        weights (I): float
        dY (M, *S): as weights
        lengths (M): int32|int64
        X (R, *S): as weights
        indices (I): int32|int64
        -> values (I, *S): as dY
        -> dweights: as weights
    """
    grad_on_weights: bool = False


@kernel(SparseLengthsIndicesInGradientWeightedSumWithMainInputGradient)
def weighted_gradient_both(
    op: Operator, ctx: RunContext, weights: Any, dy: Any, lengths: Any, x: Any, indices: Any
) -> tuple[Any, ...]:
    indices = checked_indices(ctx, op.type, indices, x.shape[0])
    numbers = segment_numbers(ctx, counts_of_lengths(op, ctx, lengths, indices.shape[0]))
    values = dy.take(numbers, axis=0)
    d_weights = (as_rows(values) * as_rows(x).take(indices, axis=0)).sum(axis=1)
    return values * per_row(weights, dy), d_weights
