"""RemoveDataBlocks: rows taken away."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.operator import STRING, Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.segment_groups import check_integers
from netbuilder.proto import ShapeError

__all__ = ["RemoveDataBlocks"]


@register
@operator_class(frozen=True)
class RemoveDataBlocks(Operator):
    """The rows of ``data`` without those at ``indices``, which come in any order, also twice.

    Inputs:
        data (N, *S): any
        indices (I): int32|int64
    Outputs:
        shrunk_data (M, *S): as data
    """

    inputs = ("data", "indices")
    outputs = ("shrunk_data",)
    dynamic = True

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if index == 1 else "here"

    def flops(self, *inputs: TensorSpec) -> int:
        return 0


@kernel(RemoveDataBlocks)
def remove_data_blocks(op: RemoveDataBlocks, ctx: RunContext, data: Any, indices: Any) -> tuple[Any, ...]:
    require(data.ndim >= 1, op, "data must have rows, got a scalar")
    check_integers(op, "indices", indices)
    gone, rows = ctx.host(indices), data.shape[0]
    if gone.size and not 0 <= gone.min() <= gone.max() < rows:
        raise ShapeError(
            f"RemoveDataBlocks: indices must lie in [0, {rows}), the rows of data, got some from {gone.min()} to "
            f"{gone.max()}"
        )
    left = np.ones(rows, bool)
    left[gone] = False
    kept = np.flatnonzero(left)
    return (data[kept] if data.dtype == STRING else data[ctx.xp.asarray(kept)],)
