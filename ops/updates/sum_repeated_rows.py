"""SumRepeatedRows: the sums of the rows of a sparse gradient that have the same index."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.indexing import add_rows, checked_indices, no_row
from netbuilder.ops.core.operator import Operator, TensorSpec, require, spec_of
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["SumRepeatedRows"]


@register
@dataclass(frozen=True)
class SumRepeatedRows(Operator):
    """The distinct ``indices``, ascending, and for each the sum of its ``values``, added in order. No gradient.

    ``indices`` may have any shape; the shape of ``values`` is theirs followed by the shape of a row. An update of a
    table by the results equals that by the dense gradient, restricted to the rows that occur, however often they do.
    Caffe2 does not have this operator.

    With ``num_rows``, the number of rows of the table, the results have an entry for each index, so that their size is
    known before the net runs: each distinct index is at its first place among the sorted ones. The other indices are
    the lowest number of their type, which updates of rows skip, and their sums are 0.
    """

    signature = """
        indices (*I): int32|int64
        values (*I, *S): float
        -> rows (K): as indices
        -> sums (K, *S): as values
    """
    dynamic = True
    num_rows: int = 0

    def check(self) -> None:
        if self.num_rows < 0:
            raise ArgumentError(f"SumRepeatedRows: num_rows must not be negative, got {self.num_rows}")

    def with_arity(self, n_in: int, n_out: int) -> Any:
        object.__setattr__(self, "dynamic", not self.num_rows)
        return super().with_arity(n_in, n_out)

    def static_for(self, indices: TensorSpec, values: TensorSpec) -> bool:
        return self.num_rows > 0 or indices.size < 2

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
    row, xp = op.row_shape(spec_of(indices), spec_of(values)), ctx.xp
    flat, wide = indices.reshape(-1), widen(values)
    if op.num_rows:
        ordered = xp.sort(checked_indices(ctx, op.type, flat, op.num_rows))
        rows, positions = ordered.copy(), xp.searchsorted(ordered, flat)
        rows[1:] = xp.where(ordered[1:] == ordered[:-1], rows.dtype.type(no_row(rows.dtype)), ordered[1:])
    else:
        rows, positions = xp.unique(flat, return_inverse=True)
    sums = xp.zeros((rows.size, *row), wide.dtype)
    add_rows(xp, sums, positions, wide, ctx.add_in_order)
    return rows, narrow(sums, values)
