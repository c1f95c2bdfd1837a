"""Rows: buffers next to each other in memory, so that one call can process all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.engines.arrays import as_flat
from netbuilder.engines.large_pages import lasting_zeros
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["as_row", "is_row_of", "new_row", "order_in_row", "part_of_row", "row_starts"]

_ALIGNMENT = 64  # bytes: kernels expect buffers that begin at a multiple of it

Array = Any


def row_starts(sizes: Sequence[int]) -> list[int]:
    """Return where in a row each of the parts begins, in bytes, and where the last part ends.

    Args:
        sizes: the bytes of the parts.
    """
    starts, end = [], 0
    for nbytes in sizes:
        starts.append(-(-end // _ALIGNMENT) * _ALIGNMENT)
        end = starts[-1] + nbytes
    return [*starts, end]


def new_row(sizes: Sequence[int]) -> tuple[Array, list[Array]]:
    """Return a new row of zeros, and its parts, of so many bytes; all are one-dimensional uint8."""
    *starts, end = row_starts(sizes)
    row = lasting_zeros(end)
    return row, [row[start : start + nbytes] for start, nbytes in zip(starts, sizes)]


def as_row(buffers: Sequence[Array]) -> Array | None:
    """Return the memory of buffers as one row of uint8; None if they are not parts of a row, in this order."""
    *starts, end = row_starts([buffer.nbytes for buffer in buffers])
    first = buffers[0].ctypes.data
    if first % _ALIGNMENT or any(b.ctypes.data != first + start for b, start in zip(buffers, starts)):
        return None
    root = _root(buffers[0])
    if any(_root(buffer) is not root for buffer in buffers) or not (root.flags.c_contiguous and root.flags.writeable):
        return None
    begin = first - root.ctypes.data
    row = as_flat(root, np.uint8)[begin : begin + end]
    return row if row.nbytes == end else None


def is_row_of(parts: Sequence[Array], whole: Array) -> bool:
    """Whether arrays of the host are, next to each other in this order, the memory of another one."""
    end = whole.ctypes.data
    for part in parts:
        if part.ctypes.data != end:
            return False
        end += part.nbytes
    return bool(end == whole.ctypes.data + whole.nbytes)


def order_in_row(buffers: Sequence[Array]) -> list[int] | None:
    """Return the indices of buffers in the order in which they are parts of a row; None if they are not."""
    order = sorted(range(len(buffers)), key=lambda i: buffers[i].ctypes.data)
    return order if as_row([buffers[i] for i in order]) is not None else None


def part_of_row(part: Array, spec: TensorSpec) -> Array:
    """Return a part of a row as a buffer for a value of ``spec``."""
    return part if spec.layout is not None else as_flat(part, spec.dtype).reshape(spec.shape)


def _root(array: Array) -> Array:
    """Return the array that owns the memory of a view."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
