"""VariableLengthSequencePadding: sets the steps after the end of sequences to 0."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ShapeError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["VariableLengthSequencePadding"]


@register
@dataclass(frozen=True)
class VariableLengthSequencePadding(Operator):
    """Y[t, n] = X[t, n] for t < lengths[n], else 0. No gradient.

    A length must lie in [0, T]; Caffe2 accepts greater ones and keeps all steps.
    """

    signature = "X (T, N, D): float, lengths (N): int32 -> Y (T, N, D): as X"
    inplace = ((0, 0),)


@kernel(VariableLengthSequencePadding)
def variable_length_sequence_padding(
    op: VariableLengthSequencePadding, ctx: RunContext, x: Any, lengths: Any
) -> tuple[Any, ...]:
    wrong = ctx.host(lengths[(lengths < 0) | (lengths > len(x))])
    if wrong.size:
        raise ShapeError(
            f"{op.type}: lengths must lie in [0, {len(x)}], the number of steps of X, got {int(wrong[0])}; clip them"
        )
    inside = ctx.xp.arange(len(x))[:, None] < lengths
    return (ctx.xp.where(inside[:, :, None], x, x.dtype.type(0)),)
