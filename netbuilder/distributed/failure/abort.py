"""The end of a job when one of its processes fails: an uncaught exception, or an exit with a status other than 0.

A process that waits for another in MPI waits for ever if that one has failed and waits for it at the end of MPI.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

from netbuilder.distributed.transport.launchers import REGROUP, STORE
from netbuilder.distributed.transport.mpi_abort import abort_mpi, managed
from netbuilder.engines.unread import wait_until_read

__all__ = ["end_job", "fails", "install", "install_before_mpi"]

# MPICH's mpiexec drops what it has not printed when the job is aborted: its seconds to read it, and to print it.
_READING, _STILL, _PRINTING = 10.0, 2.0, 0.3

_installed: _Hook | None = None


def install(rank: int, size: int, abort: Callable[[int], Any]) -> None:
    """End the whole job when this process fails, from now on.

    An exception that nobody catches, in the main thread or another one, is printed with the rank, and so is
    ``sys.exit``, or ``raise SystemExit``, with another status than 0; then ``abort`` is called. Under
    netbuilder-launch only this process ends: the launcher ends the others, and after a signal it first lets them write
    their checkpoints.

    Args:
        rank: number of this process, for messages.
        size: number of processes; with one, nothing is installed.
        abort: ends all processes with an exit status, as MPI's Abort does. Installing again replaces it.
    """
    global _installed
    if size == 1:
        return
    if _installed is None:
        _installed = _Hook(rank, size, abort)
    _installed.rank, _installed.size, _installed.abort = rank, size, abort
    _installed.watch_threads()


def install_before_mpi() -> None:
    """End the whole job when this process ends with a failure, from now on, if MPICH's mpiexec or srun has started it.

    The other processes would wait for it at the start of MPI: mpiexec of Open MPI ends them, that of MPICH does not.
    """
    global _installed
    rank, size = os.environ.get("PMI_RANK", ""), os.environ.get("PMI_SIZE", "")
    several = rank.isdecimal() and size.isdecimal() and int(size) > 1
    if _installed is None and several and not os.environ.get(STORE) and managed():
        _installed = _Hook(int(rank), int(size), abort_mpi)


def fails() -> bool:
    """Whether this process is ending with another status than 0, after ``install``."""
    return _installed is not None and bool(_installed.status)


def end_job(code: int) -> None:
    """End this process and the whole job with a status, after ``install``."""
    if _installed is not None:
        _installed.end(code)


class _Hook:
    """What takes the place of the interpreter's hooks; the earlier ones are called first."""

    def __init__(self, rank: int, size: int, abort: Callable[[int], Any]) -> None:
        self.rank, self.size, self.abort = rank, size, abort
        self._process = os.getpid()
        self.status: object = None  # with which the program exits
        self._earlier = sys.excepthook
        sys.excepthook = self._uncaught
        sys.exit = _exit
        _watch_exits(self._exited)
        atexit.register(self._at_exit)  # after MPI's own, so it is called before MPI waits for the others

    def watch_threads(self) -> None:
        """Count an exception that nobody catches in another thread as a failure of the process."""
        threading.excepthook = self._uncaught_in_thread

    def _uncaught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if os.getpid() != self._process:  # of a forked process, which is no rank
            self._earlier(kind, error, trace)
            return
        self._say("uncaught exception, which ends the job")
        self._earlier(kind, error, trace)
        self.end(130 if issubclass(kind, KeyboardInterrupt) else 1)

    def _uncaught_in_thread(self, args: Any) -> None:
        if os.getpid() != self._process or args.exc_type is SystemExit:
            return
        name = args.thread.name if args.thread is not None else "unknown"
        self._say(f"uncaught exception in thread {name!r}, which ends the job")
        traceback.print_exception(args.exc_type, args.exc_value, args.exc_traceback)
        self.end(1)

    def _exited(self, status: object) -> None:
        if threading.current_thread() is threading.main_thread():
            self.status = None if status == REGROUP else status

    def _at_exit(self) -> None:
        if os.getpid() != self._process or not self.status:
            return
        code = self.status if isinstance(self.status, int) else 1
        self._say(f"sys.exit({self.status!r}), which ends the job")
        self.end(code & 255 or 1)

    def _say(self, text: str) -> None:
        print(f"rank {self.rank} of {self.size}: {text}", file=sys.stderr, flush=True)

    def end(self, code: int) -> None:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                pass  # closed, or there is none
        if not os.environ.get(STORE):  # netbuilder-launch sees the status, and ends the others
            wait_until_read(1, 2, seconds=_READING, still=_STILL)  # a parent may read nothing until all have ended
            time.sleep(_PRINTING)
            self.abort(code)
        os._exit(code)


def _exit(status: Any = None, /) -> NoReturn:
    """Raise SystemExit: the interpreter's own function raises none where no Python code could catch it."""
    raise SystemExit(status)


def _watch_exits(call: Callable[[object], None]) -> None:
    """Let a function have the status of each SystemExit that nobody catches.

    The interpreter calls no hook for it. It reads ``code``, while no function runs in the thread: so a property takes
    the place of the attribute, which the type's own dict holds, as it does not allow it to be set.
    """
    attribute = SystemExit.__dict__["code"]

    def code(error: SystemExit) -> object:
        status = attribute.__get__(error)
        if sys._getframe().f_back is None:
            call(status)
        return status

    (attributes,) = gc.get_referents(SystemExit.__dict__)
    attributes["code"] = property(code, attribute.__set__, attribute.__delete__, attribute.__doc__)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(SystemExit))
