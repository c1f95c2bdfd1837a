"""Ends a process that hangs: in a block with a time limit, or at exit."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from netbuilder.caffe2.missing import names_of
from netbuilder.proto import ArgumentError
from netbuilder.proto.threads import Thread

__all__ = ["CompleteInTimeOrDie", "EuthanizeIfNecessary", "WatcherThread"]

_log = logging.getLogger("timeout_guard")

_GRACE = 5.0  # seconds between the interrupt and the abort

__getattr__ = names_of(__name__)


class WatcherThread(Thread):
    """Ends the process if ``completed`` is not set in time.

    It writes the stack of every thread to standard error and interrupts the main thread (KeyboardInterrupt); five
    seconds later it aborts the process if that has not ended.

    Args:
        timeout_secs: seconds, positive.

    Raises:
        ArgumentError: the time is not positive.
    """

    def __init__(self, timeout_secs: float) -> None:
        super().__init__(name="timeout_guard", daemon=True)
        if not timeout_secs > 0:
            raise ArgumentError(f"timeout_secs must be a positive number of seconds, got {timeout_secs!r}")
        self.timeout_secs = timeout_secs
        self.completed = False
        self._done = threading.Event()

    def finish(self) -> None:
        """Stop watching: the work is done."""
        self.completed = True
        self._done.set()

    def run(self) -> None:
        """Wait, and end the process after the timeout."""
        if self._done.wait(self.timeout_secs) or self.completed:
            return
        _log.error(
            "not done in %s seconds: interrupting process %d; stacks of its threads:",
            self.timeout_secs,
            os.getpid(),
        )
        _show_threads()
        os.kill(os.getpid(), signal.SIGINT)
        if not self._done.wait(_GRACE):
            _log.error("the process did not end after the interrupt: aborting")
            os.abort()


def _show_threads() -> None:
    try:
        faulthandler.dump_traceback(sys.stderr)
    except (AttributeError, OSError, ValueError):  # standard error is closed or captured
        faulthandler.dump_traceback(sys.__stderr__ or 2)


@contextmanager
def CompleteInTimeOrDie(timeout_secs: float) -> Iterator[None]:
    """End the process, as ``WatcherThread`` does, if the block takes longer.

    Args:
        timeout_secs: seconds, positive.
    """
    watcher = WatcherThread(timeout_secs)
    watcher.start()
    try:
        yield
    finally:
        watcher.finish()


def EuthanizeIfNecessary(timeout_secs: float = 120) -> None:
    """End the process after a timeout, as ``WatcherThread`` does: call it at the end of programs whose exit may hang.

    Args:
        timeout_secs: seconds from now on, positive.
    """
    WatcherThread(timeout_secs).start()
