"""Calls beside each other, and calls by the clock: threads that hand on what goes wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context

__all__ = ["Reporter", "run_concurrently"]

_ENDING_SECONDS = 10.0  # that the calls have, all together, to end after an interrupt


def run_concurrently(calls: Sequence[Callable[[], object]], stop: Callable[[BaseException], object]) -> None:
    """Make each call in a thread of its own, and wait for all.

    Args:
        calls: what is called.
        stop: called with the error of a call that fails; it is to see to it that the others end.

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
        threading.Thread(target=copy_context().run, args=(work, call), name=f"netbuilder-step-{index}", daemon=True)
        for index, call in enumerate(calls)
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException as error:  # an interrupt: the threads are to end, too, unless they hang
        stop(error)
        end = time.monotonic() + _ENDING_SECONDS
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        raise
    if failures:
        raise failures[0]


class Reporter:
    """Makes a call every so many seconds in a thread of its own, until it is stopped or the call fails.

    Args:
        call: what is called.
        seconds: between the calls.
        at_end: call a last time when it is stopped.
    """

    def __init__(self, call: Callable[[], object], seconds: float, *, at_end: bool = False) -> None:
        self._stopped = threading.Event()
        self._failure: BaseException | None = None

        def report() -> None:
            try:
                while not self._stopped.wait(seconds):
                    call()
                if at_end:
                    call()
            except BaseException as error:
                self._failure = error

        self._thread = threading.Thread(target=copy_context().run, args=(report,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the calls, and wait for the one that runs."""
        self._stopped.set()
        self._thread.join()

    def check(self) -> None:
        """Raise the error that a call ended with.

        Raises:
            BaseException: that one.
        """
        if self._failure is not None:
            raise self._failure
