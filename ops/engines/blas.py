"""The threads of NumPy's matrix products, held while a plan runs.

A BLAS has threads of its own, which stay awake for a while after each product. Beside those of oneDNN they would share
the cores with them: large products were seen to take twice as long.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

from netbuilder.data.forking import after_fork, held_over_fork

__all__ = ["hold", "release"]


@functools.cache
def _libraries() -> list[Any]:
    """Return the BLAS libraries of the process; none without threadpoolctl, and then nothing is held."""
    try:
        from threadpoolctl import ThreadpoolController
    except ModuleNotFoundError:
        return []
    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


class _Held:
    """What all plans that run at this moment hold: the smallest number that one of them asks for."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # held over a fork: a BLAS has locks of its own
        held_over_fork(self.lock)
        self.holders = 0
        self.before: list[tuple[Any, int]] = []

    def take(self, threads: int) -> None:
        with self.lock:
            self.holders += 1
            for library in _libraries():
                found = library.get_num_threads()
                if found is not None and found > threads:
                    self.before.append((library, found))
                    library.set_num_threads(threads)

    def give_back(self) -> None:
        with self.lock:
            self.holders -= 1
            if self.holders == 0:
                self._restore()

    def forget(self) -> None:
        """In a forked process: those that held it are the parent's threads."""
        self.holders = 0
        self._restore()

    def _restore(self) -> None:
        for library, threads in reversed(self.before):
            library.set_num_threads(threads)
        self.before.clear()


_held = _Held()
after_fork(_held.forget)


def hold(threads: int) -> None:
    """Let BLAS use at most so many threads, in the whole process, until ``release`` is called as often as this."""
    _held.take(threads)


def release() -> None:
    """End a ``hold``: behind the last one, BLAS uses as many threads as before the first."""
    _held.give_back()
