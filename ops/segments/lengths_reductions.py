"""Reductions of segments given by their lengths: LengthsSum, LengthsMean, LengthsMax, LengthsWeightedSum."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from netbuilder.ops.core.contexts import GradientContext, RunContext
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
    "LengthsIndicesInGradientMeanGradient",
    "LengthsIndicesInGradientSumGradient",
    "LengthsMax",
    "LengthsMaxWithMainInputAndForwardOutputGradient",
    "LengthsMean",
    "LengthsSum",
    "LengthsWeightedSum",
    "LengthsWeightedSumGradient",
    "LengthsWeightedSumWithMainInputGradient",
    "reduce_rows",
]


class _OnHost(Operator):
    """Base: the lengths are read on the host."""

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        names = type(self).inputs
        return "host" if names[index] == "lengths" else "here"


def _check_rows(op: Operator, x: TensorSpec) -> None:
    require(x.ndim >= 1, op, "X must have rows, got a scalar")
    require(x.dtype.kind == "f", op, f"X must hold floating-point numbers, got {x.dtype}")


@dataclass(frozen=True)
class _Reduction(_OnHost):
    signature = "X, lengths -> Y"
    flops_per_element = 1
    mean: ClassVar[bool] = False
    by_position: ClassVar[bool] = False


def reduce_rows(ctx: RunContext, counts: Any, x: Any, weights: Any = None, *, how: str = "sum") -> Any:
    """Return the reductions of the segments of X that have ``counts`` rows each; ``weights`` multiply the rows."""
    rows = as_rows(x)
    out = ctx.xp.empty((counts.size, rows.shape[1]), x.dtype)

    def gather(positions: Any) -> Any:
        found = rows.take(positions, axis=0)
        return found if weights is None else found * weights.take(positions)[:, None]

    reduce_segments(ctx.xp, counts, gather, out, how=how)
    return out.reshape((counts.size, *x.shape[1:]))


@register
@dataclass(frozen=True)
class LengthsSum(_Reduction):
    """Y[s] = the sum of the rows of segment s; the first ``lengths[0]`` rows of X are segment 0, and so on."""

    signature = "X (N, *S): float, lengths (M): int32|int64 -> Y (M, *S): as X"

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.d_output("Y"), g.input("lengths"), g.input("X")]
        return [make_op("LengthsIndicesInGradientSumGradient", inputs, [g.d_input("X")])]


@kernel(LengthsSum)
def lengths_sum(op: LengthsSum, ctx: RunContext, x: Any, lengths: Any) -> tuple[Any, ...]:
    return (reduce_rows(ctx, counts_of_lengths(op, ctx, lengths, x.shape[0]), x),)


@register
@dataclass(frozen=True)
class LengthsMean(_Reduction):
    """Y[s] = the mean of the rows of segment s, 0 for a segment of length 0."""

    signature = "X (N, *S): float, lengths (M): int32|int64 -> Y (M, *S): as X"
    mean = True

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.d_output("Y"), g.input("lengths"), g.input("X")]
        return [make_op("LengthsIndicesInGradientMeanGradient", inputs, [g.d_input("X")])]


@kernel(LengthsMean)
def lengths_mean(op: LengthsMean, ctx: RunContext, x: Any, lengths: Any) -> tuple[Any, ...]:
    counts = counts_of_lengths(op, ctx, lengths, x.shape[0])
    total = reduce_rows(ctx, counts, x)
    return (total / per_row(ctx.xp.asarray(counts.clip(1)), total),)


@register
@dataclass(frozen=True)
class LengthsMax(_Reduction):
    """Y[s] = the elementwise maximum of the rows of segment s; 0 for a segment of length 0."""

    signature = "X (N, *S): float, lengths (M): int32|int64 -> Y (M, *S): as X"

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.output("Y"), g.d_output("Y"), g.input("lengths"), g.input("X")]
        return [make_op("LengthsMaxWithMainInputAndForwardOutputGradient", inputs, [g.d_input("X")])]


@kernel(LengthsMax)
def lengths_max(op: LengthsMax, ctx: RunContext, x: Any, lengths: Any) -> tuple[Any, ...]:
    return (reduce_rows(ctx, counts_of_lengths(op, ctx, lengths, x.shape[0]), x, how="max"),)


@register
@dataclass(frozen=True)
class LengthsWeightedSum(_Reduction):
    """Y[s] = the sum of the rows of segment s, each times its weight.

    The weights, one per row, have a gradient only with ``grad_on_weights``.
    """

    signature = "X (N, *S): float, weights (N): as X, lengths (M): int32|int64 -> Y (M, *S): as X"
    flops_per_element = 2
    grad_on_weights: bool = False

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("weights"), g.d_output("Y"), g.input("lengths")]
        if self.grad_on_weights:
            outputs = [g.d_input("X"), g.d_input("weights")]
            return [make_op("LengthsWeightedSumWithMainInputGradient", [*inputs, g.input("X")], outputs)]
        return [make_op("LengthsWeightedSumGradient", inputs, [g.d_input("X")])]


@kernel(LengthsWeightedSum)
def lengths_weighted_sum(
    op: LengthsWeightedSum, ctx: RunContext, x: Any, weights: Any, lengths: Any
) -> tuple[Any, ...]:
    return (reduce_rows(ctx, counts_of_lengths(op, ctx, lengths, x.shape[0]), x, weights),)


@dataclass(frozen=True)
class _FromSegments(_OnHost):
    """Base: gradients that read only the shape of X."""

    signature = "dY (M, *S): float, lengths (M): int32|int64, X (N, *S): float -> dX: as X"


@register
@dataclass(frozen=True)
class LengthsIndicesInGradientSumGradient(_FromSegments):
    """dX = for each row of X, its segment's row of dY."""


