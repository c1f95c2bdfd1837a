"""Reduction of rows by segments without a loop over segments: those of equal length are reduced together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.given_numbers import check_extents, machine_memory
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.proto import ShapeError

__all__ = [
    "CACHED_BYTES",
    "as_rows",
    "check_integers",
    "check_weights",
    "counts_of_lengths",
    "counts_of_sorted",
    "lengths_on_host",
    "per_row",
    "positions_in_segments",
    "reduce_segments",
    "segment_numbers",
    "segment_starts",
]


_Counts = np.ndarray[Any, Any]

CACHED_BYTES = 1 << 19
"""Bytes of the rows that are gathered at once: about half of a core's L2 cache."""
_GPU_BYTES = 1 << 26
_MOST_ROWS = 1 << 62  # sums of more may not fit into int64, and would pass for a small number
_ROW_BYTES = 24  # for a row: its index, its segment and its position there


def check_integers(op: Operator, name: str, spec: Any) -> None:
    """Raise ShapeError unless ``spec`` (or an array) is a vector of int32 or int64."""
    require(
        len(spec.shape) == 1 and spec.dtype in (np.int32, np.int64),
        op,
        f"{name} must be a vector of int32 or int64, got shape {spec.shape} of {spec.dtype}",
    )


def check_weights(op: Operator, weights: TensorSpec, x: TensorSpec, count: int) -> None:
    """Raise ShapeError unless there are ``count`` weights in a vector, of the type of ``x``."""
    require(
        weights.shape == (count,) and weights.dtype == x.dtype,
        op,
        f"weights must have shape {(count,)} and type {x.dtype}, got {weights.shape} {weights.dtype}",
    )


def lengths_on_host(op: Operator, ctx: RunContext, lengths: Any, name: str = "lengths") -> _Counts:
    """Return a vector of lengths on the host, in int64.

    Raises:
        ShapeError: ``lengths`` is not a vector of integers, or one is negative, or memory cannot hold the numbers of so
            many rows.
    """
    check_integers(op, name, lengths)
    counts = ctx.host(lengths).astype(np.int64)
    # One pass is enough for nearly all: as unsigned numbers, negative ones are the greatest.
    if counts.size and int(counts.view(np.uint64).max()) > machine_memory() // _ROW_BYTES // counts.size:
        if counts.min() < 0:
            raise ShapeError(f"{op.type}: {name} must not be negative, got {counts.min()}")
        if counts.max() > _MOST_ROWS // counts.size:
            raise ShapeError(f"{op.type}: {name} must be numbers of rows that an array can have, got {counts.max()}")
        check_row_work(op, int(counts.sum()))
    return counts


def check_row_work(op: Operator, rows: int) -> None:
    """Raise ShapeError unless memory can hold the numbers that a kernel computes for so many rows of segments."""
    check_extents(f"{op.type}: the work on all rows of the segments", (rows, _ROW_BYTES), np.uint8)


def segment_starts(counts: _Counts) -> _Counts:
    """Return the first row of each segment."""
    return np.cumsum(counts) - counts


def positions_in_segments(counts: _Counts) -> _Counts:
    """Return for each row its position in its segment, from 0."""
    return np.arange(counts.sum()) - np.repeat(segment_starts(counts), counts)


def counts_of_lengths(op: Operator, ctx: RunContext, lengths: Any, rows: int) -> _Counts:
    """Return the lengths of the segments on the host, in int64.

    Raises:
        ShapeError: one is negative, or their sum is not ``rows``.
    """
    counts = lengths_on_host(op, ctx, lengths)
    if counts.sum() != rows:
        raise ShapeError(f"{op.type}: the sum of the lengths must be the number of rows, {rows}, got {counts.sum()}")
    return counts


def counts_of_sorted(op: Operator, ctx: RunContext, segments: Any) -> _Counts:
    """Return the number of rows of each segment, for sorted segment ids such as 0, 0, 1, 1, 1, 2.

    Raises:
        ShapeError: the ids do not begin with 0, or do not rise by steps of 1.
    """
    numbers = ctx.host(segments)
    steps = np.diff(numbers)
    if numbers.size and (numbers[0] != 0 or (steps.size and (steps.min() < 0 or steps.max() > 1))):
        raise ShapeError(f"{op.type}: segments must begin with 0 and rise by steps of 1, got {numbers[:16].tolist()}")
    return np.bincount(numbers) if numbers.size else np.zeros(0, np.int64)


def segment_numbers(ctx: RunContext, counts: _Counts) -> Any:
    """Return for each row the id of its segment, on the operator's device."""
    return ctx.xp.asarray(np.repeat(np.arange(counts.size), counts))


def as_rows(x: Any) -> Any:
    """Return ``x`` as a matrix with the same first axis."""
    width = 1
    for extent in x.shape[1:]:
        width *= extent
    return x.reshape(x.shape[0], width)


def per_row(values: Any, like: Any) -> Any:
    """Return a vector in the type of ``like``, in a shape that broadcasts over the rows of ``like``."""
    return values.astype(like.dtype, copy=False).reshape((-1,) + (1,) * (like.ndim - 1))


def _pieces(counts: _Counts, most: int) -> Iterator[tuple[_Counts, _Counts, bool]]:
    """Yield pieces of about ``most`` rows as (segments, rows, first): ``rows[k, s]`` is a row of ``segments[s]``.

    All segments of a piece have the same length. A segment with more than ``most`` rows is in several pieces, and
    ``first`` marks its first one. Empty segments are left out.
    """
    starts = np.cumsum(counts) - counts
    # NumPy sorts 16-bit integers by radix sort, which is several times as fast.
    order = np.argsort(counts.astype(np.uint16) if counts.max(initial=0) < 1 << 16 else counts, kind="stable")
    ordered = counts[order]
    ends = np.flatnonzero(np.diff(ordered, append=-1)) + 1
    begin = 0
    for end in ends.tolist():  # one iteration for each length that occurs, at most sqrt(2 * rows)
        length = int(ordered[begin])
        together = max(1, most // max(length, 1))
        for a in range(begin, end if length else begin, together):
            segments = order[a : min(a + together, end)]
            for done in range(0, length, most):
                offsets = np.arange(done, min(done + most, length))
                yield segments, starts[segments] + offsets[:, None], done == 0
        begin = end


def reduce_segments(
    xp: Any,
    counts: _Counts,
    gather: Callable[[Any], Any],
    out: Any,
    *,
    how: str = "sum",
) -> None:
    """Write the reduced rows of each segment into ``out``; empty segments get 0.

    Args:
        xp: numpy or cupy.
        counts: number of rows of each segment, on the host; segments are contiguous.
        gather: is given a vector of row indices on the operator's device; returns these rows as a matrix.
        out: (segments, width).
        how: "sum" or "max".
    """
    width = out.shape[1]
    most = max(1, (CACHED_BYTES if xp is np else _GPU_BYTES) // max(width * out.dtype.itemsize, 1))
    combine = xp.add if how == "sum" else xp.maximum
    out[...] = 0
    for segments, rows, first in _pieces(counts, most):
        # One row per position in a segment, all segments side by side, so that the reduction runs over long rows.
        block = gather(xp.asarray(rows.reshape(-1))).reshape(rows.shape[0], segments.size * width)
        part = (block.sum(axis=0) if how == "sum" else block.max(axis=0)).reshape(segments.size, width)
        where = xp.asarray(segments)
        out[where] = part if first else combine(out[where], part)
