"""Adding rows into tables and checking indices, for Gather, Scatter and segment operators."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import AddInOrder, RunContext
from netbuilder.ops.core.segment_groups import reduce_segments

__all__ = ["add_rows", "check_indices", "checked_indices", "count_rows", "no_row", "rows_of_shard", "with_rows"]

Array = Any


def no_row(dtype: Any) -> int:
    """Return the index of a type that names no row: it changes nothing. It is the type's lowest number."""
    return int(np.iinfo(dtype).min)


def check_indices(what: str, indices: Array, extent: int, lowest: int = 0, *, named: str = "indices") -> bool:
    """Raise IndexError unless all indices lie in [lowest, extent).

    Args:
        what: the message begins with it, such as the operator's type.
        named: what the message calls them.

    Returns:
        Whether any of them is negative.
    """
    if not indices.size:
        return False
    # One pass over the indices is enough: as unsigned numbers, negative ones are the greatest.
    if not lowest and indices.dtype.kind == "i" and int(indices.view(f"u{indices.dtype.itemsize}").max()) < extent:
        return False
    least, most = int(indices.min()), int(indices.max())
    if least < lowest or most >= extent:
        raise IndexError(f"{what}: {named} must lie in [{lowest}, {extent}), got {least if least < lowest else most}")
    return least < 0


def checked_indices(
    ctx: RunContext, what: str, indices: Array, extent: int, lowest: int = 0, *, named: str = "indices"
) -> Array:
    """Return indices into an axis, all of which are valid.

    On the host, a wrong index is an IndexError at once. On a GPU nobody waits: the error is raised at the end of the
    run, or when a value is read before, and the wrong index is replaced by a valid one.

    Args:
        ctx: the run context of the operator.
        what, indices, extent, lowest, named: as of ``check_indices``.
    """
    if isinstance(indices, np.ndarray) or extent <= lowest:
        check_indices(what, indices, extent, lowest, named=named)
        return indices

    def error(index: int) -> Exception:
        return IndexError(f"{what}: {named} must lie in [{lowest}, {extent}), got {index}")

    return ctx.checked_range(indices, lowest, extent, error)


def with_rows(xp: Any, table: Array, rows: Array, values: Array) -> Array:
    """Return a table in which rows are replaced; of values for the same row, the last one is used.

    Args:
        xp: numpy or cupy.
        table: (R, *S).
        rows: numbers of rows, one-dimensional, in range.
        values: (number of rows, *S), of the table's type.
    """
    if not rows.size:
        return table.copy()
    if xp is np:
        table = table.copy()
        table[rows] = values  # NumPy assigns in order
        return table
    # On a GPU the order is undefined, so each row of the table takes the last value that is for it.
    last = xp.zeros(table.shape[0], np.uint64)  # 1 for the first value; 0: there is none
    xp.maximum.at(last, rows, xp.arange(1, rows.size + 1, dtype=np.uint64))
    replaced = (last > 0).reshape(-1, *(1,) * (table.ndim - 1))
    return xp.where(replaced, values[xp.maximum(last.view(np.int64) - 1, 0)], table)


def count_rows(xp: Any, rows: Array, count: int) -> Array:
    """Return how often each of ``count`` rows occurs, (count,) int64; on a GPU nobody waits, as in ``bincount``.

    Args:
        xp: numpy or cupy.
        rows: numbers of rows, one-dimensional, in range.
    """
    if xp is np:
        return np.bincount(rows, minlength=count)
    counts = xp.zeros(count, np.int64)
    _add_at(xp, counts, rows, xp.ones(rows.size, np.int64))
    return counts


def add_rows(xp: Any, table: Array, indices: Array, values: Array, in_order: AddInOrder | None = None) -> None:
    """Add ``values[i]`` to row ``indices[i]`` of ``table``, in place; for repeated indices, all values are added.

    Args:
        xp: numpy or cupy.
        table: (rows, ...).
        indices: any shape, in range.
        values: the shape of ``indices``, then that of a row.
        in_order: adds floating-point rows on a GPU in the order of the indices, see ``RunContext.add_in_order``; None:
            they are added atomically, in an order that may change from run to run.
    """
    flat = indices.reshape(-1)
    if not flat.size:
        return
    width = math.prod(table.shape[1:])
    values = values.reshape(flat.size, width)
    if xp is not np and in_order is not None and table.dtype.kind == "f":
        in_order(table.reshape(table.shape[0], width), flat, values)
        return
    if xp is not np or width == 1:
        _add_at(xp, table.reshape(table.shape[0], width), flat, values)
        return
    # NumPy's add.at takes twice as long for wide rows (1024 rows of 64, NumPy 2), far longer before NumPy 1.25.
    order = np.argsort(flat, kind="stable")
    rows = flat[order]
    starts = np.flatnonzero(np.concatenate(([True], rows[1:] != rows[:-1])))
    matrix = table.reshape(table.shape[0], width)
    if starts.size == rows.size:
        matrix[flat] += values
        return
    total = np.empty((starts.size, width), values.dtype)
    counts = np.diff(starts, append=rows.size)
    reduce_segments(np, counts, lambda positions: values.take(order.take(positions), axis=0), total)
    matrix[rows[starts]] += total


def _add_at(xp: Any, matrix: Array, rows: Array, values: Array) -> None:
    """``xp.add.at`` for every type: CuPy's lacks integers of less than 32 bits, and older versions lack int64."""
    kind, size = matrix.dtype.kind, matrix.dtype.itemsize
    if xp is np or kind == "f" or size == 4:
        xp.add.at(matrix, rows, values)
    elif size == 8:  # signed and unsigned sums have the same bits
        xp.add.at(matrix.view("uint64"), rows, values.view("uint64"))
    else:
        wide = matrix.astype(f"{kind}4")
        xp.add.at(wide, rows, values.astype(f"{kind}4"))
        matrix[...] = wide


def rows_of_shard(rows: int, shards: int) -> int:
    """Return how many rows each of so many processes has of a table: as many in all of them.

    Process r has the rows from r times this number on; the last ones may have some that are not of the table.
    """
    return -(-rows // shards)
