"""Dropout of ids: SparseDropoutWithReplacement, SparseItemwiseDropoutWithReplacement."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.segment_groups import counts_of_lengths, positions_in_segments, segment_starts
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["SparseDropoutWithReplacement", "SparseItemwiseDropoutWithReplacement"]


@dataclass(frozen=True)
class _SparseDropout(Operator):
    """Base: replaces ids of samples at random."""

    signature = "X (I): int64, Lengths (N): int32 -> Y (J): int64, OutputLengths (N): int32"
    stateful = True
    draws = True
    inputs_on_host = (1,)
    flops_per_element = 0
    ratio: float = 0.0
    replacement_value: int = 0

    def check(self) -> None:
        if not 0 <= self.ratio <= 1:
            raise ArgumentError(f"{self.type}: ratio, a probability, must lie in [0, 1], got {self.ratio}")

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return []  # integers have no gradient


@register
@dataclass(frozen=True)
class SparseDropoutWithReplacement(_SparseDropout):
    """Replace all ids of a sample, with probability ``ratio``, by the single id ``replacement_value``.

    Lengths has the number of ids of each sample in X, OutputLengths that in Y. A sample without ids may get one.
    """

    dynamic = True


@kernel(SparseDropoutWithReplacement)
def sparse_dropout(op: SparseDropoutWithReplacement, ctx: RunContext, x: Any, lengths: Any) -> tuple[Any, ...]:
    op.check_specs(x, lengths)
    counts = counts_of_lengths(op, ctx, lengths, x.shape[0])
    drop = ctx.host(ctx.uniform(counts.shape, per_sample=True)) < op.ratio
    new_counts = np.where(drop, 1, counts)
    kept = np.repeat(~drop, counts)
    positions = np.repeat(segment_starts(new_counts), counts) + positions_in_segments(counts)
    y = ctx.xp.full(int(new_counts.sum()), op.replacement_value, np.int64)
    y[ctx.xp.asarray(positions[kept])] = x[ctx.xp.asarray(np.flatnonzero(kept))]
    return y, ctx.xp.asarray(new_counts.astype(np.int32))


@register
@dataclass(frozen=True)
class SparseItemwiseDropoutWithReplacement(_SparseDropout):
    """Replace each id, with probability ``ratio``, by ``replacement_value``; OutputLengths is Lengths."""

    signature = "X (I): int64, Lengths (N): int32 -> Y: as X, OutputLengths: as Lengths"


@kernel(SparseItemwiseDropoutWithReplacement)
def sparse_itemwise_dropout(
    op: SparseItemwiseDropoutWithReplacement, ctx: RunContext, x: Any, lengths: Any
) -> tuple[Any, ...]:
    counts_of_lengths(op, ctx, lengths, x.shape[0])
    drop = ctx.uniform(x.shape, per_sample=True) < op.ratio
    return ctx.xp.where(drop, np.int64(op.replacement_value), x), ctx.xp.asarray(ctx.host(lengths).copy())
