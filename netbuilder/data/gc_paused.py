"""Garbage collection paused: while many long-lived objects are created, and while a GPU's graph is captured."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from netbuilder.data.forking import after_fork, new_lock

__all__ = ["collection_paused"]

_lock = new_lock()
_pausing: list[int] = []
"""The threads that are inside the block, each as often as it has entered it."""
_was_enabled = False


@contextmanager
def collection_paused() -> Iterator[None]:
    """Disable the garbage collector in the block; it is enabled again when no thread is inside one.

    A large net, or its plan, has a million long-lived objects. The collector would traverse them again and again
    while they are created, which takes longer than creating them.
    """
    global _was_enabled
    thread = threading.get_ident()
    with _lock:
        if not _pausing:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pausing.append(thread)
    try:
        yield
    finally:
        with _lock:
            _pausing.remove(thread)
            _enable_if_nobody_pauses()


def _enable_if_nobody_pauses() -> None:
    if not _pausing and _was_enabled:
        gc.enable()


@after_fork
def _forget_other_threads() -> None:
    if _pausing:
        _pausing[:] = [thread for thread in _pausing if thread == threading.get_ident()]
        _enable_if_nobody_pauses()
