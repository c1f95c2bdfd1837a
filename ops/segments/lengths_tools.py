"""Lengths of segments converted to ids, ranges, offsets and weights, and rows repeated, padded or gathered by them."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.given_numbers import check_extents, one_integer
from netbuilder.ops.core.indexing import check_indices
from netbuilder.ops.core.operator import Operator, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.segment_groups import (
    check_integers,
    check_row_work,
    counts_of_lengths,
    lengths_on_host,
    positions_in_segments,
    segment_starts,
)
from netbuilder.proto import ArgumentError, OperatorDef, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "LengthsGather",
    "LengthsPad",
    "LengthsSplit",
    "LengthsTile",
    "LengthsToOffsets",
    "LengthsToRanges",
    "LengthsToSegmentIds",
    "LengthsToWeights",
    "SegmentIdsToLengths",
    "SegmentIdsToRanges",
]


@dataclass(frozen=True)
class _OnHost(Operator):
    """Base: all inputs except X are read on the host."""

    signature = "-> Y"
    flops_per_element = 0

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "here" if type(self).inputs[index] == "X" else "host"


@dataclass(frozen=True)
class _OfLengths(_OnHost):
    signature = "lengths -> Y"

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return []  # not differentiable


@register
@dataclass(frozen=True)
class LengthsToSegmentIds(_OfLengths):
    """Y = the number of each row's segment, int32: lengths 2, 0, 1 give 0, 0, 2."""

    signature = "lengths (M): int32|int64 -> Y (N): int32"
    dynamic = True


@kernel(LengthsToSegmentIds)
def lengths_to_segment_ids(op: LengthsToSegmentIds, ctx: RunContext, lengths: Any) -> tuple[Any, ...]:
    counts = lengths_on_host(op, ctx, lengths)
    return (ctx.xp.asarray(np.repeat(np.arange(counts.size, dtype=np.int32), counts)),)


def _sorted_counts(op: Operator, ctx: RunContext, segments: Any, like: Any) -> Any:
    check_integers(op, "segments", segments)
    numbers = ctx.host(segments)
    if numbers.size and (numbers[0] < 0 or (numbers[1:] < numbers[:-1]).any()):
        raise ShapeError(f"{op.type}: segments must be sorted and not negative, got {numbers[:16].tolist()}")
    least = 0 if like is None else like.shape[0]
    extent = max(int(numbers[-1]) + 1 if numbers.size else 0, least)
    check_extents(f"{op.type}: the work on all segments", (extent, 3), np.int64)
    counts = np.bincount(numbers, minlength=least) if numbers.size else np.zeros(least, np.int64)
    if like is not None and counts.size > least:
        raise ShapeError(
            f"{op.type}: segments must be less than {least}, the rows of the second input, got {numbers[-1]}"
        )
    return counts


@dataclass(frozen=True)
class _OfSegments(_OfLengths):
    signature = "segments, like? -> Y"
    dynamic = True

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if index == 0 else "any"


@register
@dataclass(frozen=True)
class SegmentIdsToLengths(_OfSegments):
    """Y = the number of rows of each segment, int32: segments 0, 0, 2 give 2, 0, 1.

    The ids are sorted. There are as many segments as the last id requires, or as the second input has rows.
    """

    signature = """
        segments (N): int32|int64
        like? (M, ...): any, M segments
        -> Y (M): int32
    """


@kernel(SegmentIdsToLengths)
def segment_ids_to_lengths(
    op: SegmentIdsToLengths, ctx: RunContext, segments: Any, like: Any = None
) -> tuple[Any, ...]:
    return (ctx.xp.asarray(_sorted_counts(op, ctx, segments, like).astype(np.int32)),)


@register
@dataclass(frozen=True)
class SegmentIdsToRanges(_OfSegments):
    """Y[s] = the first row of segment s and its number of rows, int32; see SegmentIdsToLengths."""

    signature = """
        segments (N): int32|int64
        like? (M, ...): any, M segments
        -> Y (M, 2): int32
    """


@kernel(SegmentIdsToRanges)
def segment_ids_to_ranges(op: SegmentIdsToRanges, ctx: RunContext, segments: Any, like: Any = None) -> tuple[Any, ...]:
    counts = _sorted_counts(op, ctx, segments, like)
    return (ctx.xp.asarray(np.stack([segment_starts(counts), counts], axis=1).astype(np.int32)),)


@register
@dataclass(frozen=True)
class LengthsToRanges(_OfLengths):
    """Y[s] = the first row of segment s and its length, int32."""

    signature = "lengths (M): int32|int64 -> Y (M, 2): int32"


@kernel(LengthsToRanges)
def lengths_to_ranges(op: LengthsToRanges, ctx: RunContext, lengths: Any) -> tuple[Any, ...]:
    counts = lengths_on_host(op, ctx, lengths)
    return (ctx.xp.asarray(np.stack([segment_starts(counts), counts], axis=1).astype(np.int32)),)


@register
@dataclass(frozen=True)
class LengthsToOffsets(_OfLengths):
    """Y[s] = the first row of segment s, int32; with ``include_last_offset`` the number of rows follows."""

    signature = "lengths (M): int32|int64 -> Y (M + include_last_offset): int32"
    include_last_offset: bool = False


@kernel(LengthsToOffsets)
def lengths_to_offsets(op: LengthsToOffsets, ctx: RunContext, lengths: Any) -> tuple[Any, ...]:
    counts = lengths_on_host(op, ctx, lengths)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return (ctx.xp.asarray(offsets if op.include_last_offset else offsets[:-1]),)


