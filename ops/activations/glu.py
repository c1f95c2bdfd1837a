"""Glu, the gated linear unit: one half of a tensor, gated by the other."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Glu"]


@register
@dataclass(frozen=True)
class Glu(Operator):
    """Y = the first half of X along axis ``dim``, times the sigmoid of the second half. No gradient, as in Caffe2.

    Source: Dauphin et al., "Language Modeling with Gated Convolutional Networks", 2016, arXiv:1612.08083.
    """

    signature = "X (*A, N @ dim, *B): float -> Y (*A, N // 2, *B): as X"
    flops_per_element = 2
    dim: int = -1

    def check_inputs(self, x: TensorSpec) -> None:
        extent = x.shape[self.dim]
        require(extent % 2 == 0, self, f"the extent along dim must be even, got {extent}")


@kernel(Glu)
def glu(op: Glu, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    xp, axis = ctx.xp, op.dim % x.ndim
    half = x.shape[axis] // 2
    before = (slice(None),) * axis
    value, gate = widen(x[(*before, slice(None, half))]), widen(x[(*before, slice(half, None))])
    e = xp.exp(-xp.abs(gate))  # never overflows
    return (narrow(value * xp.where(gate >= 0, 1, e) / (1 + e), x),)
