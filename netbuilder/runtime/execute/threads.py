"""Calls in threads, at the same time or periodically, whose errors reach the caller."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context

from netbuilder.proto.threads import Thread

__all__ = ["PeriodicCall", "run_concurrently"]

_ENDING_SECONDS = 10.0  # for all calls together to end after an interrupt


def run_concurrently(calls: Sequence[Callable[[], object]], stop: Callable[[BaseException], object]) -> None:
    """Make each call in a thread of its own, and wait for all of them.

    Args:
        calls: the calls.
        stop: called with the error of a call that fails; it has to make the others end.

    Raises:
        BaseException: the first error of a call.
    """
    failures: list[BaseException] = []

    def work(call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:
            failures.append(error)
            stop(error)

    threads = [
        Thread(target=copy_context().run, args=(work, call), name=f"netbuilder-step-{index}", daemon=True)
        for index, call in enumerate(calls)
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException as error:  # an interrupt, or no memory for a thread: wait for the others, unless they hang
        stop(error)
        end = time.monotonic() + _ENDING_SECONDS
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, end - time.monotonic()))
        raise
    if failures:
        raise failures[0]


class PeriodicCall:
    """Makes a call periodically in a thread of its own, until it is stopped or the call fails.

    Args:
        call: the call.
        seconds: time between calls.
        at_end: make a last call when it is stopped.
    """

    def __init__(self, call: Callable[[], object], seconds: float, *, at_end: bool = False) -> None:
        self._stopped = threading.Event()
        self._failure: BaseException | None = None

        def repeat() -> None:
            try:
                while not self._stopped.wait(seconds):
                    call()
                if at_end:
                    call()
            except BaseException as error:
                self._failure = error

        self._thread = Thread(target=copy_context().run, args=(repeat,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for a call in progress."""
        self._stopped.set()
        self._thread.join()

    def check(self) -> None:
        """Raise the error of the call that failed, if any.

        Raises:
            BaseException: that error.
        """
        if self._failure is not None:
            raise self._failure
