"""Waits that can be ended from outside: by whoever cancels the run that waits, or by its time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from netbuilder.proto import NetError

__all__ = ["CancelledError", "Cancellation", "check_run", "wait"]


class CancelledError(NetError):
    """A run was cancelled, or its time limit passed; its cause is the error it was cancelled with, if any."""


_current: ContextVar[Cancellation | None] = ContextVar("netbuilder_run", default=None)


class Cancellation:
    """Ends one run of a net, at the latest at its next operator; what waits in ``wait`` ends at once.

    Runs may be nested (an operator runs another net): cancelling the outer one ends the inner one.

    Args:
        net: the name of the net, for messages.
        time_limit: seconds from now on; None: no limit.
    """

    def __init__(self, net: str, time_limit: float | None = None) -> None:
        self._net = net
        self.thread = threading.get_ident()
        self._limit = time_limit
        self._deadline = None if time_limit is None else time.perf_counter() + time_limit
        self._outer: Cancellation | None = None
        self._cancelled = False
        self._error: BaseException | None = None
        self._waiting: list[threading.Condition] = []

    @contextmanager
    def current(self) -> Iterator[None]:
        """In the block, what this thread waits for ends with this run."""
        self._outer = _current.get()
        before = _current.set(self)
        try:
            yield
        finally:
            _current.reset(before)

    def cancel(self, error: BaseException | None = None) -> None:
        """End the run; any thread may call this.

        Args:
            error: why; it becomes the cause of the CancelledError.
        """
        self._error = self._error or error
        self._cancelled = True
        for condition in list(self._waiting):
            with condition:
                condition.notify_all()

    def check(self) -> None:
        """Raise if the run, or one around it, was cancelled or is past its time limit.

        Raises:
            CancelledError: it is to end.
        """
        run: Cancellation | None = self
        while run is not None:
            if run._cancelled:
                why = f": {type(run._error).__name__}: {run._error}" if run._error is not None else ""
                raise CancelledError(f"the run of net {run._net!r} was cancelled{why}") from run._error
            if run._deadline is not None and time.perf_counter() >= run._deadline:
                raise CancelledError(f"the run of net {run._net!r} is at its time limit of {run._limit:g} seconds")
            run = run._outer

    def _around(self) -> list[Cancellation]:
        """Return this run and those around it."""
        runs: list[Cancellation] = [self]
        while (outer := runs[-1]._outer) is not None:
            runs.append(outer)
        return runs


def check_run() -> None:
    """Raise if the run that this thread is in, if any, is to end.

    Raises:
        CancelledError: it was cancelled, or its time limit is over.
    """
    run = _current.get()
    if run is not None:
        run.check()


def wait(condition: threading.Condition, timeout: float | None = None) -> bool:
    """Wait for a condition, which the caller holds, like ``condition.wait``; the end of the run ends it, too.

    Args:
        timeout: seconds to wait at most; None: no limit.

    Returns:
        False if ``timeout`` is over. As with any condition, the caller has to look whether what it waits for is there.

    Raises:
        CancelledError: the run in which this thread waits was cancelled, or its time limit is over.
    """
    run = _current.get()
    if run is None:
        return condition.wait(timeout)
    runs = run._around()
    for one in runs:
        one._waiting.append(condition)  # before the check: whoever cancels later finds it, and then notifies
    try:
        run.check()
        deadlines = [one._deadline for one in runs if one._deadline is not None]
        left = min(deadlines) - time.perf_counter() if deadlines else None
        if left is None or timeout is not None and timeout < left:
            notified = condition.wait(timeout)
            run.check()
            return notified
        condition.wait(max(0.0, left))
        run.check()
        return True
    except BaseException:
        condition.notify()  # if it was for this thread, another one may use it
        raise
    finally:
        for one in runs:
            one._waiting.remove(condition)
