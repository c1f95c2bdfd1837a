"""RowWiseCounter: a decaying count of the updates of each row of a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.core.registry import register
from netbuilder.ops.updates.row_updates import RowUpdate, add_row_kernels
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["RowWiseCounter"]

Rows = Sequence[Any]


@register
@dataclass(frozen=True)
class RowWiseCounter(RowUpdate):
    """Count the updates of the rows ``indices``; a count is halved every ``counter_halflife`` iterations.

    c' = 1 + c * 0.5^((iter - prev_iter) / counter_halflife), prev_iter' = iter, for each occurrence of a row; a
    ``prev_iter`` later than iter stays, and c does not decay. If ``counter_halflife`` is 0 or less, nothing changes.
    """

    signature = """
        prev_iter (R) or (R, 1): int64
        update_counter (R) or (R, 1): float64
        indices (*I): int32|int64
        iter {1}: int
        -> output_prev_iter: as prev_iter
        -> output_update_counter: as update_counter
    """
    must_inplace = ((0, 0), (1, 1))
    inputs_on_host = (3,)
    counter_halflife: int = -1

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
