"""RowWiseCounter: a decaying count of the updates of each row of a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.operator import TensorSpec, require
from netbuilder.ops.core.registry import register
from netbuilder.ops.updates.row_updates import RowUpdate, add_row_kernels
from netbuilder.ops.updates.update_rules import check_iteration

__all__ = ["RowWiseCounter"]

Rows = Sequence[Any]


@register
@operator_class(frozen=True)
class RowWiseCounter(RowUpdate):
    """Count the updates of the rows ``indices``; a count is halved every ``counter_halflife`` iterations.

    c' = 1 + c * 0.5^((iter - prev_iter) / counter_halflife), prev_iter' = iter, for each occurrence of a row; a
    ``prev_iter`` later than iter stays, and c does not decay. If ``counter_halflife`` is 0 or less, nothing changes.
    """

    signature = """
        prev_iter (R) or (R, 1): int64
        update_counter (R) or (R, 1): float64
        indices (I): int32|int64
        iter (1): int32|int64
        -> output_prev_iter (R) or (R, 1): int64
        -> output_update_counter (R) or (R, 1): float64
    """
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
        check_iteration(self, iteration)
        return prev_iter.plain, update_counter.plain

    def flops(self, *given: TensorSpec) -> int:
        return 4 * given[2].size

    def iteration(self, iteration: int) -> int:
        return iteration

    def update(self, ctx: RunContext, rows: Rows, g: Any, numbers: Rows, reduced: Any) -> Rows:
        before, counts = (x.reshape(-1) for x in rows)
        if self.counter_halflife <= 0:
            return before, counts
        passed = ctx.xp.maximum(ctx.derived(self.iteration, numbers[0], np.int64) - before, 0)
        return before + passed, 1 + counts * ctx.xp.exp(passed * (-math.log(2) / self.counter_halflife))


add_row_kernels(RowWiseCounter)
