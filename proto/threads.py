"""Threads whose start fails where memory is short; with those of the standard library it may wait for ever."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable

__all__ = ["Thread"]

_LOOK = 0.05  # seconds between looks at whether a thread that has not begun has ended


class Thread(threading.Thread):
    """A thread of the standard library, except that ``start`` notices a thread that ends before it has begun.

    This happens where a limit on memory leaves room for the thread, but not for its first function. ``start`` raises
    RuntimeError("can't start new thread") then, as it does where the system refuses the thread.
    """

    @property
    def _bootstrap(self) -> Callable[[], object]:
        """What the thread calls; only the thread keeps it."""
        function: Callable[[], object] = functools.partial(super()._bootstrap)  # type: ignore[misc]
        self._started = _Beginning(function)
        return function


class _Beginning(threading.Event):
    """Set when a thread has begun.

    Args:
        function: what the thread calls, freed when it ends.
    """

    def __init__(self, function: Callable[[], object]) -> None:
        super().__init__()
        self._runs = threading.Lock()
        self._runs.acquire()
        # A function in C, since the thread that calls it may have no memory for one of Python.
        self._end = weakref.ref(function, functools.partial(self._runs.__exit__, None, None))

    def wait(self, timeout: float | None = None) -> bool:
        while not super().wait(_LOOK):
            if not self._runs.locked() and not self.is_set():
                raise RuntimeError("can't start new thread")
        return True
