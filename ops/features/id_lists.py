"""Lists of ids, merged, padded or made from dense rows: MergeIdLists, PadEmptySamples, DenseVectorToIdList."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.given_numbers import check_extents
from netbuilder.ops.core.operator import Operator, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.segment_groups import (
    check_integers,
    counts_of_lengths,
    lengths_on_host,
    positions_in_segments,
    segment_starts,
)
from netbuilder.proto import NetError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["DenseVectorToIdList", "MergeIdLists", "PadEmptySamples"]


@register
@dataclass(frozen=True)
class MergeIdLists(Operator):
    """values = the distinct ids in all lists of each sample, ascending; lengths = the number of each sample's."""

    signature = """
        lists+ (...): int32|int64, of each list lengths (N) and ids (I)
        -> lengths (N): int32
        -> values (M): int32|int64
    """
    dynamic = True
    inputs_on_host = True
    flops_per_element = 0

    def check(self) -> None:
        if self.n_in % 2:
            raise NetError(f"MergeIdLists takes lengths and values of each list, got {self.n_in} inputs")


@kernel(MergeIdLists)
def merge_id_lists(op: MergeIdLists, ctx: RunContext, *given: Any) -> tuple[Any, ...]:
    rows, ids = [], []
    for lengths, values in zip(given[::2], given[1::2]):
        check_integers(op, "lengths", lengths)
        check_integers(op, "values", values)
        require(
            lengths.shape == given[0].shape and values.dtype == given[1].dtype,
            op,
            f"all lists must have lengths of shape {given[0].shape} and ids of {given[1].dtype}, "
            f"got {lengths.shape} and {values.dtype}",
        )
        counts = counts_of_lengths(op, ctx, lengths, values.shape[0])
        rows.append(np.repeat(np.arange(counts.size), counts))
        ids.append(ctx.host(values))
    row, value = np.concatenate(rows), np.concatenate(ids)
    order = np.lexsort((value, row))
    row, value = row[order], value[order]
    first = np.ones(row.size, bool)
    first[1:] = (row[1:] != row[:-1]) | (value[1:] != value[:-1])
    merged = np.bincount(row[first], minlength=given[0].shape[0]).astype(given[0].dtype)
    return ctx.xp.asarray(merged), ctx.xp.asarray(value[first])


@register
@dataclass(frozen=True)
class PadEmptySamples(Operator):
    """Samples without rows get one row of zeros; ``lengths`` has the number of rows of each sample in each feature."""

    signature = """
        lengths (N): int32
        features* (I, ...): any
        -> lengths_out (N): int32
        -> features_out* (M, ...): any
    """
    dynamic = True
    inputs_on_host = (0,)
    flops_per_element = 0

    def check(self) -> None:
        if self.n_in != self.n_out:
            raise NetError(f"PadEmptySamples needs an output for each input, got {self.n_in} and {self.n_out}")


@kernel(PadEmptySamples)
def pad_empty_samples(op: PadEmptySamples, ctx: RunContext, lengths: Any, *features: Any) -> tuple[Any, ...]:
    counts = lengths_on_host(op, ctx, lengths)
    padded = np.maximum(counts, 1)
    rows = ctx.xp.asarray(np.repeat(segment_starts(padded), counts) + positions_in_segments(counts))
    made = []
    for feature in features:
        require(
            feature.ndim >= 1 and feature.shape[0] == rows.size,
            op,
            f"features must have {rows.size} rows, the sum of the lengths, got shape {feature.shape}",
        )
        check_extents("PadEmptySamples: Y", (int(padded.sum()), *feature.shape[1:]), feature.dtype)
        y = ctx.xp.zeros((int(padded.sum()), *feature.shape[1:]), feature.dtype)
        y[rows] = feature
        made.append(y)
    return (ctx.xp.asarray(padded.astype(lengths.dtype)), *made)


@register
@dataclass(frozen=True)
class DenseVectorToIdList(Operator):
    """lengths = the number of nonzero elements in each row of X; values = their columns, row by row."""

    signature = "X (N, D): any -> lengths (N): int32, values (M): int32"
    dynamic = True
    flops_per_element = 0


@kernel(DenseVectorToIdList)
def dense_vector_to_id_list(op: DenseVectorToIdList, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    require(x.ndim == 2 and x.dtype.kind in "fiub", op, f"X must be a matrix of numbers, got {x.shape} of {x.dtype}")
    nonzero = x != 0
    return nonzero.sum(axis=1).astype(np.int32), ctx.xp.nonzero(nonzero)[1].astype(np.int32)
