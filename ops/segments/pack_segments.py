"""Segments packed into one padded tensor, and unpacked: PackSegments, UnpackSegments."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.given_numbers import check_extents
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.segment_groups import check_integers, counts_of_lengths
from netbuilder.proto import ArgumentError, OperatorDef, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["PackSegments", "UnpackSegments"]


def _positions(counts: Any, kept: Any, width: int) -> Any:
    """Return the flat positions of the kept rows of each segment in a tensor with ``width`` positions per segment."""
    offsets = np.arange(kept.sum()) - np.repeat(np.cumsum(kept) - kept, kept)
    return np.repeat(np.arange(counts.size) * width, kept) + offsets


@register
@dataclass(frozen=True)
class PackSegments(Operator):
    """Y[s] = the rows of segment s, then padding up to the longest segment, or to ``max_length``.

    Padding is 0, or minus infinity with ``pad_minf``. Rows beyond ``max_length`` are dropped, and the gradient then has
    no rows for them. The second output, with ``return_presence_mask``, is true where Y has rows, false for padding.
    """

    signature = "lengths (M): int32|int64, X (N, *S): any -> Y (M, L, *S): as X, presence? (M, L): bool"
    inputs_on_host = (0,)
    flops_per_element = 0
    max_length: int = -1
    pad_minf: bool = False
    return_presence_mask: bool = False

    def with_arity(self, n_in: int, n_out: int) -> Any:
        object.__setattr__(self, "dynamic", self.max_length < 1)
        return super().with_arity(n_in, n_out)

    def check(self) -> None:
        if self.n_out == 2 and not self.return_presence_mask:
            raise ArgumentError("PackSegments: the second output needs return_presence_mask")

    def infer(self, lengths: TensorSpec, x: TensorSpec) -> tuple[TensorSpec, ...]:
        check_integers(self, "lengths", lengths)
        require(x.ndim >= 1, self, "X must have rows, got a scalar")
        if self.max_length < 1:
            raise ShapeError("PackSegments: without max_length the longest segment is known only when the net runs")
        shape = (lengths.shape[0], self.max_length)
        return (x.with_shape((*shape, *x.shape[1:])), TensorSpec(shape, np.dtype(bool)))[: self.n_out]

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("UnpackSegments", [g.input("lengths"), g.d_output("Y")], [g.d_input("X")])]


@kernel(PackSegments)
def pack_segments(op: PackSegments, ctx: RunContext, lengths: Any, x: Any) -> tuple[Any, ...]:
    xp = ctx.xp
    check_integers(op, "lengths", lengths)
    counts = counts_of_lengths(op, ctx, lengths, x.shape[0])
    width = op.max_length if op.max_length > 0 else int(counts.max(initial=0))
    check_extents("PackSegments: Y", (counts.size, width, *x.shape[1:]), x.dtype)
    kept = np.minimum(counts, width)
    positions = xp.asarray(_positions(counts, kept, width))
    if kept.sum() != x.shape[0]:
        x = x.take(xp.asarray(_positions(counts, kept, 0) + _starts(counts, kept)), axis=0)
    padding = -np.inf if op.pad_minf and x.dtype.kind == "f" else 0
    y = xp.full((counts.size * width, *x.shape[1:]), padding, x.dtype)
    y[positions] = x
    present = xp.zeros(counts.size * width, bool)
    present[positions] = True
    shape = (counts.size, width)
    return (y.reshape((*shape, *x.shape[1:])), present.reshape(shape))[: op.n_out]


def _starts(counts: Any, kept: Any) -> Any:
    """Return for each kept row the first row of its segment."""
    return np.repeat(np.cumsum(counts) - counts, kept)


@register
@dataclass(frozen=True)
class UnpackSegments(Operator):
    """Y = the rows of all segments, concatenated without padding: the inverse of PackSegments.

    A length greater than L counts as L. The gradient has as many positions per segment as the longest length or, if it
    is given, ``max_length``, which then must be L.
    """

    signature = "lengths (M): int32|int64, X (M, L, *S): any -> Y (N, *S): as X"
    dynamic = True
    rows_chosen_by = 0
    inputs_on_host = (0,)
    flops_per_element = 0
    max_length: int = -1

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("PackSegments", [g.input("lengths"), g.d_output("Y")], [g.d_input("X")])]


@kernel(UnpackSegments)
def unpack_segments(op: UnpackSegments, ctx: RunContext, lengths: Any, x: Any) -> tuple[Any, ...]:
    check_integers(op, "lengths", lengths)
    require(
        x.ndim >= 2 and x.shape[0] == lengths.shape[0],
        op,
        f"X must have the shape (segments, positions, ...) for {lengths.shape[0]} lengths, got {tuple(x.shape)}",
    )
    width = x.shape[1]
    require(
        op.max_length < 1 or op.max_length == width, op, f"X must have max_length = {op.max_length} steps, got {width}"
    )
    counts = ctx.host(lengths).astype(np.int64)
    require(not counts.size or counts.min() >= 0, op, f"lengths must not be negative, got {counts.min(initial=0)}")
    positions = ctx.xp.asarray(_positions(counts, np.minimum(counts, width), width))
    return (x.reshape((x.shape[0] * width, *x.shape[2:])).take(positions, axis=0),)
