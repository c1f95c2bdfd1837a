"""Padding rows around segments, added, removed or summed: AddPadding, RemovePadding, GatherPadding."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.segment_groups import check_integers, counts_of_lengths, positions_in_segments, segment_starts
from netbuilder.proto import ArgumentError, GradientError, OperatorDef, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["AddPadding", "GatherPadding", "RemovePadding"]


@dataclass(frozen=True)
class _Padding(Operator):
    """Base: ``padding_width`` rows before each segment, ``end_padding_width`` after it (-1: as many as before)."""

    signature = "X, lengths? -> Y, lengths_out?"
    inputs_on_host = (1,)
    padding_width: int = 1
    end_padding_width: int = -1

    def check(self) -> None:
        if self.padding_width < 0 or self.end_padding_width < -1:
            raise ArgumentError(
                f"{self.type}: padding_width and end_padding_width must not be negative (-1: as padding_width), "
                f"got {self.padding_width} and {self.end_padding_width}"
            )

    @property
    def widths(self) -> tuple[int, int]:
        """The numbers of rows before and after each segment."""
        return self.padding_width, self.padding_width if self.end_padding_width < 0 else self.end_padding_width

    def counts(self, ctx: RunContext, x: Any, lengths: Any) -> Any:
        """Return the lengths of the segments of X; without ``lengths``, X is one segment."""
        return np.array([x.shape[0]]) if lengths is None else counts_of_lengths(self, ctx, lengths, x.shape[0])

    def with_rows(self, x: TensorSpec, lengths: TensorSpec | None, sign: int) -> tuple[TensorSpec, ...]:
        """Return the specs of the outputs: X with rows added (``sign`` 1) or removed (-1), and its lengths."""
        require(x.ndim >= 1, self, "X must have rows, got a scalar")
        if lengths is not None:
            check_integers(self, "lengths", lengths)
        segments = 1 if lengths is None else lengths.shape[0]
        rows = x.shape[0] + sign * segments * sum(self.widths)
        require(rows >= 0, self, f"{segments} segments of {x.shape[0]} rows are shorter than their padding")
        kind = np.dtype(np.int32) if lengths is None else lengths.dtype
        return (x.with_shape((rows, *x.shape[1:])), TensorSpec((segments,), kind))[: self.n_out]

    def lengths_of_gradient(self, g: GradientContext) -> list[str]:
        if self.n_in == 1:
            return []
        if self.n_out < 2:
            raise GradientError(f"{self.type}: with lengths, its gradient needs its second output, the new lengths")
        return [g.output("lengths_out")]

    def padding_rows(self, counts: Any) -> tuple[Any, Any, Any]:
        """Return the indices of the rows before, in and after the segments, of ``counts`` rows without padding."""
        before, after = self.widths
        starts = segment_starts(counts + before + after)
        inside = np.repeat(starts + before, counts) + positions_in_segments(counts)
        front = (starts[:, None] + np.arange(before)).reshape(-1)
        return front, inside, ((starts + before + counts)[:, None] + np.arange(after)).reshape(-1)


@register
@dataclass(frozen=True)
class AddPadding(_Padding):
    """Y = X with rows added before and after each segment: zeros, or ``start_padding`` and ``end_padding``."""

    signature = """
        X (N, *S): any
        lengths? (M): int32|int64
        start_padding? (*S): as X
        end_padding? (*S): as X
        -> Y (R, *S): as X
        -> lengths_out? (M) or (1): int32|int64, of the type of lengths
    """

    def infer(self, x: TensorSpec, lengths: TensorSpec | None = None, *paddings: TensorSpec) -> tuple[TensorSpec, ...]:
        result = self.with_rows(x, lengths, 1)
        for name, padding in zip(("start_padding", "end_padding"), paddings):
            require(
                padding.shape == x.shape[1:] and padding.dtype == x.dtype,
                self,
                f"{name} must be like a row of X, {x.shape[1:]} of {x.dtype}, got {padding.shape} of {padding.dtype}",
            )
        return result

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.d_output("Y"), *self.lengths_of_gradient(g)]
        made = [make_op("RemovePadding", inputs, [g.d_input("X")])]
        if self.n_in > 2:
            paddings = [g.d_input(name) for name in ("start_padding", "end_padding")[: self.n_in - 2]]
            made.append(make_op("GatherPadding", inputs, paddings))
        return made


@kernel(AddPadding)
def add_padding(
    op: AddPadding, ctx: RunContext, x: Any, lengths: Any = None, start: Any = None, end: Any = None
) -> tuple[Any, ...]:
    counts = op.counts(ctx, x, lengths)
    longer = counts + sum(op.widths)
    front, inside, back = (ctx.xp.asarray(rows) for rows in op.padding_rows(counts))
    y = ctx.xp.zeros((int(longer.sum()), *x.shape[1:]), x.dtype)
    y[inside] = x
    end = start if end is None else end
    if start is not None:
        y[front] = start
        y[back] = end
    return y, ctx.xp.asarray(longer.astype(np.int32 if lengths is None else lengths.dtype))


def _counts_without_padding(op: _Padding, ctx: RunContext, x: Any, lengths: Any) -> Any:
    """Return the lengths of the segments without their padding."""
    counts, padding = op.counts(ctx, x, lengths), sum(op.widths)
    if counts.size and counts.min() < padding:
        raise ShapeError(f"{op.type}: a segment must have the {padding} rows of its padding, got {counts.min()}")
    return counts - padding


@register
@dataclass(frozen=True)
class RemovePadding(_Padding):
    """Y = X without the rows that AddPadding adds."""

    signature = """
        X (N, *S): any
        lengths? (M): int32|int64
        -> Y (R, *S): as X
        -> lengths_out? (M) or (1): int32|int64, of the type of lengths
    """

    def infer(self, x: TensorSpec, lengths: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        return self.with_rows(x, lengths, -1)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("AddPadding", [g.d_output("Y"), *self.lengths_of_gradient(g)], [g.d_input("X")])]


@kernel(RemovePadding)
def remove_padding(op: RemovePadding, ctx: RunContext, x: Any, lengths: Any = None) -> tuple[Any, ...]:
    counts = _counts_without_padding(op, ctx, x, lengths)
    _, inside, _ = op.padding_rows(counts)
    kind = np.int32 if lengths is None else lengths.dtype
    return x.take(ctx.xp.asarray(inside), axis=0), ctx.xp.asarray(counts.astype(kind))


@register
@dataclass(frozen=True)
class GatherPadding(_Padding):
    """The sum of the padding rows before the segments, and of those after them; with one output, of all."""

    signature = """
        X (N, *S): any
        lengths? (M): int32|int64
        -> padding_sum (*S): as X
        -> end_padding_sum? (*S): as X
    """

    def infer(self, x: TensorSpec, lengths: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        self.with_rows(x, lengths, -1)
        return (x.with_shape(x.shape[1:]),) * self.n_out


@kernel(GatherPadding)
def gather_padding(op: GatherPadding, ctx: RunContext, x: Any, lengths: Any = None) -> tuple[Any, ...]:
    front, _, back = op.padding_rows(_counts_without_padding(op, ctx, x, lengths))
    sides = [front, back] if op.n_out > 1 else [np.concatenate([front, back])]
    return tuple(x.take(ctx.xp.asarray(rows), axis=0).sum(axis=0, dtype=x.dtype) for rows in sides)
