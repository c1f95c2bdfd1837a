"""Memory in large pages for buffers that last: parameters, moments, and what a plan keeps.

A processor remembers the addresses of some thousand pages. With pages of 4 KiB these are a few MiB, so kernels that
read all weights of a net wait for addresses; with pages of 2 MiB they are more than the weights. Linux provides large
pages where a program asks for them, and where a range of addresses contains whole ones, which hardly any weights fill.
So buffers are placed next to each other in slabs. Those larger than half a slab have memory of their own, and what does
not fill their last large page is in small ones.
"""

from __future__ import annotations

import contextlib
import mmap
import weakref
from typing import Any

import numpy as np

from netbuilder.data.forking import new_lock
from netbuilder.engines.arrays import aligned_zeros

__all__ = ["LARGE_PAGES", "Slabs", "lasting_zeros", "map", "slabs"]

Array = np.ndarray[Any, Any]

LARGE_PAGES = 14
"""Linux: MADV_HUGEPAGE."""

_PAGE = 2 << 20
_SLAB = 4 * _PAGE
_LEAST = 32 << 10  # bytes of a buffer that is placed in a slab
_ALIGNMENT = 64
_OPEN = 3  # slabs into which further buffers are placed; few, so that those of one time are together
_FLAGS = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)


class Slabs:
    """The slabs that are being filled. A slab is freed when none of its buffers is left."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._slab: Array | None = None  # the latest
        self._open: list[tuple[weakref.ref[Array], int]] = []  # the latest ones, with the bytes that are in use

    def take(self, nbytes: int) -> Array | None:
        """Return zeroed memory; None where the system has no large pages."""
        if nbytes > _SLAB // 2:
            return map(nbytes)
        with self._lock:
            self._open = [(slab, used) for slab, used in self._open if slab() is not None]
            fitting = [(used, i) for i, (_, used) in enumerate(self._open) if used + nbytes <= _SLAB]
            start, index = max(fitting, default=(0, -1))  # into the one with the least room
            slab = self._open[index][0]() if fitting else map(_SLAB)
            if slab is None:
                return None
            if not fitting:
                self._slab = slab
                self._open = [*self._open[1 - _OPEN :], (weakref.ref(slab), 0)]
            self._open[index] = self._open[index][0], start + -(-nbytes // _ALIGNMENT) * _ALIGNMENT
            return slab[start : start + nbytes]


def map(nbytes: int) -> Array | None:
    """Return fresh memory that begins with a large page; None where the system has none."""
    if not hasattr(mmap.mmap, "madvise") or not hasattr(mmap, "MAP_ANONYMOUS"):
        return None
    try:
        memory = mmap.mmap(-1, nbytes + _PAGE, flags=_FLAGS)
    except (OSError, ValueError, OverflowError):
        return None
    start = -np.frombuffer(memory, np.uint8).ctypes.data % _PAGE
    with contextlib.suppress(OSError):  # a kernel without large pages
        memory.madvise(LARGE_PAGES, start, nbytes // _PAGE * _PAGE)
    return np.frombuffer(memory, np.uint8, nbytes, start)


slabs = Slabs()


def lasting_zeros(nbytes: int) -> Array:
    """Return zeroed memory like ``aligned_zeros``, in large pages where it can be: for buffers that are kept long."""
    found = slabs.take(nbytes) if nbytes >= _LEAST else None
    return aligned_zeros(nbytes) if found is None else found
