"""Concatenated sequences packed for recurrent nets and unpacked: PackRNNSequence, UnpackRNNSequence."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.given_numbers import check_extents
from netbuilder.ops.core.operator import InBatch, Operator, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.segment_groups import check_integers, counts_of_lengths
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["PackRNNSequence", "UnpackRNNSequence"]


def _positions(counts: Any) -> Any:
    """Return the positions of the rows of all sequences in a tensor (steps, samples, ...), first two axes flattened."""
    samples = counts.size
    steps = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return steps * samples + np.repeat(np.arange(samples), counts)


@dataclass(frozen=True)
class _OfSequences(Operator):
    dynamic = True
    flops_per_element = 0

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return ("here", "host", "any")[index]


@register
@dataclass(frozen=True)
class PackRNNSequence(_OfSequences):
    """Y[t, n] = element t of sequence n, or 0 after its end. Y has as many steps as the longest sequence.

    ``values`` concatenates the elements of all sequences; ``lengths`` has the number of elements of each. With
    ``like``, Y has as many steps as its first axis; only its shape is used.
    """

    signature = """
        values (N, *S): any
        lengths (M): int32|int64
        like? (T, M, ...): any
        -> Y (T, M, *S): as values
    """
    in_batch = InBatch.NOT_ADDITIVE

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("UnpackRNNSequence", [g.d_output("Y"), g.input("lengths")], [g.d_input("values")])]


@kernel(PackRNNSequence)
def pack_rnn_sequence(
    op: PackRNNSequence, ctx: RunContext, values: Any, lengths: Any, like: Any = None
) -> tuple[Any, ...]:
    check_integers(op, "lengths", lengths)
    require(values.ndim >= 1, op, "values must have rows, got a scalar")
    counts = counts_of_lengths(op, ctx, lengths, values.shape[0])
    longest = int(counts.max(initial=0))
    steps = longest if like is None else like.shape[0]
    require(longest <= steps, op, f"no sequence may be longer than the {steps} steps of like, got {longest}")
    check_extents("PackRNNSequence: Y", (steps, counts.size, *values.shape[1:]), values.dtype)
    y = ctx.xp.zeros((steps * counts.size, *values.shape[1:]), values.dtype)
    y[ctx.xp.asarray(_positions(counts))] = values
    return (y.reshape((steps, counts.size, *values.shape[1:])),)


@register
@dataclass(frozen=True)
class UnpackRNNSequence(_OfSequences):
    """Y = the elements of all sequences, concatenated without padding: the inverse of PackRNNSequence."""

    signature = "X (T, M, *S): any, lengths (M): int32|int64 -> Y (N, *S): as X"
    rows_chosen_by = 1

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.d_output("Y"), g.input("lengths"), g.input("X")]  # the shape of X gives the number of steps
        return [make_op("PackRNNSequence", inputs, [g.d_input("X")])]


@kernel(UnpackRNNSequence)
def unpack_rnn_sequence(op: UnpackRNNSequence, ctx: RunContext, x: Any, lengths: Any) -> tuple[Any, ...]:
    check_integers(op, "lengths", lengths)
    require(
        x.ndim >= 2 and x.shape[1] == lengths.shape[0],
        op,
        f"X must have the shape (steps, samples, ...) for {lengths.shape[0]} lengths, got {tuple(x.shape)}",
    )
    counts = ctx.host(lengths).astype(np.int64)
    least, longest = int(counts.min(initial=0)), int(counts.max(initial=0))
    require(
        least >= 0 and longest <= x.shape[0],
        op,
        f"lengths must lie in [0, {x.shape[0]}], the steps of X, got {least if least < 0 else longest}",
    )
    rows = x.reshape((x.shape[0] * x.shape[1], *x.shape[2:]))
    return (rows.take(ctx.xp.asarray(_positions(counts)), axis=0),)