@register
@dataclass(frozen=True)
class LengthsToWeights(_OfLengths):
    """Y = for each row 1 / (length of its segment) ** ``power``, float32."""

    signature = "lengths (M): int32|int64 -> Y (N): float32"
    dynamic = True
    power: float = 0.5


@kernel(LengthsToWeights)
def lengths_to_weights(op: LengthsToWeights, ctx: RunContext, lengths: Any) -> tuple[Any, ...]:
    counts = lengths_on_host(op, ctx, lengths)
    weights = np.maximum(counts, 1).astype(np.float64) ** -op.power
    return (ctx.xp.asarray(np.repeat(weights, counts).astype(np.float32)),)


@register
@dataclass(frozen=True)
class LengthsSplit(_OfLengths):
    """Y = each length split into n parts, as equal as possible, longer ones first: 9, 4 by 3 give 3, 3, 3, 2, 1, 1.

    n is the second input or, without one, ``n_split``.
    """

    signature = """
        lengths (M): int32|int64
        n_split? (1): int32
        -> Y (K) if n_split else (M * n_split): as lengths
    """
    n_split: int = -1

    def with_arity(self, n_in: int, n_out: int) -> Any:
        object.__setattr__(self, "dynamic", n_in == 2)
        return super().with_arity(n_in, n_out)

    def check(self) -> None:
        if self.n_in == 1 and self.n_split < 1:
            raise ArgumentError(f"LengthsSplit: n_split must be positive, or be the second input, got {self.n_split}")


@kernel(LengthsSplit)
def lengths_split(op: LengthsSplit, ctx: RunContext, lengths: Any, n_split: Any = None) -> tuple[Any, ...]:
    counts = lengths_on_host(op, ctx, lengths)
    parts = op.n_split if n_split is None else one_integer(op, ctx, n_split, "n_split")
    require(parts >= 1, op, f"n_split must be positive, got {parts}")
    check_extents(f"LengthsSplit: at n_split {parts} Y", (max(counts.size, 1) * parts, 3), np.int64)
    pieces = counts[:, None] // parts + (np.arange(parts) < counts[:, None] % parts)
    return (ctx.xp.asarray(pieces.reshape(-1).astype(lengths.dtype)),)


@register
@dataclass(frozen=True)
class LengthsTile(_OnHost):
    """Y = each row X[i] repeated lengths[i] times."""

    signature = """
        X (N, *S): any
        lengths (N): int32|int64
        -> Y (M, *S): as X, M the sum of the lengths
    """
    dynamic = True

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("LengthsSum", [g.d_output("Y"), g.input("lengths")], [g.d_input("X")])]


@kernel(LengthsTile)
def lengths_tile(op: LengthsTile, ctx: RunContext, x: Any, lengths: Any) -> tuple[Any, ...]:
    counts = lengths_on_host(op, ctx, lengths)
    require(
        x.ndim >= 1 and x.shape[0] == counts.size,
        op,
        f"there must be a length for each row of X {tuple(x.shape)}, got {counts.size}",
    )
    check_extents("LengthsTile: Y", (int(counts.sum()), *x.shape[1:]), x.dtype)
    return (x.take(ctx.xp.asarray(np.repeat(np.arange(counts.size), counts)), axis=0),)


@register
@dataclass(frozen=True)
class LengthsGather(_OnHost):
    """Y = the rows of the segments ``indices``, concatenated. No gradient."""

    signature = "X (N, *S): any, lengths (M): int32|int64, indices (I): int32|int64 -> Y (K, *S): as X"
    dynamic = True


@kernel(LengthsGather)
def lengths_gather(op: LengthsGather, ctx: RunContext, x: Any, lengths: Any, indices: Any) -> tuple[Any, ...]:
    check_integers(op, "indices", indices)
    check_integers(op, "lengths", lengths)
    counts, which = counts_of_lengths(op, ctx, lengths, x.shape[0]), ctx.host(indices)
    check_indices(op.type, which, counts.size)
    gathered = counts[which]
    check_row_work(op, int(gathered.sum()))
    check_extents("LengthsGather: Y", (int(gathered.sum()), *x.shape[1:]), x.dtype)
    rows = np.repeat(segment_starts(counts)[which], gathered) + positions_in_segments(gathered)
    return (x.take(ctx.xp.asarray(rows), axis=0),)


@register
@dataclass(frozen=True)
class LengthsPad(_OnHost):
    """Y = the segments, each padded to ``target_length`` rows with ``padding_value``. Not differentiable."""

    signature = "X (N, *S): any, lengths (M): int32|int64 -> Y (M * target_length, *S): as X"
    target_length: int = -1
    padding_value: float = -1.0

    def check(self) -> None:
        if self.target_length < 1:
            raise ArgumentError(f"LengthsPad: target_length must be positive, got {self.target_length}")

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return []


@kernel(LengthsPad)
def lengths_pad(op: LengthsPad, ctx: RunContext, x: Any, lengths: Any) -> tuple[Any, ...]:
    counts = counts_of_lengths(op, ctx, lengths, x.shape[0])
    longest = counts.max(initial=0)
    require(longest <= op.target_length, op, f"lengths must be at most target_length {op.target_length}, got {longest}")
    y = ctx.xp.full((counts.size * op.target_length, *x.shape[1:]), op.padding_value, x.dtype)
    rows = np.repeat(np.arange(counts.size) * op.target_length, counts) + positions_in_segments(counts)
    y[ctx.xp.asarray(rows)] = x
    return (y,)
