"""Lookups of values: Find, Bucketize, Histogram, BatchOneHot."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import Operator, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["BatchOneHot", "Bucketize", "Find", "Histogram"]


@register
@dataclass(frozen=True)
class Find(Operator):
    """query_indices = the last position of an element of ``query`` in ``index``, or ``missing_value``; no gradient."""

    signature = "index (N): int32|int64, query (*S): as index -> query_indices (*S): as index"
    missing_value: int = -1


@kernel(Find)
def find(op: Find, ctx: RunContext, index: Any, query: Any) -> tuple[Any, ...]:
    xp = ctx.xp
    if not index.size:
        return (xp.full(query.shape, op.missing_value, query.dtype),)
    # Positions are sorted too, so that the last of equal elements is found.
    order = xp.lexsort(xp.stack([xp.arange(index.size, dtype=np.int64), index.astype(np.int64)]))
    values = index[order]
    above = xp.searchsorted(values, query.reshape(-1), side="right")
    last = xp.maximum(above - 1, 0)
    found = (above > 0) & (values[last] == query.reshape(-1))
    positions = xp.where(found, order[last], op.missing_value)
    return (positions.reshape(query.shape).astype(query.dtype),)


@register
@dataclass(frozen=True)
class Bucketize(Operator):
    """output = the number of ``boundaries`` below each element, int32. No gradient."""

    signature = "data (*S): float -> output (*S): int32"
    boundaries: tuple[float, ...] = ()

    def check(self) -> None:
        if not self.boundaries or list(self.boundaries) != sorted(self.boundaries):
            raise ArgumentError(f"Bucketize: boundaries must be given, in ascending order, got {self.boundaries}")


@kernel(Bucketize)
def bucketize(op: Bucketize, ctx: RunContext, data: Any) -> tuple[Any, ...]:
    bounds = ctx.xp.asarray(np.array(op.boundaries, np.float32))
    found = ctx.xp.searchsorted(bounds, data.reshape(-1).astype(np.float32), side="left")
    return (found.reshape(data.shape).astype(np.int32),)


@register
@dataclass(frozen=True)
class Histogram(Operator):
    """histogram = the number of elements of all inputs in each bin between adjacent ``bin_edges``. No gradient.

    A lower edge belongs to its bin; elements outside of all bins, and NaN, are not counted.
    """

    signature = "X+ (...): float -> histogram (len(bin_edges) - 1): int64"
    bin_edges: tuple[float, ...] = ()

    def check(self) -> None:
        edges = self.bin_edges
        if len(edges) < 2:
            raise ArgumentError(f"Histogram: Number of bin edges must be greater than or equal to 2, got {edges}")
        if not all(a < b for a, b in zip(edges, edges[1:])):
            raise ArgumentError(f"Histogram: bin_edges must be a strictly increasing sequence of values, got {edges}")


@kernel(Histogram)
def histogram(op: Histogram, ctx: RunContext, *xs: Any) -> tuple[Any, ...]:
    xp, bins = ctx.xp, len(op.bin_edges) - 1
    edges = xp.asarray(np.array(op.bin_edges, np.float32))
    total = xp.zeros(bins, np.int64)
    for x in xs:
        flat = x.reshape(-1).astype(np.float32)
        positions = xp.searchsorted(edges, flat, side="right") - 1
        inside = (flat >= edges[0]) & (flat < edges[-1])
        total += xp.bincount(positions[inside], minlength=bins)
    return (total,)


@register
@dataclass(frozen=True)
class BatchOneHot(Operator):
    """output = for each column of ``data`` and each of its possible values, whether the element equals it. No gradient.

    ``values`` concatenates the possible values of all columns; ``lengths`` has the number of each column's.
    """

    signature = "data (N, D): int|bool, lengths (D): int32, values (M): as data -> output (N, M): as data"
    inputs_on_host = (1,)


@kernel(BatchOneHot)
def batch_one_hot(op: BatchOneHot, ctx: RunContext, data: Any, lengths: Any, values: Any) -> tuple[Any, ...]:
    counts = ctx.host(lengths)
    valid = int(counts.sum()) == values.shape[0] and bool((counts >= 0).all())
    require(valid, op, f"lengths must sum to the number of values, {values.shape[0]}; got {counts.tolist()}")
    columns = ctx.xp.asarray(np.repeat(np.arange(data.shape[1]), counts))
    return ((data[:, columns] == values[None, :]).astype(data.dtype),)
