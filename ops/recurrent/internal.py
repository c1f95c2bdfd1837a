"""Operators that Caffe2 adds to step nets: a step's rows of a sequence, and the accumulation of a step's gradient."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, ShapeError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["rnn_internal_accumulate_gradient_input", "rnn_internal_apply_link"]


@dataclass(frozen=True)
class _OfStep(Operator):
    """Base: the first input is the step number; the operator works on rows from that number + ``offset`` on."""

    inputs_on_host = (0,)
    offset: int = 0

    def check(self) -> None:
        if self.offset < 0:
            raise ArgumentError(f"{self.type}: offset must be 0 or more, got {self.offset}")

    def first_row(self, ctx: RunContext, timestep: Any, sequence: Any, count: int) -> int:
        first = int(ctx.host(timestep).item()) + self.offset
        if not 0 <= first <= sequence.shape[0] - count:
            raise ShapeError(
                f"{self.type}: step {first - self.offset} with offset {self.offset} means rows {first} to "
                f"{first + count - 1} of a sequence of {sequence.shape[0]}"
            )
        return first


@register
@dataclass(frozen=True)
class rnn_internal_apply_link(_OfStep):
    """Y = ``window`` rows of X, from row timestep + offset on. X, unchanged, is an output to order the operators."""

    signature = "timestep {1}: int, X (T, *S): any -> Y (window, *S): as X, X_out (T, *S): as X"
    must_inplace = ((1, 1),)
    window: int = 1

    def check(self) -> None:
        super().check()
        if self.window < 1:
            raise ArgumentError(f"{self.type}: window must be 1 or more, got {self.window}")


@kernel(rnn_internal_apply_link)
def apply_link(op: rnn_internal_apply_link, ctx: RunContext, timestep: Any, x: Any) -> tuple[Any, ...]:
    first = op.first_row(ctx, timestep, x, op.window)
    return x[first : first + op.window], x


@register
@dataclass(frozen=True)
class rnn_internal_accumulate_gradient_input(_OfStep):
    """Y = G, with row timestep of dY added to its row timestep + offset."""

    signature = "timestep {1}: int, dY (T, *S): as G, G (U, *S): float|int -> Y (U, *S): as G"
    inplace = ((2, 0),)


@kernel(rnn_internal_accumulate_gradient_input)
def accumulate_gradient_input(
    op: rnn_internal_accumulate_gradient_input, ctx: RunContext, timestep: Any, dy: Any, g: Any
) -> tuple[Any, ...]:
    first = op.first_row(ctx, timestep, g, 1)
    total = g.copy()
    total[first] += dy[first - op.offset]
    return (total,)
