"""Sparse samples made dense, with one position per requested id: SparseToDenseMask, SegmentOneHot."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.given_numbers import check_extents, one_integer
from netbuilder.ops.core.indexing import check_indices
from netbuilder.ops.core.operator import Operator, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.segment_groups import check_integers, counts_of_lengths
from netbuilder.proto import ArgumentError, OperatorDef, OperatorError
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["SegmentOneHot", "SparseToDenseMask", "SparseToDenseMaskGradient"]


@dataclass(frozen=True)
class _Mask(Operator):
    """Base: ``mask`` lists the requested ids, each once."""

    flops_per_element = 0
    lengths_index: ClassVar[int]  # of the input lengths, which is read on the host
    mask: tuple[int, ...] = ()
    return_presence_mask: bool = False
    max_skipped_indices: int = 50

    def check(self) -> None:
        if not self.mask or len(set(self.mask)) < len(self.mask):
            raise ArgumentError(f"{self.type}: mask must list the requested ids, each once, got {list(self.mask)}")
        if not -(2**63) <= min(self.mask) <= max(self.mask) < 2**63:
            raise ArgumentError(f"{self.type}: ids in mask must fit into 64 bits, got {list(self.mask)}")

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if index in (0, self.lengths_index) else "here"

    def positions(self, ctx: RunContext, indices: Any, lengths: Any) -> tuple[Any, Any]:
        """Return which indices are requested, and their positions in Y: sample * len(mask) + position in the mask.

        If a sample has an id several times, the last one counts.
        """
        ids = ctx.host(indices)
        order = np.argsort(np.array(self.mask, np.int64), kind="stable")
        expected = np.array(self.mask, np.int64)[order]
        at = np.searchsorted(expected, ids).clip(0, expected.size - 1)
        which = np.flatnonzero(expected[at] == ids)
        sample = np.zeros(ids.size, np.int64)
        if lengths is not None:
            counts = counts_of_lengths(self, ctx, lengths, ids.size)
            sample = np.repeat(np.arange(counts.size), counts)
        where = sample[which] * expected.size + order[at[which]]
        _, last = np.unique(where[::-1], return_index=True)
        kept = where.size - 1 - last
        return which[kept], where[kept]


@register
@dataclass(frozen=True)
class SparseToDenseMask(_Mask):
    """Y[s, k] = the value of id ``mask[k]`` in sample s, or ``default_value``.

    ``lengths`` has the number of ids of each sample; without it there is one sample, and Y has no axis for it. With
    ``return_presence_mask``, the second output says which ids a sample has. Negative ids are invalid; at most
    ``max_skipped_indices`` of them are skipped.
    """

    signature = """
        indices (I): int32|int64
        values (I, *S): any
        default_value {prod(S)}: as values
        lengths? (N): int32|int64
        -> Y (N, len(mask), *S) if lengths else (len(mask), *S): as values
        -> presence_mask? (N, len(mask)) if lengths else (len(mask)): bool
    """
    lengths_index = 3

    def check(self) -> None:
        super().check()
        if (self.n_out == 2) != self.return_presence_mask:
            raise ArgumentError(
                f"{self.type}: return_presence_mask and a second output go together, got {self.return_presence_mask} "
                f"and {self.n_out} outputs"
            )

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("indices"), g.d_output("Y"), *([g.input("lengths")] if self.n_in > 3 else [])]
        return [make_op("SparseToDenseMaskGradient", inputs, [g.d_input("values")])]


@kernel(SparseToDenseMask)
def sparse_to_dense_mask(
    op: SparseToDenseMask, ctx: RunContext, indices: Any, values: Any, default: Any, lengths: Any = None
) -> tuple[Any, ...]:
    invalid = int((ctx.host(indices) < 0).sum())
    if invalid > op.max_skipped_indices:
        raise OperatorError(
            f"{op.type}: indices must not be negative, but {invalid} are, more than max_skipped_indices "
            f"{op.max_skipped_indices}"
        )
    which, where = (ctx.xp.asarray(found) for found in op.positions(ctx, indices, lengths))
    lead = (len(op.mask),) if lengths is None else (lengths.shape[0], len(op.mask))
    row = values.shape[1:]
    y = ctx.xp.empty((math.prod(lead), *row), values.dtype)
    y[...] = default.reshape(row)
    y[where] = values.take(which, axis=0)
    present = ctx.xp.zeros(math.prod(lead), np.bool_)
    present[where] = True
    return y.reshape((*lead, *row)), present.reshape(lead)


@register
@dataclass(frozen=True)
class SparseToDenseMaskGradient(_Mask):
    """dvalues = for each value the gradient at its position in Y, or 0 if it is not in Y."""

    signature = "indices, dY, lengths? -> dvalues"
    lengths_index = 2


@kernel(SparseToDenseMaskGradient)
def sparse_to_dense_mask_gradient(
    op: SparseToDenseMaskGradient, ctx: RunContext, indices: Any, dy: Any, lengths: Any = None
) -> tuple[Any, ...]:
    which, where = (ctx.xp.asarray(found) for found in op.positions(ctx, indices, lengths))
    row = dy.shape[1 if lengths is None else 2 :]
    samples = 1 if lengths is None else lengths.shape[0]
    d_values = ctx.xp.zeros((indices.shape[0], *row), dy.dtype)
    d_values[which] = dy.reshape((samples * len(op.mask), *row)).take(where, axis=0)
    return (d_values,)


@register
@dataclass(frozen=True)
class SegmentOneHot(Operator):
    """Y[s, i] = 1 if index i is in segment s, else 0; ``index_size`` is the number of columns."""

    signature = """
        lengths (N): int32|int64
        indices (I): int32|int64
        index_size (1): int32|int64
        -> Y (N, K): float32
    """
    dynamic = True
    inputs_on_host = True
    flops_per_element = 0

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return []  # not differentiable


@kernel(SegmentOneHot)
def segment_one_hot(op: SegmentOneHot, ctx: RunContext, lengths: Any, indices: Any, size: Any) -> tuple[Any, ...]:
    check_integers(op, "lengths", lengths)
    check_integers(op, "indices", indices)
    require(size.size == 1, op, f"index_size must hold one number, got shape {size.shape}")
    counts = counts_of_lengths(op, ctx, lengths, indices.shape[0])
    columns = one_integer(op, ctx, size, "index_size")
    check_extents("SegmentOneHot: Y", (counts.size, columns), np.float32)
    check_indices(op.type, indices, columns)
    y = np.zeros((counts.size, columns), np.float32)
    y[np.repeat(np.arange(counts.size), counts), ctx.host(indices)] = 1
    return (ctx.xp.asarray(y),)
