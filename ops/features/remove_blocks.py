"""RemoveDataBlocks: a tensor without some of its rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import STRING, Operator, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.segment_groups import check_integers
from netbuilder.proto import ShapeError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["RemoveDataBlocks"]


@register
@dataclass(frozen=True)
class RemoveDataBlocks(Operator):
    """shrunk_data = the rows of ``data`` except ``indices``, which may have any order and repeats."""

    signature = "data (N, *S): any, indices (I): int32|int64 -> shrunk_data (M, *S): as data"
    dynamic = True
    inputs_on_host = (1,)
    flops_per_element = 0


@kernel(RemoveDataBlocks)
def remove_data_blocks(op: RemoveDataBlocks, ctx: RunContext, data: Any, indices: Any) -> tuple[Any, ...]:
    require(data.ndim >= 1, op, "data must have rows, got a scalar")
    check_integers(op, "indices", indices)
    removed, rows = ctx.host(indices), data.shape[0]
    if removed.size and not 0 <= removed.min() <= removed.max() < rows:
        raise ShapeError(
            f"RemoveDataBlocks: indices must lie in [0, {rows}), the rows of data, got values from {removed.min()} to "
            f"{removed.max()}"
        )
    remains = np.ones(rows, bool)
    remains[removed] = False
    kept = np.flatnonzero(remains)
    return (data[kept] if data.dtype == STRING else data[ctx.xp.asarray(kept)],)
