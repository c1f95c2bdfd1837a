"""SumRepeatedRows: the sums of the rows of a sparse gradient that have the same index."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.indexing import add_rows
from netbuilder.ops.core.operator import Operator, TensorSpec, require, spec_of
from netbuilder.ops.core.registry import kernel, register

__all__ = ["SumRepeatedRows"]


@register
@operator_class(frozen=True)
class SumRepeatedRows(Operator):
    """The distinct ``indices``, ascending, and for each the sum of its ``values``, added in order. No gradient.

    ``indices`` may have any shape; the shape of ``values`` is theirs followed by the shape of a row. An update of a
    table by the results equals that by the dense gradient, restricted to the rows that occur, however often they do.
    Caffe2 does not have this operator.

    Inputs:
        indices (*I): int32|int64
        values (*I, *S): float
    Outputs:
        rows (K): as indices
        sums (K, *S): as values
    """

    inputs = ("indices", "values")
    outputs = ("rows", "sums")
    dynamic = True

    def static_for(self, indices: TensorSpec, values: TensorSpec) -> bool:
        return indices.size < 2

    def infer(self, indices: TensorSpec, values: TensorSpec) -> tuple[TensorSpec, ...]:
        row = self.row_shape(indices, values)
        if not self.static_for(indices, values):
            raise NotImplementedError("SumRepeatedRows: the number of distinct indices is known only when the net runs")
        return indices.with_shape((indices.size,)), values.with_shape((indices.size, *row))

    def row_shape(self, indices: TensorSpec, values: TensorSpec) -> tuple[int, ...]:
        """Return the shape of a row; raise ShapeError if the inputs do not fit each other."""
        require(indices.dtype in (np.int32, np.int64), self, f"indices must be int32 or int64, got {indices.dtype}")
        require(values.dtype.kind == "f", self, f"values must hold floating-point numbers, got {values.dtype}")
        require(
            values.shape[: indices.ndim] == indices.shape,
            self,
            f"values must have one row per index, indices have shape {indices.shape}, got {values.shape}",
        )
        return values.shape[indices.ndim :]

    def flops(self, indices: TensorSpec, values: TensorSpec) -> int:
        return values.size


@kernel(SumRepeatedRows)
def sum_repeated_rows(op: SumRepeatedRows, ctx: RunContext, indices: Any, values: Any) -> tuple[Any, ...]:
    row = op.row_shape(spec_of(indices), spec_of(values))
    rows, positions = ctx.xp.unique(indices.reshape(-1), return_inverse=True)
    wide = widen(values)
    sums = ctx.xp.zeros((rows.size, *row), wide.dtype)
    add_rows(ctx.xp, sums, positions, wide, ctx.add_in_order)
    return rows, narrow(sums, values)
