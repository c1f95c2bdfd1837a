"""Sums over ranks that MPI does not do itself: of 16-bit floating types in float32, and in the order of the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.engines.engine import library_engines
from netbuilder.proto import PROTO_CPU

__all__ = ["FLOAT_TYPES", "narrow", "split_evenly", "sum_rows", "widen"]

_PIECE = 1 << 16
"""Elements of a piece: a few float32 arrays of this size fit into a core's L2 cache."""

Array = np.ndarray[Any, np.dtype[Any]]

FLOAT_TYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
}
"""The types in which float32 values can be exchanged, and the dtypes of arrays of them; bfloat16 is stored as bits."""


def _converted(source: Array, out: Array, *, add: bool = False) -> bool:
    """Whether an engine has converted an array, see ``Engine.convert``."""
    engines = library_engines(lambda name: True, PROTO_CPU)
    return any(engine.convert(source, out, add=add) for engine in engines)


def narrow(values: Array, out: Array) -> None:
    """Round float32 to the nearest values of another type, ties to even; NaN stays NaN.

    In bfloat16, magnitudes below the least normal float32, 1.2e-38, may become 0.

    Args:
        values: float32, one-dimensional.
        out: of the same size; float32, float16, or uint16 for the bits of bfloat16.
    """
    if _converted(values, out):
        return
    if out.dtype != np.uint16:
        np.copyto(out, values, casting="same_kind")
        return
    space = np.empty(min(values.size, _PIECE), np.uint32)  # stays in the cache
    for start in range(0, values.size, _PIECE):
        part = values[start : start + _PIECE]
        bits, rounded = part.view(np.uint32), space[: part.size]
        np.right_shift(bits, 16, out=rounded)
        np.bitwise_and(rounded, 1, out=rounded)
        np.add(rounded, 0x7FFF, out=rounded)
        np.add(rounded, bits, out=rounded)
        np.right_shift(rounded, 16, out=rounded)
        np.copyto(out[start : start + _PIECE], rounded, casting="unsafe")
        if np.isnan(part.sum()):  # a NaN, or infinities of both signs
            nan = np.isnan(part)
            out[start : start + _PIECE][nan] = bits[nan] >> 16 | 0x40


def widen(stored: Array, out: Array) -> None:
    """Write values of a type of ``narrow`` to float32; exact."""
    if _converted(stored, out):
        return
    if stored.dtype != np.uint16:
        np.copyto(out, stored)
        return
    bits = out.view(np.uint32)
    for start in range(0, bits.size, _PIECE):
        part = bits[start : start + _PIECE]
        np.copyto(part, stored[start : start + _PIECE])
        np.left_shift(part, 16, out=part)


def sum_rows(rows: Sequence[Array], out: Array, *, bfloat16: bool = False) -> None:
    """Add the rows in order; 16-bit floating types are added in float32, and the sum is rounded once.

    Args:
        rows: one-dimensional arrays of one size and dtype; at least one.
        out: of that size and dtype; it may be the first or the second row.
        bfloat16: the elements are uint16 with the bits of bfloat16.
    """
    if not bfloat16 and out.dtype != np.float16:
        if len(rows) == 1:
            np.copyto(out, rows[0])
        for number, row in enumerate(rows[1:]):
            np.add(out if number else rows[0], row, out=out)
        return
    for start in range(0, out.size, _PIECE):
        stop = min(start + _PIECE, out.size)
        total = np.empty(stop - start, np.float32)
        widen(rows[0][start:stop], total)
        for row in rows[1:]:
            _add(row[start:stop], total)
        narrow(total, out[start:stop])


def _add(stored: Array, total: Array) -> None:
    """Add values of a 16-bit type to float32."""
    if not _converted(stored, total, add=True):
        term = np.empty(stored.size, np.float32)
        widen(stored, term)
        total += term


def split_evenly(size: int, parts: int) -> list[int]:
    """Return the sizes of so many parts that differ by at most 1; the larger ones come first.

    >>> split_evenly(8, 3)
    [3, 3, 2]
    """
    least, more = divmod(size, parts)
    return [least + (part < more) for part in range(parts)]
