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

_MOST_TIMES = 8
"""Blocks between two collections of all objects after which theirs are put among the oldest.

So cycles that a program drops, in a loop that makes one net after another, are found as without the blocks.
"""

_frozen = False
_put = [0, 0]
"""How many times all objects had been collected, and after how many blocks since then theirs were put away."""


@contextmanager
def collection_paused() -> Iterator[None]:
    """Disable the garbage collector in the block; it is enabled again when no thread is inside one.

    A large net, or its plan, has a million long-lived objects. The collector would traverse them again and again
    while they are created, which takes longer than creating them. At the end of the block it would traverse all of
    them once more, as young ones, so they are put among the oldest, which it seldom looks at.
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
        _put_away()
        gc.enable()


def _put_away() -> None:
    """Put all objects among the oldest ones, without traversing them, unless that was done too often."""
    collections = gc.get_stats()[-1]["collections"]
    if _put[0] != collections:
        _put[:] = collections, 0
    if _put[1] < _MOST_TIMES and not _program_freezes():
        _put[1] += 1
        gc.freeze()
        gc.unfreeze()


def _program_freezes() -> bool:
    """Return whether objects are frozen, or were when it was asked before: they stay so.

    Python counts them one by one, so that is done until there are some.
    """
    global _frozen
    _frozen = _frozen or gc.get_freeze_count() > 0
    return _frozen


@after_fork
def _forget_other_threads() -> None:
    if _pausing:
        _pausing[:] = [thread for thread in _pausing if thread == threading.get_ident()]
        _enable_if_nobody_pauses()
