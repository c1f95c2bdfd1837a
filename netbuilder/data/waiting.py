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

__all__ = [
    "FairLock", "CancelledError", "Cancellation", "Parts", "lock_of_this_thread", "check_run", "threads_of_this_run",
    "wait",
]  # fmt: skip


class CancelledError(NetError):
    """A run was cancelled, or its time limit passed; its cause is the error it was cancelled with, if any."""


_current: ContextVar[Cancellation | None] = ContextVar("netbuilder_run", default=None)


class FairLock:
    """The lock of a run of which one thread computes at a time; threads get it in the order of their requests."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self.waiters: deque[threading.Lock] = deque()
        self._locked = False
        self._holder = 0

    def held_here(self) -> bool:
        """Whether this thread holds the lock."""
        return self._holder == threading.get_ident()

    def acquire(self) -> None:
        """Acquire the lock, after the threads that requested it earlier."""
        turn = threading.Lock()
        with self._guard:
            if self._locked:
                turn.acquire()
                self.waiters.append(turn)
            self._locked = True
        try:
            turn.acquire()
        except BaseException:  # such as KeyboardInterrupt
            with self._guard:
                if turn in self.waiters:
                    self.waiters.remove(turn)
                else:  # the lock has just been handed over to this thread
                    self._hand_over()
            raise
        self._holder = threading.get_ident()

    def release(self) -> None:
        """Hand the lock over to the first waiting thread, or free it."""
        self._holder = 0
        with self._guard:
            self._hand_over()

    def _hand_over(self) -> None:
        if self.waiters:
            self.waiters.popleft().release()
        else:
            self._locked = False

    def yield_to_waiters(self) -> None:
        """Let the waiting threads hold the lock first."""
        if self.waiters:
            self.release()
            self.acquire()


class Parts(Protocol):
    """A run of a net in which other operators continue while one waits; its threads hold ``lock`` in turn."""

    lock: FairLock

    def suspend(self) -> bool:
        """Record that this thread will wait, so that another one continues; False if it is not a thread of the run."""

    def resume(self) -> None:
        """Record that this thread no longer waits and holds the lock again."""


class Cancellation:
    """Ends one run of a net: calls of ``wait`` at once, other operators when they are done.

    Runs may be nested (an operator runs another net): cancelling the outer one ends the inner one.

    Args:
        net: name of the net in messages.
        time_limit: seconds from now; None: no limit.
        parts: the run, if its other operators continue while one waits; None: they wait too.
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

    def _with_outer(self) -> list[Cancellation]:
        """Return this run and the runs that it is nested in."""
        runs: list[Cancellation] = [self]
        while (outer := runs[-1]._outer) is not None:
            runs.append(outer)
        return runs


def lock_of_this_thread() -> FairLock | None:
    """Return the lock of the run of this thread, if the thread holds one."""
    run = _current.get()
    parts = None if run is None else next((one.parts for one in run._with_outer() if one.parts is not None), None)
    return parts.lock if parts is not None and parts.lock.held_here() else None


def threads_of_this_run() -> set[int]:
    """Return the threads that began the run of this thread, if there is one, and the runs that it is nested in."""
    run = _current.get()
    return set() if run is None else {each.thread for each in run._with_outer()}


@contextmanager
def _suspended(runs: Sequence[Cancellation], condition: threading.Condition) -> Iterator[None]:
    """Let other operators of the runs continue during the block; the caller holds the condition before and after it."""
    lock = lock_of_this_thread()
    if lock is None:
        yield
        return
    enclosing = [one.parts for one in runs if one.parts is not None and one.parts.lock is lock]
    left = [parts for parts in enclosing if parts.suspend()]
    lock.release()
    try:
        yield
    finally:
        condition.release()  # the thread with the lock may need it
        try:
            lock.acquire()
        finally:
            condition.acquire()
        for parts in left:
            parts.resume()


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
        False if ``timeout`` has passed. As with any condition, the caller must check what it waits for.

    Raises:
        CancelledError: the run in which this thread waits was cancelled, or its time limit has passed.
    """
    run = _current.get()
    if run is None:
        return condition.wait(timeout)
    runs = run._with_outer()
    for one in runs:
        one._waiting.append(condition)  # before the check: a later cancel() finds and notifies it
    try:
        run.check()
        deadlines = [one._deadline for one in runs if one._deadline is not None]
        left = min(deadlines) - time.perf_counter() if deadlines else None
        with _suspended(runs, condition):
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