@kernel(LengthsIndicesInGradientSumGradient)
def lengths_sum_gradient(op: Operator, ctx: RunContext, dy: Any, lengths: Any, x: Any) -> tuple[Any, ...]:
    counts = counts_of_lengths(op, ctx, lengths, x.shape[0])
    return (dy.take(segment_numbers(ctx, counts), axis=0),)


@register
@dataclass(frozen=True)
class LengthsIndicesInGradientMeanGradient(_FromSegments):
    """dX = for each row of X, its segment's row of dY divided by the segment's length."""


@kernel(LengthsIndicesInGradientMeanGradient)
def lengths_mean_gradient(op: Operator, ctx: RunContext, dy: Any, lengths: Any, x: Any) -> tuple[Any, ...]:
    counts = counts_of_lengths(op, ctx, lengths, x.shape[0])
    share = dy / per_row(ctx.xp.asarray(counts.clip(1)), dy)
    return (share.take(segment_numbers(ctx, counts), axis=0),)


@register
@dataclass(frozen=True)
class LengthsMaxWithMainInputAndForwardOutputGradient(_OnHost):
    """dX = dY of the segment where X is the segment's maximum (at all of them, if several are equal), else 0."""

    signature = "Y (M, *S): float, dY (M, *S): as Y, lengths (M): int32|int64, X (N, *S): as Y -> dX: as X"


@kernel(LengthsMaxWithMainInputAndForwardOutputGradient)
def lengths_max_gradient(op: Operator, ctx: RunContext, y: Any, dy: Any, lengths: Any, x: Any) -> tuple[Any, ...]:
    numbers = segment_numbers(ctx, counts_of_lengths(op, ctx, lengths, x.shape[0]))
    return (ctx.xp.where(x == y.take(numbers, axis=0), dy.take(numbers, axis=0), dy.dtype.type(0)),)


@register
@dataclass(frozen=True)
class LengthsWeightedSumGradient(_OnHost):
    """dX = for each row of X, its segment's row of dY times its weight."""

    signature = "weights, dY, lengths -> dX"
    grad_on_weights: bool = False


@kernel(LengthsWeightedSumGradient)
def lengths_weighted_sum_gradient(
    op: Operator, ctx: RunContext, weights: Any, dy: Any, lengths: Any
) -> tuple[Any, ...]:
    numbers = segment_numbers(ctx, counts_of_lengths(op, ctx, lengths, weights.shape[0]))
    return (dy.take(numbers, axis=0) * per_row(weights, dy),)


@register
@dataclass(frozen=True)
class LengthsWeightedSumWithMainInputGradient(_OnHost):
    """dX as LengthsWeightedSumGradient; dweights = the inner products of the rows of X and of their segments' dY."""

    signature = """
        weights (N): float
        dY (M, *S): as weights
        lengths (M): int32|int64
        X (N, *S): as weights
        -> dX: as X
        -> dweights: as weights
    """
    grad_on_weights: bool = False


@kernel(LengthsWeightedSumWithMainInputGradient)
def lengths_weighted_sum_both(
    op: Operator, ctx: RunContext, weights: Any, dy: Any, lengths: Any, x: Any
) -> tuple[Any, ...]:
    numbers = segment_numbers(ctx, counts_of_lengths(op, ctx, lengths, x.shape[0]))
    rows = dy.take(numbers, axis=0)
    return rows * per_row(weights, dy), (as_rows(rows) * as_rows(x)).sum(axis=1)
