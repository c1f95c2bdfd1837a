"""Waiting in tests: for conditions, threads and processes. Machines may be slow, so limits only tell of hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["HANG", "join_all", "wait_until"]

HANG = 300.0  # seconds, after which what has not happened counts as hanging


def wait_until(condition: Callable[[], object]) -> None:
    """Return as soon as the condition holds; fail if it never does."""
    end = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < end, f"not so after {HANG:.0f} s"
        time.sleep(0.001)


def join_all(*threads: threading.Thread) -> None:
    """Wait for threads to end; fail if one does not."""
    for thread in threads:
        thread.join(HANG)
        assert not thread.is_alive(), f"{thread.name} hangs"
