"""Dropout of ids: SparseDropoutWithReplacement, SparseItemwiseDropoutWithReplacement."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from netbuilder.ops.contexts import GradientContext, RunContext
from netbuilder.ops.declaration import dataclass
from netbuilder.ops.operator import Operator, TensorSpec, require
from netbuilder.ops.registry import kernel, register
from netbuilder.ops.segment_groups import counts_of_lengths, places_in_segments, segment_starts
from netbuilder.proto import ArgumentError, OperatorDef

__all__ = ["SparseDropoutWithReplacement", "SparseItemwiseDropoutWithReplacement"]


@dataclass(frozen=True)
class _SparseDropout(Operator):
    inputs = ("X", "Lengths")
    outputs = ("Y", "OutputLengths")
    stateful = True
    ratio: float = 0.0
    replacement_value: int = 0

    def check(self) -> None:
        if not 0 <= self.ratio <= 1:
            raise ArgumentError(f"{self.type}: ratio, a probability, must lie in [0, 1], got {self.ratio}")

    def input_place(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if index == 1 else "here"

    def check_specs(self, x: Any, lengths: Any) -> None:
        """Raise ShapeError unless X is a vector of int64 and Lengths one of int32."""
        for name, given, wanted in (("X", x, np.int64), ("Lengths", lengths, np.int32)):
            require(
                len(given.shape) == 1 and given.dtype == wanted,
                self,
                f"{name} must be a vector of {np.dtype(wanted)}, got shape {tuple(given.shape)} of {given.dtype}",
            )

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return []  # whole numbers have none

    def flops(self, *inputs: TensorSpec) -> int:
        return 0


@register
@dataclass(frozen=True)
class SparseDropoutWithReplacement(_SparseDropout):
    """Replace all ids of a sample, with probability ``ratio``, by the one id ``replacement_value``.

    Lengths counts the ids of each sample, OutputLengths those in Y. A sample without ids may get one.
    """

    dynamic = True

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        self.check_specs(*inputs)
        return super().infer(*inputs)


@kernel(SparseDropoutWithReplacement)
def sparse_dropout(op: SparseDropoutWithReplacement, ctx: RunContext, x: Any, lengths: Any) -> tuple[Any, ...]:
    op.check_specs(x, lengths)
    counts = counts_of_lengths(op, ctx, lengths, x.shape[0])
    drop = ctx.host(ctx.uniform(counts.shape, per_sample=True)) < op.ratio
    left = np.where(drop, 1, counts)
    kept = np.repeat(~drop, counts)
    places = np.repeat(segment_starts(left), counts) + places_in_segments(counts)
    y = ctx.xp.full(int(left.sum()), op.replacement_value, np.int64)
    y[ctx.xp.asarray(places[kept])] = x[ctx.xp.asarray(np.flatnonzero(kept))]
    return y, ctx.xp.asarray(left.astype(np.int32))


@register
@dataclass(frozen=True)
class SparseItemwiseDropoutWithReplacement(_SparseDropout):
    """Replace each id, with probability ``ratio``, by ``replacement_value``; OutputLengths is Lengths."""

    def infer(self, x: TensorSpec, lengths: TensorSpec) -> tuple[TensorSpec, ...]:
        self.check_specs(x, lengths)
        return x.plain, lengths.plain


@kernel(SparseItemwiseDropoutWithReplacement)
def sparse_itemwise_dropout(
    op: SparseItemwiseDropoutWithReplacement, ctx: RunContext, x: Any, lengths: Any
) -> tuple[Any, ...]:
    counts_of_lengths(op, ctx, lengths, x.shape[0])
    drop = ctx.uniform(x.shape, per_sample=True) < op.ratio
    return ctx.xp.where(drop, np.int64(op.replacement_value), x), ctx.xp.asarray(ctx.host(lengths).copy())
