"""The memory of the process: what is resident now, what was at most, and which pages of a buffer are not yet."""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["absent_bytes", "peak_resident", "resident"]


def peak_resident() -> int:
    """Return the peak resident memory of the process in bytes; 0 where the system does not report it."""
    if peak := _status("VmHWM"):
        return peak
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def resident() -> int:
    """Return the resident memory of the process in bytes; where the system does not report it, the peak so far."""
    return _status("VmRSS") or peak_resident()


def absent_bytes(extents: Iterable[tuple[int, int]]) -> int:
    """Return how many bytes of host memory will become resident when all of it is written; 0 if that is unknown.

    Args:
        extents: the addresses at which each part begins and ends; parts may overlap.
    """
    ask = _mincore()
    if ask is None:
        return 0
    page, absent, reached = mmap.PAGESIZE, 0, 0
    for start, end in sorted(extents):
        first = max(start // page * page, reached)
        last = -(-end // page) * page
        if first >= last:
            continue
        there = np.empty((last - first) // page, np.uint8)
        if ask(ctypes.c_void_p(first), ctypes.c_size_t(last - first), ctypes.c_void_p(there.ctypes.data)):
            return 0
        absent += page * int(np.count_nonzero(there & 1 == 0))
        reached = last
    return absent


@functools.cache
def _mincore() -> Any:
    """Return the C library's function that tells which pages are resident; None if it has none."""
    try:
        return ctypes.CDLL(None).mincore
    except (AttributeError, OSError, TypeError):
        return None


def _status(field: str) -> int:
    """Return a size that Linux reports about the process; 0 on other systems."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
