"""Ranges gathered from a vector: GatherRanges, GatherRangesToDense."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.segment_groups import check_row_work, positions_in_segments
from netbuilder.proto import ArgumentError, OperatorError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["GatherRanges", "GatherRangesToDense"]


@dataclass(frozen=True)
class _Ranges(Operator):
    """Base: ``ranges`` (samples, features, 2) holds the start and the length of each range of the vector X."""

    signature = "X, ranges ->"
    inputs_on_host = (1,)
    flops_per_element = 0

    def check_ranges(self, x: Any, ranges: Any) -> None:
        require(len(x.shape) == 1, self, f"X must be a vector, got shape {x.shape}")
        require(
            len(ranges.shape) == 3 and ranges.shape[2] == 2 and ranges.dtype in (np.int32, np.int64),
            self,
            f"ranges must have shape (samples, features, 2) of int32 or int64, got {ranges.shape} of {ranges.dtype}",
        )

    def bounds(self, ctx: RunContext, x: Any, ranges: Any) -> tuple[Any, Any]:
        """Return starts and lengths, (samples, features), on the host.

        Raises:
            ShapeError: a range exceeds the vector.
        """
        whole = ctx.host(ranges).astype(np.int64)
        starts, counts = whole[..., 0], whole[..., 1]
        bad = (starts < 0) | (counts < 0) | (counts > x.shape[0] - starts)
        if bad.any():
            start, count = (int(of[bad][0]) for of in (starts, counts))
            require(False, self, f"ranges must lie in the {x.shape[0]} elements of X, got {count} from {start} on")
        return starts, counts


@register
@dataclass(frozen=True)
class GatherRanges(_Ranges):
    """Y = the elements of all ranges, concatenated; lengths = the number of each sample's elements. No gradient."""

    signature = """
        X (N): any
        ranges (M, K, 2): int32|int64, start and length
        -> Y (R): as X
        -> lengths (M): int32
    """
    dynamic = True


@kernel(GatherRanges)
def gather_ranges(op: GatherRanges, ctx: RunContext, x: Any, ranges: Any) -> tuple[Any, ...]:
    op.check_ranges(x, ranges)
    starts, counts = op.bounds(ctx, x, ranges)
    flat = counts.reshape(-1)
    check_row_work(op, int(flat.sum()))
    which = np.repeat(starts.reshape(-1), flat) + positions_in_segments(flat)
    return x.take(ctx.xp.asarray(which)), ctx.xp.asarray(counts.sum(axis=1).astype(np.int32))


@register
@dataclass(frozen=True)
class GatherRangesToDense(_Ranges):
    """Output f = each sample's range of feature f, (samples, ``lengths[f]``), or 0 where the range is empty.

    A range of another length is a mismatch and also gives 0. The operator fails if the fraction of mismatches of a
    feature exceeds ``max_mismatched_ratio``, or that of empty ranges ``max_empty_ratio``; the fraction is taken of
    max(samples, min_observation). With ``key``, the elements of a range are sorted by their keys. No gradient.
    """

    signature = """
        X (N): any
        ranges (M, K, 2): int32|int64, start and length
        key? (N): int64
        -> Y+ (M, ...): as X, (M, L) with L the length of the feature
    """
    lengths: tuple[int, ...] = ()
    min_observation: int = 10000
    max_mismatched_ratio: float = 0.01
    max_empty_ratio: float = 1.0

    def check(self) -> None:
        if len(self.lengths) != self.n_out or min(self.lengths, default=0) < 1:
            raise ArgumentError(
                f"{self.type}: lengths must hold a positive number for each of the {self.n_out} outputs, "
                f"got {list(self.lengths)}"
            )

    def infer(self, x: TensorSpec, ranges: TensorSpec, key: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        self.check_ranges(x, ranges)
        require(
            ranges.shape[1] == len(self.lengths),
            self,
            f"ranges must have {len(self.lengths)} features, as lengths has, got {ranges.shape[1]}",
        )
        if key is not None:
            require(
                key.shape == x.shape and key.dtype == np.int64,
                self,
                f"key must be int64 of the shape of X, {x.shape}, got {key.shape} of {key.dtype}",
            )
        return tuple(x.with_shape((ranges.shape[0], length)) for length in self.lengths)

    def check_ratios(self, counts: Any) -> None:
        """Raise OperatorError if too many ranges of a feature are empty or of another length."""
        samples = counts.shape[0]
        empty = (counts == 0).sum(axis=0)
        other = (counts != np.array(self.lengths)).sum(axis=0) - empty
        for what, found, limit in (
            ("are empty", empty, self.max_empty_ratio),
            ("have another length", other, self.max_mismatched_ratio),
        ):
            if (found > limit * max(samples, self.min_observation)).any():
                f = int(np.argmax(found))
                raise OperatorError(
                    f"{self.type}: {found[f]} of the {samples} ranges of feature {f} {what}, more than the fraction "
                    f"{limit} of {max(samples, self.min_observation)}, the maximum of their number and min_observation"
                )


@kernel(GatherRangesToDense)
def gather_ranges_to_dense(
    op: GatherRangesToDense, ctx: RunContext, x: Any, ranges: Any, key: Any = None
) -> tuple[Any, ...]:
    starts, counts = op.bounds(ctx, x, ranges)
    op.check_ratios(counts)
    made = []
    for f, length in enumerate(op.lengths):
        y = ctx.xp.zeros((ranges.shape[0], length), x.dtype)
        rows = np.flatnonzero(counts[:, f] == length)
        where = ctx.xp.asarray(starts[rows, f][:, None] + np.arange(length))
        if key is not None:
            order = ctx.xp.argsort(key.take(where), axis=1)
            where = ctx.xp.take_along_axis(where, order, axis=1)
        y[ctx.xp.asarray(rows)] = x.take(where)
        made.append(y)
    return tuple(made)
