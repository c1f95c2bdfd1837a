"""Waits that end early when the run that waits is cancelled or reaches its time limit."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from netbuilder.proto import NetError

__all__ = ["Baton", "CancelledError", "Cancellation", "Parts", "baton_of_this_thread", "check_run", "wait"]


class CancelledError(NetError):
    """A run was cancelled, or its time limit passed; its cause is the error it was cancelled with, if any."""


_current: ContextVar[Cancellation | None] = ContextVar("netbuilder_run", default=None)


class Baton:
    """A fair lock, held by the one thread of a run that computes; waiting threads get it in the order they asked."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._asking: deque[threading.Lock] = deque()
        self._taken = False
        self._holder = 0

    def is_mine(self) -> bool:
        """Whether this thread holds it."""
        return self._holder == threading.get_ident()

    def acquire(self) -> None:
        """Acquire it, after the threads that asked earlier."""
        handed = threading.Lock()
        with self._guard:
            if self._taken:
                handed.acquire()
                self._asking.append(handed)
            self._taken = True
        try:
            handed.acquire()
        except BaseException:  # such as KeyboardInterrupt
            with self._guard:
                if handed in self._asking:
                    self._asking.remove(handed)
                else:  # it was handed over just then
                    self._hand_on()
            raise
        self._holder = threading.get_ident()

    def release(self) -> None:
        """Give it to the first waiting thread, or free it."""
        self._holder = 0
        with self._guard:
            self._hand_on()

    def _hand_on(self) -> None:
        if self._asking:
            self._asking.popleft().release()
        else:
            self._taken = False

    def pass_on(self) -> None:
        """Let the waiting threads have it first."""
        if self._asking:
            self.release()
            self.acquire()


class Parts(Protocol):
    """A run of a net in which other operators continue while one waits; its threads take turns holding a baton."""

    baton: Baton

    def step_aside(self) -> bool:
        """Note that this thread will wait, so that another one continues; False if it is not a thread of the run."""

    def come_back(self) -> None:
        """Note that this thread has waited, and holds the baton again."""


class Cancellation:
    """Ends one run of a net, at the latest at its next operator; calls of ``wait`` end at once.

    Runs may be nested (an operator runs another net): cancelling the outer one ends the inner one.

    Args:
        net: name of the net in messages.
        time_limit: seconds from now; None: no limit.
        parts: lets other operators continue while one waits; None: they wait too.
    """

    def __init__(self, net: str, time_limit: float | None = None, parts: Parts | None = None) -> None:
        self._net = net
        self.parts = parts
        self.thread = threading.get_ident()
        self._limit = time_limit
        self._deadline = None if time_limit is None else time.perf_counter() + time_limit
        self._outer: Cancellation | None = None
        self._cancelled = False
        self._error: BaseException | None = None
        self._waiting: list[threading.Condition] = []

    @contextmanager
    def current(self) -> Iterator[None]:
        """In the block, calls of ``wait`` by this thread end with this run."""
        self._outer = _current.get()
        before = _current.set(self)
        try:
            yield
        finally:
            _current.reset(before)

    def cancel(self, error: BaseException | None = None) -> None:
        """End the run; any thread may call this.

        Args:
            error: the reason; it becomes the cause of the CancelledError.
        """
        self._error = self._error or error
        self._cancelled = True
        for condition in list(self._waiting):
            with condition:
                condition.notify_all()

    def check(self) -> None:
        """Raise if the run, or one around it, was cancelled or has reached its time limit.

        Raises:
            CancelledError: the run must end.
        """
        run: Cancellation | None = self
        while run is not None:
            if run._cancelled:
                why = f": {type(run._error).__name__}: {run._error}" if run._error is not None else ""
                raise CancelledError(f"the run of net {run._net!r} was cancelled{why}") from run._error
            if run._deadline is not None and time.perf_counter() >= run._deadline:
                raise CancelledError(f"the run of net {run._net!r} reached its time limit of {run._limit:g} seconds")
            run = run._outer

    def _around(self) -> list[Cancellation]:
        """Return this run and the runs that it is nested in."""
        runs: list[Cancellation] = [self]
        while (outer := runs[-1]._outer) is not None:
            runs.append(outer)
        return runs


def baton_of_this_thread() -> Baton | None:
    """Return the baton that this thread holds for the run that it is in, if any."""
    run = _current.get()
    parts = None if run is None else next((one.parts for one in run._around() if one.parts is not None), None)
    return parts.baton if parts is not None and parts.baton.is_mine() else None


@contextmanager
def _aside(runs: Sequence[Cancellation], condition: threading.Condition) -> Iterator[None]:
    """In the block, other operators of the runs continue; the caller holds the condition before and after it."""
    baton = baton_of_this_thread()
    if baton is None:
        yield
        return
    around = [one.parts for one in runs if one.parts is not None and one.parts.baton is baton]
    left = [parts for parts in around if parts.step_aside()]
    baton.release()
    try:
        yield
    finally:
        condition.release()  # the thread with the baton may need it
        try:
            baton.acquire()
        finally:
            condition.acquire()
        for parts in left:
            parts.come_back()


def check_run() -> None:
    """Raise if the run of this thread, if there is one, must end.

    Raises:
        CancelledError: the run was cancelled, or its time limit has passed.
    """
    run = _current.get()
    if run is not None:
        run.check()


def wait(condition: threading.Condition, timeout: float | None = None) -> bool:
    """Wait for a condition, which the caller holds, like ``condition.wait``; cancelling the run ends it too.

    Args:
        timeout: seconds to wait at most; None: no limit.

    Returns:
        False after ``timeout``. As with any condition, the caller must check what it waits for.

    Raises:
        CancelledError: the run in which this thread waits was cancelled, or its time limit has passed.
    """
    run = _current.get()
    if run is None:
        return condition.wait(timeout)
    runs = run._around()
    for one in runs:
        one._waiting.append(condition)  # before the check: a later cancel() finds and notifies it
    try:
        run.check()
        deadlines = [one._deadline for one in runs if one._deadline is not None]
        left = min(deadlines) - time.perf_counter() if deadlines else None
        with _aside(runs, condition):
            if left is None or timeout is not None and timeout < left:
                notified = condition.wait(timeout)
            else:
                condition.wait(max(0.0, left))
                notified = True
        run.check()
        return notified
    except BaseException:
        condition.notify()  # the notification may have been meant for another thread
        raise
    finally:
        for one in runs:
            one._waiting.remove(condition)
