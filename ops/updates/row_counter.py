"""RowWiseCounter: a decaying count of the updates of each row of a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from netbuilder.ops.core.contexts import PlanContext, Prepared, RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import CPU, kernel, prepare, register
from netbuilder.ops.updates.update_rules import check_rate, distinct_rows, updating_rows

__all__ = ["RowWiseCounter"]


@register
@operator_class(frozen=True)
class RowWiseCounter(Operator):
    """Count the updates of the rows ``indices``; a count is halved every ``counter_halflife`` iterations.

    c' = 1 + c * 0.5^((iter - prev_iter) / counter_halflife), prev_iter' = iter, for each occurrence of a row; a
    ``prev_iter`` later than iter stays, and c does not decay. If ``counter_halflife`` is 0 or less, nothing changes.

    Inputs:
        prev_iter (R) or (R, 1): int64
        update_counter (R) or (R, 1): float64
        indices (I): int32|int64
        iter (1): int32|int64
    Outputs:
        output_prev_iter (R) or (R, 1): int64
        output_update_counter (R) or (R, 1): float64
    """

    inputs = ("prev_iter", "update_counter", "indices", "iter")
    outputs = ("output_prev_iter", "output_update_counter")
    must_inplace = ((0, 0), (1, 1))
    counter_halflife: int = -1

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if index == 3 else "here"

    def infer(
        self, prev_iter: TensorSpec, update_counter: TensorSpec, indices: TensorSpec, iteration: TensorSpec
    ) -> tuple[TensorSpec, ...]:
        require(
            prev_iter.ndim >= 1 and prev_iter.size == prev_iter.shape[0] and prev_iter.dtype == np.int64,
            self,
            f"prev_iter must have one int64 per row, got {prev_iter.shape} of {prev_iter.dtype}",
        )
        require(
            update_counter.ndim >= 1
            and update_counter.size == update_counter.shape[0] == prev_iter.size
            and update_counter.dtype == np.float64,
            self,
            f"update_counter must have one float64 per row, {prev_iter.size} in all, "
            f"got {update_counter.shape} of {update_counter.dtype}",
        )
        require(indices.dtype in (np.int32, np.int64), self, f"indices must be int32 or int64, got {indices.dtype}")
        check_rate(self, iteration, "iter")
        return prev_iter.plain, update_counter.plain

    def flops(self, *given: TensorSpec) -> int:
        return 4 * given[2].size


def _count(op: RowWiseCounter, ctx: RunContext, targets: Sequence[Any], indices: Any, iteration: Any) -> None:
    if op.counter_halflife <= 0:
        return
    before, counts = (target.reshape(-1) for target in targets)
    now, indices = int(ctx.host(iteration).item()), indices.reshape(-1)
    for positions in distinct_rows(op, ctx, indices, before.shape[0]):
        rows = indices[positions]
        passed = ctx.xp.maximum(now - before[rows], 0)
        counts[rows] = 1 + counts[rows] * ctx.xp.exp(passed * (-math.log(2) / op.counter_halflife))
        before[rows] += passed


@kernel(RowWiseCounter)
def row_wise_counter(
    op: RowWiseCounter, ctx: RunContext, prev_iter: Any, update_counter: Any, indices: Any, iteration: Any
) -> tuple[Any, ...]:
    targets = prev_iter.copy(), update_counter.copy()
    _count(op, ctx, targets, indices, iteration)
    return targets


@prepare(RowWiseCounter, device=CPU)
def prepare_row_wise_counter(op: RowWiseCounter, ctx: PlanContext, *specs: TensorSpec) -> Prepared:
    return updating_rows(op, specs, lambda given, tables: _count(op, ctx.run, tables, *given[2:]))
