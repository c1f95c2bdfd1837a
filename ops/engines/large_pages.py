"""Memory in large pages for buffers that last: parameters, moments, and what a plan keeps.

A processor remembers the addresses of some thousand pages. With pages of 4 KiB these are a few MiB, so kernels that
read all weights of a net wait for addresses; with pages of 2 MiB they are more than the weights. Linux provides large
pages where a program asks for them, and where a range of addresses contains whole ones, which hardly any weights fill.
So buffers are placed next to each other in a range of addresses. Pages that nothing has been written to take no memory,
and those of a freed buffer are given back, whatever else is in the range.
"""

from __future__ import annotations

import contextlib
import mmap
import weakref
from typing import Any

import numpy as np

from netbuilder.data.forking import new_lock
from netbuilder.ops.engines.arrays import aligned_zeros

__all__ = ["LARGE_PAGES", "lasting_zeros"]

Array = np.ndarray[Any, Any]

LARGE_PAGES = 14
"""Linux: MADV_HUGEPAGE."""

_GIVE_BACK = getattr(mmap, "MADV_DONTNEED", None)
_PAGE = 2 << 20
_RANGE = 256 << 20
_LEAST = 32 << 10  # bytes of a buffer that is placed in a range
_ALIGNMENT = 64
_FLAGS = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)


class _Ranges:
    """The range of addresses that is being filled. A range is freed when none of its buffers is left."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._range: mmap.mmap | None = None
        self._used = 0

    def take(self, nbytes: int) -> Array | None:
        """Return zeroed memory; None where the system has no large pages."""
        if nbytes > _RANGE // 2:
            alone = _map(nbytes)
            return None if alone is None else _buffer(alone, _first_page(alone), nbytes)
        with self._lock:
            if self._range is None or self._used + nbytes > len(self._range):
                self._range = _map(_RANGE)
                if self._range is None:
                    return None
                self._used = _first_page(self._range)
            memory, start = self._range, self._used
            self._used = start + -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return _buffer(memory, start, nbytes)


def _map(nbytes: int) -> mmap.mmap | None:
    """Return fresh memory for so many bytes from its first large page on; None where the system has none."""
    if not hasattr(mmap.mmap, "madvise") or not hasattr(mmap, "MAP_ANONYMOUS"):
        return None
    try:
        memory = mmap.mmap(-1, nbytes + _PAGE, flags=_FLAGS)
    except (OSError, ValueError, OverflowError):
        return None
    with contextlib.suppress(OSError):  # a kernel without large pages
        memory.madvise(LARGE_PAGES)
    return memory


def _first_page(memory: mmap.mmap) -> int:
    """Return the offset of the first large page."""
    return int(-np.frombuffer(memory, np.uint8).ctypes.data % _PAGE)


def _buffer(memory: mmap.mmap, start: int, nbytes: int) -> Array:
    """Return a part of a range; when nothing refers to it any more, its pages are given back."""
    buffer = np.frombuffer(memory, np.uint8, nbytes, start)
    weakref.finalize(buffer, _give_back, memory, start, start + nbytes).atexit = False
    return buffer


def _give_back(memory: mmap.mmap, start: int, end: int) -> None:
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if _GIVE_BACK is not None and first < last:
        memory.madvise(_GIVE_BACK, first, last - first)


_ranges = _Ranges()


def lasting_zeros(nbytes: int) -> Array:
    """Return zeroed memory like ``aligned_zeros``, in large pages where it can be: for buffers that are kept long."""
    found = _ranges.take(nbytes) if nbytes >= _LEAST else None
    return aligned_zeros(nbytes) if found is None else found
