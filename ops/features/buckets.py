"""Columns put into buckets by their own boundaries, and hashed ids: BatchBucketize, BatchBucketOneHot, IndexHash."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.indexing import check_indices
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.segment_groups import check_integers, counts_of_lengths
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["BatchBucketOneHot", "BatchBucketize", "IndexHash"]


@dataclass(frozen=True)
class _Buckets(Operator):
    """Base: ``boundaries`` concatenates the boundaries of all features; ``lengths`` has the number of each one's."""

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "here" if index == 0 else "host"

    def check_features(self, x: TensorSpec, lengths: TensorSpec, boundaries: TensorSpec) -> None:
        require(
            x.ndim == 2 and x.dtype == np.float32, self, f"X must be a matrix of float32, got {x.shape} of {x.dtype}"
        )
        check_integers(self, "lengths", lengths)
        require(
            boundaries.ndim == 1 and boundaries.dtype == x.dtype,
            self,
            f"boundaries must be a vector of float32, got {boundaries.shape} of {boundaries.dtype}",
        )

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return []  # not differentiable

    def features(self, ctx: RunContext, lengths: Any, boundaries: Any) -> tuple[Any, Any, Any]:
        """Return the boundaries, the feature of each, and the number of each feature's, on the host.

        Raises:
            ShapeError: the boundaries of a feature do not ascend.
        """
        bounds = ctx.host(boundaries)
        counts = counts_of_lengths(self, ctx, lengths, bounds.size)
        feature = np.repeat(np.arange(counts.size), counts)
        descents = np.flatnonzero((np.diff(bounds) < 0) & (np.diff(feature) == 0))
        if descents.size:
            at = int(descents[0])
            require(False, self, f"the boundaries of a feature must ascend, got {bounds[at]} before {bounds[at + 1]}")
        return bounds, feature, counts


def _count_below(ctx: RunContext, x: Any, bounds: Any, feature: Any, count: int, *, equal: bool) -> Any:
    """Return for each element the number of its feature's boundaries below it (``equal``: or equal to it)."""
    xp = ctx.xp
    of_bounds, limits = x.take(xp.asarray(feature), axis=1), xp.asarray(bounds)
    above = of_bounds >= limits if equal else of_bounds > limits
    total = xp.zeros((x.shape[0], bounds.size + 1), np.int32)
    xp.cumsum(above, axis=1, dtype=np.int32, out=total[:, 1:])
    ends = np.searchsorted(feature, np.arange(count + 1))
    return xp.diff(total.take(xp.asarray(ends), axis=1), axis=1)


@register
@dataclass(frozen=True)
class BatchBucketize(_Buckets):
    """Y[n, k] = the number of boundaries of feature k below X[n, indices[k]], int32."""

    signature = """
        X (N, D): float32
        indices (K): int32|int64
        boundaries (B): as X
        lengths (K): int32|int64
        -> Y (N, K): int32
    """


@kernel(BatchBucketize)
def batch_bucketize(
    op: BatchBucketize, ctx: RunContext, x: Any, indices: Any, boundaries: Any, lengths: Any
) -> tuple[Any, ...]:
    columns = ctx.host(indices)
    check_indices(op.type, columns, x.shape[1])
    bounds, feature, counts = op.features(ctx, lengths, boundaries)
    gathered = x.take(ctx.xp.asarray(columns), axis=1)
    return (_count_below(ctx, gathered, bounds, feature, counts.size, equal=False),)


@register
@dataclass(frozen=True)
class BatchBucketOneHot(_Buckets):
    """Y = for each column of X, a column per bucket, one more than it has boundaries: 1 for the element's, else 0.

    An element that equals a boundary is in the bucket that ends there; one that equals several, in the middle one.
    """

    signature = "X (N, D): float32, lengths (D): int32|int64, boundaries (B): as X -> Y (N, B + D): float32"


@kernel(BatchBucketOneHot)
def batch_bucket_one_hot(
    op: BatchBucketOneHot, ctx: RunContext, x: Any, lengths: Any, boundaries: Any
) -> tuple[Any, ...]:
    bounds, feature, counts = op.features(ctx, lengths, boundaries)
    below, up_to = (_count_below(ctx, x, bounds, feature, counts.size, equal=equal) for equal in (False, True))
    columns = (below + up_to) // 2 + ctx.xp.asarray(np.cumsum(counts + 1) - counts - 1)
    y = ctx.xp.zeros((x.shape[0], bounds.size + counts.size), x.dtype)
    y[ctx.xp.arange(x.shape[0])[:, None], columns] = 1
    return (y,)


_FACTOR, _SEED = 65537, 0xDEADBEEF


@register
@dataclass(frozen=True)
class IndexHash(Operator):
    """Y = a hash of each element of X, in [0, ``modulo``).

    The hash starts at ``seed`` times 0xDEADBEEF; for each byte of the element, the lowest first, it is multiplied by
    65537 and the byte, as a signed number, is added, all in the width of the element.
    """

    signature = "X (*S): int32|int64 -> Y (*S): as X"
    inplace = ((0, 0),)
    seed: int = 0
    modulo: int = 0

    def check(self) -> None:
        if not 1 <= self.modulo <= 2**62:
            raise ArgumentError(f"IndexHash: modulo must be positive, at most 2**62, got {self.modulo}")

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return []  # not differentiable


@kernel(IndexHash)
def index_hash(op: IndexHash, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    size = x.dtype.itemsize
    word = np.dtype(f"u{size}")
    pieces = ctx.xp.ascontiguousarray(x).reshape(-1).view(np.int8).reshape(x.size, size).astype(word)
    hashed = ctx.xp.full(x.size, (op.seed * _SEED) % (1 << 8 * size), word)
    for k in range(size):
        hashed = hashed * word.type(_FACTOR) + pieces[:, k]
    rest = ctx.xp.remainder(hashed.view(x.dtype).astype(np.int64), op.modulo)
    return (rest.astype(x.dtype).reshape(x.shape),)
