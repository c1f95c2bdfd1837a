"""OpenMP's threads, which oneDNN's kernels and our own machine code share: those of libgomp.

A thread of Python that uses them has a team of its own, whose workers spin for a while after each kernel. So the next
kernel begins within a microsecond or two, where a lock would have to wake a thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from netbuilder.data.forking import loading
from netbuilder.engines.brief_calls import brief_call
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["RTLD_NODELETE", "OpenMP", "openmp"]

RTLD_NODELETE = 0x1000 if sys.platform == "linux" else 0
"""OpenMP's workers still spin inside the library when the interpreter unloads it."""

_NAME = "libgomp.so.1"
_PAUSE_HARD = 2
_SPIN_VARIABLE, _SPINS = "GOMP_SPINCOUNT", 10_000  # about 0.1 ms


@dataclass(frozen=True)
class OpenMP:
    """The loaded library.

    Attributes:
        set_threads: ``omp_set_num_threads``, for the kernels that this thread of Python calls.
        max_threads: ``omp_get_max_threads``.
        parallel: ``GOMP_parallel``: its address.
        thread_number, team_size: ``omp_get_thread_num`` and ``omp_get_num_threads``: their addresses.
    """

    set_threads: Callable[[int], object]
    max_threads: Callable[[], int]
    parallel: int
    thread_number: int
    team_size: int


@functools.cache
def openmp() -> OpenMP | OSError:
    """Return the library, or why it cannot be loaded."""
    with loading, _brief_waits():
        try:
            library = ctypes.CDLL(_NAME, mode=ctypes.DEFAULT_MODE | RTLD_NODELETE)
        except OSError as error:
            return error
    _end_team_before_fork(library)
    parallel, number, size = (
        ctypes.cast(library[name], ctypes.c_void_p).value
        for name in ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
    )
    assert parallel and number and size
    setter = brief_call(library, "omp_set_num_threads")
    return OpenMP(setter, brief_call(library, "omp_get_max_threads", ctypes.c_int), parallel, number, size)


@contextlib.contextmanager
def _brief_waits() -> Iterator[None]:
    """Load libgomp such that a thread without work releases its core soon, unless the environment sets this.

    libgomp reads the variable once, when it is loaded. By default threads spin for some milliseconds, which keeps the
    core from others for longer than the next work of a net ever takes to come. Threads also spin at the end of each
    kernel until the last one has finished; if other programs use the cores, that one may be waiting for the very core
    on which another spins. If another library has loaded libgomp before, nothing changes.
    """
    chosen = any(os.environ.get(name) for name in (_SPIN_VARIABLE, "OMP_WAIT_POLICY"))
    if not chosen:
        os.environ[_SPIN_VARIABLE] = str(_SPINS)
    try:
        yield
    finally:
        if not chosen:
            del os.environ[_SPIN_VARIABLE]


def _end_team_before_fork(library: Any) -> None:
    """End the OpenMP threads of a thread that forks, before the fork; parent and child make new ones when needed.

    libgomp does not support forks: a child would wait for threads that only its parent has. The OpenMP teams of other
    threads do not matter, since these threads do not exist in the child.
    """
    if not hasattr(os, "register_at_fork"):
        return
    pause = getattr(library, "omp_pause_resource_all", None)
    if pause is not None:
        os.register_at_fork(before=functools.partial(pause, _PAUSE_HARD))
        return

    def warn() -> None:
        warnings.warn(
            "this libgomp is older than that of GCC 9, whose threads do not survive a fork: nets that use several "
            "threads may hang in this process; start it with multiprocessing.get_context('spawn')",
            RuntimeWarning,
            stacklevel=2,
        )

    os.register_at_fork(after_in_child=warn)
