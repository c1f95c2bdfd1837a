"""Repairs after a fork: the child has the memory of its parent, but only the thread that forked.

Locks that another thread held stay held in the child for ever, and work left to another thread is never done. Objects
with locks or threads are made usable again here, before the child runs anything else.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["Renewable", "after_fork", "held_over_fork", "loading", "new_lock", "open_lock", "renew_after_fork"]


class Renewable(Protocol):
    """An object that can be made usable in a forked process."""

    def renew(self) -> object:
        """Replace locks and forget threads; no other thread runs meanwhile."""


loading = threading.RLock()
"""Held while modules are imported late, libraries loaded and plans compiled; a fork waits for it.

Each of these takes locks that must be free at a fork: those of modules, of parsers, of a library's cache.
"""

_held: list[Any] = [loading]
_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_renewed: weakref.WeakSet[Any] = weakref.WeakSet()
_functions: list[Callable[[], object]] = []


def new_lock() -> Any:
    """Return a lock that is free in a forked process, even if a thread held it at the fork."""
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def open_lock(lock: Any) -> None:
    """Free a lock in a forked process.

    Releasing it is not enough: a lock that a thread was acquiring at the fork is held, but reports that it is not.
    """
    lock._at_fork_reinit()  # as the standard library does with its own locks


def renew_after_fork(thing: Renewable) -> None:
    """Call ``thing.renew()`` in every forked process, as long as the object exists."""
    _renewed.add(thing)


def after_fork(function: Callable[[], object]) -> Callable[[], object]:
    """Call a function in every forked process, after all locks are free and all objects renewed."""
    _functions.append(function)
    return function


def held_over_fork(lock: Any) -> None:
    """Acquire an RLock before each fork, so that what it protects is consistent in the child.

    A thread that needs several of these locks acquires ``loading`` first, and the others in the order of these calls.
    """
    _held.append(lock)


def _before() -> None:
    for lock in _held:
        lock.acquire()


def _release() -> None:
    for lock in reversed(_held):
        lock.release()


def _in_child() -> None:
    _release()
    for lock in list(_locks):
        open_lock(lock)
    for thing in list(_renewed):
        thing.renew()
    for function in _functions:
        function()


if hasattr(os, "register_at_fork"):  # systems that cannot fork lack it
    os.register_at_fork(before=_before, after_in_parent=_release, after_in_child=_in_child)
