"""How many cores this process may use."""

from __future__ import annotations

import os

__all__ = ["core_count"]


def core_count() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
