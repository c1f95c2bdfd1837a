"""ScatterWeightedSum and ScatterAssign: rows of a table updated in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import PlanContext, Prepared, RunContext
from netbuilder.ops.core.indexing import add_rows, check_indices, checked_indices, with_rows
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import CPU, kernel, prepare, register
from netbuilder.proto import NetError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["ScatterAssign", "ScatterWeightedSum"]


@register
@dataclass(frozen=True)
class ScatterWeightedSum(Operator):
    """X[indices] = w0 * X[indices] + w1 * X1 + w2 * X2 + ..., in place.

    The inputs are X, w0, indices, X1, w1, X2, w2, ...; each weight has one element. A row whose index occurs k times is
    multiplied by w0 k times, and then all its updates are added.
    """

    signature = """
        X (R, *S): float
        w0 {1}: float|int
        indices (*I): int32|int64
        X1 (*I, *S): as X
        w1 {1}: float|int
        more* (...): float|int, rows as X1, each followed by its weight
        -> Y: as X
    """
    must_inplace = ((0, 0),)

    def check(self) -> None:
        if self.n_in % 2 == 0:
            raise NetError(
                f"ScatterWeightedSum takes X, w0, indices and pairs of rows and their weight, got {self.n_in} inputs"
            )

    def check_inputs(self, x: TensorSpec, w0: TensorSpec, indices: TensorSpec, *pairs: TensorSpec) -> None:
        shape = indices.shape + x.shape[1:]
        for i, (rows, weight) in enumerate(zip(pairs[::2], pairs[1::2]), start=1):
            fits = rows.shape == shape and rows.dtype == x.dtype
            text = f"X{i} must have shape {shape} and type {x.dtype}, got {rows.shape} {rows.dtype}"
            require(fits, self, text)
            require(weight.size == 1, self, f"w{i} must have one element, got shape {weight.shape}")

    def flops(self, x: TensorSpec, w0: TensorSpec, indices: TensorSpec, *pairs: TensorSpec) -> int:
        return (len(pairs) // 2 * 2 + 1) * pairs[0].size


def _update(ctx: RunContext, table: Any, w0: Any, indices: Any, pairs: Sequence[Any]) -> None:
    """Update ``table`` in place."""
    xp = ctx.xp
    if not indices.size:
        return
    indices = checked_indices(ctx, "ScatterWeightedSum", indices, table.shape[0])
    factor = ctx.host(w0).item()
    if factor != 1.0:
        rows, counts = xp.unique(indices, return_counts=True)
        powers = (factor ** counts.astype(np.float64)).astype(table.dtype)
        table[rows] *= powers.reshape((-1,) + (1,) * (table.ndim - 1))
    for values, weight in zip(pairs[::2], pairs[1::2]):
        add_rows(xp, table, indices, values * weight.astype(table.dtype, copy=False).reshape(()), ctx.add_in_order)


@kernel(ScatterWeightedSum)
def scatter_weighted_sum(
    op: ScatterWeightedSum, ctx: RunContext, x: Any, w0: Any, indices: Any, *pairs: Any
) -> tuple[Any, ...]:
    table = x.copy()
    _update(ctx, table, w0, indices, pairs)
    return (table,)


@prepare(ScatterWeightedSum, device=CPU)
def _prepare_scatter_weighted_sum(op: ScatterWeightedSum, ctx: PlanContext, *specs: TensorSpec) -> Prepared:
    """Prepare an update of the table in place: it may be far larger than the rows that change."""
    plain = [s.plain for s in specs]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        x, w0, indices, *pairs = inputs
        table = outputs[0]
        same = np.may_share_memory(x, table)

        def run() -> None:
            if not same:
                np.copyto(table, x)
            _update(ctx.run, table, w0, indices, pairs)

        return run

    return Prepared(plain, op.infer(*plain), bind, inplace=((0, 0),), name="numpy rows")


@register
@dataclass(frozen=True)
class ScatterAssign(Operator):
    """X[indices] = rows along ``axis``, in place; if an index is repeated, one of its rows is used."""

    signature = """
        X (*A, R @ axis, *S): any
        indices (*I): int32|int64
        rows (*A, *I, *S): as X
        -> Y: as X
    """
    must_inplace = ((0, 0),)
    flops_per_element = 0
    axis: int = 0

    def place(self, table: Any, indices: Any) -> tuple[Any, ...]:
        """Return the index of the table's elements that are replaced."""
        return (*[slice(None)] * (self.axis % table.ndim), indices)


@kernel(ScatterAssign)
def scatter_assign(op: ScatterAssign, ctx: RunContext, x: Any, indices: Any, rows: Any) -> tuple[Any, ...]:
    xp, axis = ctx.xp, op.axis % x.ndim
    indices = checked_indices(ctx, "ScatterAssign", indices, x.shape[axis])
    if ctx.add_in_order is not None:
        flat = rows.reshape(*x.shape[:axis], indices.size, *x.shape[axis + 1 :])
        turned = with_rows(xp, xp.moveaxis(x, axis, 0), indices.reshape(-1), xp.moveaxis(flat, axis, 0))
        return (xp.ascontiguousarray(xp.moveaxis(turned, 0, axis)),)
    table = x.copy()
    table[op.place(x, indices)] = rows
    return (table,)


@prepare(ScatterAssign, device=CPU)
def _prepare_scatter_assign(op: ScatterAssign, ctx: PlanContext, *specs: TensorSpec) -> Prepared:
    plain = [s.plain for s in specs]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        (x, indices, rows), table = inputs, outputs[0]
        same = np.may_share_memory(x, table)

        def run() -> None:
            check_indices("ScatterAssign", indices, table.shape[op.axis])
            if not same:
                np.copyto(table, x)
            table[op.place(table, indices)] = rows

        return run

    return Prepared(plain, op.infer(*plain), bind, inplace=((0, 0),), name="numpy rows")
