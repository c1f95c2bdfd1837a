"""ReversePackedSegs: sequences of any lengths reversed within a packed tensor."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["ReversePackedSegs"]


@register
@dataclass(frozen=True)
class ReversePackedSegs(Operator):
    """Y[t, n] = X[lengths[n] - 1 - t, n] for the first ``lengths[n]`` steps of sample n, else X[t, n]."""

    signature = "X (T, N, *S): any, lengths (N): int32|int64 -> Y (T, N, *S): as X"
    flops_per_element = 0

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("ReversePackedSegs", [g.d_output("Y"), g.input("lengths")], [g.d_input("X")])]


@kernel(ReversePackedSegs)
def reverse_packed_segs(op: ReversePackedSegs, ctx: RunContext, x: Any, lengths: Any) -> tuple[Any, ...]:
    xp = ctx.xp
    steps = xp.arange(x.shape[0])[:, None]
    reversed_steps = lengths[None, :] - 1 - steps
    source = xp.where(reversed_steps >= 0, reversed_steps, steps)
    return (x[xp.minimum(source, x.shape[0] - 1), xp.arange(x.shape[1])[None, :]],)
