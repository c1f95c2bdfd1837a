"""Limits the threads of NumPy's BLAS while a plan runs.

A BLAS has threads of its own, which keep spinning for a while after each product. They would compete for the cores with
those of oneDNN: large products were seen to take twice as long.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from netbuilder.data.forking import after_fork, held_over_fork
from netbuilder.engines.brief_calls import brief_call

__all__ = ["libraries", "limit", "limit_threads", "release_threads"]


class _Library(NamedTuple):
    """A BLAS library: the functions that return and set its number of threads."""

    thread_count: Callable[[], int | None]
    set_thread_count: Callable[[int], object]


@functools.cache
def libraries() -> list[_Library]:
    """Return the BLAS libraries of the process.

    There are none without threadpoolctl, so that nothing is limited.
    """
    try:
        from threadpoolctl import ThreadpoolController
    except ModuleNotFoundError:
        return []
    found = ThreadpoolController().select(user_api="blas").lib_controllers
    return [_functions_of(library) for library in found]


def _functions_of(library: Any) -> _Library:
    """Return those of OpenBLAS itself where there are any: threadpoolctl takes ten times as long in each run."""
    if library.internal_api == "openblas" and library.threading_layer == "pthreads":
        for symbol in library.check_symbols:
            setter = symbol.replace("get_num_threads", "set_num_threads")
            if setter != symbol and hasattr(library.dynlib, symbol) and hasattr(library.dynlib, setter):
                return _Library(brief_call(library.dynlib, symbol, ctypes.c_int), brief_call(library.dynlib, setter))
    return _Library(library.get_num_threads, library.set_num_threads)


class _ThreadLimit:
    """The limit of all plans that run at this moment: the smallest number that one of them requests."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # held over a fork: a BLAS has locks of its own
        held_over_fork(self.lock)
        self.users = 0
        self.before: list[tuple[_Library, int]] = []

    def acquire(self, threads: int) -> None:
        with self.lock:
            self.users += 1
            for library in libraries():
                found = library.thread_count()
                if found is not None and found > threads:
                    self.before.append((library, found))
                    library.set_thread_count(threads)

    def release(self) -> None:
        with self.lock:
            self.users -= 1
            if self.users == 0:
                self._restore()

    def forget(self) -> None:
        """Remove the limit in a forked process: its users are threads of the parent."""
        self.users = 0
        self._restore()

    def _restore(self) -> None:
        for library, threads in reversed(self.before):
            library.set_thread_count(threads)
        self.before.clear()


limit = _ThreadLimit()
after_fork(limit.forget)


def limit_threads(threads: int) -> None:
    """Let BLAS use at most so many threads, in the whole process, until ``release_threads`` is called as often."""
    limit.acquire(threads)


def release_threads() -> None:
    """End a ``limit_threads``; after the last one, BLAS uses as many threads as before the first."""
    limit.release()
