"""RemoveDataBlocks: rows taken away."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from netbuilder.ops.contexts import RunContext
from netbuilder.ops.declaration import dataclass
from netbuilder.ops.operator import STRING, Operator, TensorSpec, require
from netbuilder.ops.registry import kernel, register
from netbuilder.ops.segment_groups import check_integers
from netbuilder.proto import ShapeError

__all__ = ["RemoveDataBlocks"]


@register
@dataclass(frozen=True)
class RemoveDataBlocks(Operator):
    """The rows of ``data`` without those at ``indices``, which come in any order, also twice."""

    inputs = ("data", "indices")
    outputs = ("shrunk_data",)
    dynamic = True

    def input_place(self, index: int) -> Literal["here", "host", "any"]:
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
