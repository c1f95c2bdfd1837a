"""SplitByLengths: a tensor split along an axis into parts of given lengths."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.arrange.concat import concat_gradients
from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.image_order import channel_axis, check_order
from netbuilder.ops.core.operator import Operator, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.segment_groups import lengths_on_host
from netbuilder.proto import OperatorDef
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["SplitByLengths"]


@register
@dataclass(frozen=True)
class SplitByLengths(Operator):
    """X split along ``axis`` (by default that of the channels) into as many parts as there are outputs.

    Each part gets the same number of consecutive lengths, and its extent is their sum. With ``use_scaling_lengths``,
    all lengths are multiplied by the integer that makes their sum the extent of the axis.
    """

    signature = "X (*A, N, *B): any, lengths (L): int32 -> Y+ (*A, M, *B) or (...): as X"
    dynamic = True
    inputs_on_host = (1,)
    flops_per_element = 0
    axis: int | None = None
    order: str = "NCHW"
    use_scaling_lengths: bool = False

    def check(self) -> None:
        check_order(self, self.order)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return concat_gradients(g)


@kernel(SplitByLengths)
def split_by_lengths(op: SplitByLengths, ctx: RunContext, x: Any, lengths: Any) -> tuple[Any, ...]:
    axis = channel_axis(op.order, x.ndim) if op.axis is None else op.axis
    require(
        -x.ndim <= axis < x.ndim, op, f"axis must lie in [{-x.ndim}, {x.ndim}) for X of shape {x.shape}, got {axis}"
    )
    axis %= x.ndim
    counts = lengths_on_host(op, ctx, lengths)
    require(
        counts.size % op.n_out == 0,
        op,
        f"the number of lengths must be a multiple of the {op.n_out} outputs, got {counts.size}",
    )
    extent, total = x.shape[axis], int(counts.sum())
    scale = extent // total if op.use_scaling_lengths and total else 1
    require(
        scale * total == extent,
        op,
        f"the sum of the lengths must be the extent of axis {axis}, {extent}, or with use_scaling_lengths divide it, "
        f"got {total}",
    )
    parts = scale * counts.reshape(op.n_out, -1).sum(axis=1)
    ends = parts.cumsum()
    before = (slice(None),) * axis
    return tuple(x[(*before, slice(end - n, end))].copy() for n, end in zip(parts.tolist(), ends.tolist()))
