"""Rows of a table gathered by indices and reduced by lengths: sums, means, maxima, and weighted sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, PlanContext, Prepared, RunContext
from netbuilder.ops.core.indexing import check_indices, checked_indices
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import CPU, kernel, prepare, register
from netbuilder.ops.core.segment_groups import (
    CACHED_BYTES,
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


def _look_up(op: _Lookup, ctx: RunContext, given: Sequence[Any], out: Any, spare: Any = None) -> None:
    """Write the reduced rows into ``out``; ``spare`` is flat memory for the rows gathered at a time."""
    x, *weights, indices, lengths = given
    indices = checked_indices(ctx, op.type, indices, x.shape[0])
    counts = counts_of_lengths(op, ctx, lengths, indices.shape[0])
    rows, total = as_rows(x), as_rows(out)
    width = rows.shape[1]
    weight = op.weights_of_rows(ctx, weights[0], counts) if weights else None

    def gather(positions: Any) -> Any:
        which = indices.take(positions)
        if spare is None or positions.size * width > spare.size:
            found = rows.take(which, axis=0)
        else:
            found = spare[: positions.size * width].reshape(positions.size, width)
            rows.take(which, 0, found, "clip")  # mode "raise" would write through a copy
        found = found.astype(total.dtype, copy=False)
        if weight is not None:
            found *= weight.take(positions)[:, None]
        return found

    reduce_segments(ctx.xp, counts, gather, total, how=op.how)
    if op.mean:
        total /= per_row(ctx.xp.asarray(counts.clip(1)), total)


def _plain(op: _Lookup, ctx: RunContext, *given: Any) -> tuple[Any, ...]:
    x, lengths = given[0], given[-1]
    out = ctx.xp.empty((lengths.shape[0], *x.shape[1:]), np.float32 if x.dtype == np.float16 else x.dtype)
    _look_up(op, ctx, given, out)
    return (out,)


def _prepare(op: _Lookup, ctx: PlanContext, *specs: TensorSpec) -> Prepared:
    plain = [spec.plain for spec in specs]
    dtype = plain[0].dtype
    spare_bytes = CACHED_BYTES

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        spare = scratch[:spare_bytes].view(dtype)
        return lambda: _look_up(op, ctx.run, inputs, outputs[0], spare)

    return Prepared(plain, op.infer(*plain), bind, scratch=spare_bytes, name="numpy rows by segment length")


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
    kernel(_cls)(_plain)
    prepare(_cls, device=CPU)(_prepare)


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


def _shares(op: _Spread, ctx: RunContext, dy: Any, lengths: Any, indices: Any) -> tuple[Any, Any]:
    """Return the rows of dY, scaled for a mean, and which of them each index gets."""
    counts = counts_of_lengths(op, ctx, lengths, indices.shape[0])
    share = dy / per_row(ctx.xp.asarray(counts.clip(1)), dy) if op.mean else dy
    return share, segment_numbers(ctx, counts)


def _spread(op: _Spread, ctx: RunContext, dy: Any, lengths: Any, indices: Any) -> tuple[Any, ...]:
    share, numbers = _shares(op, ctx, dy, lengths, indices)
    return (share.take(numbers, axis=0),)


def _prepare_spread(op: _Spread, ctx: PlanContext, *specs: TensorSpec) -> Prepared:
    plain = [spec.plain for spec in specs]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        def run() -> None:
            share, numbers = _shares(op, ctx.run, *inputs)
            if numbers.size:
                share.take(numbers, 0, outputs[0], "clip")

        return run

    return Prepared(plain, op.infer(*plain), bind, name="numpy.take")


for _gradient in (SparseLengthsIndicesInGradientSumGradient, SparseLengthsIndicesInGradientMeanGradient):
    kernel(_gradient)(_spread)
    prepare(_gradient, device=CPU)(_prepare_spread)


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


@prepare(SparseLengthsIndicesInGradientWeightedSumWithMainInputGradient, device=CPU)
def _prepare_both(op: Operator, ctx: PlanContext, *specs: TensorSpec) -> Prepared:
    """Prepare both outputs, computed in pieces of rows that stay in a core's cache."""
    plain = [spec.plain for spec in specs]
    dy = plain[1]
    width = math.prod(dy.shape[1:])
    piece = max(1, CACHED_BYTES // max(2 * width * dy.dtype.itemsize, 1))
    part = piece * width * dy.dtype.itemsize

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        (w, dy_array, lengths, x, indices), (values, d_weights) = inputs, outputs
        table, d_rows, out = as_rows(x), as_rows(dy_array), as_rows(values)
        spare = [scratch[at : at + part].view(dy.dtype).reshape(piece, width) for at in (0, part)]

        def run() -> None:
            check_indices(op.type, indices, x.shape[0])
            numbers = segment_numbers(ctx.run, counts_of_lengths(op, ctx.run, lengths, indices.shape[0]))
            for begin in range(0, numbers.size, piece):
                end = min(begin + piece, numbers.size)
                rows, of_segments = (memory[: end - begin] for memory in spare)
                table.take(indices[begin:end], 0, rows, "clip")
                d_rows.take(numbers[begin:end], 0, of_segments, "clip")
                np.einsum("ij,ij->i", rows, of_segments, out=d_weights[begin:end])
                np.multiply(of_segments, w[begin:end, None], out[begin:end])

        return run

    return Prepared(plain, op.infer(*plain), bind, scratch=2 * part, name="numpy rows in pieces")
