"""A time limit for each step: a run that exceeds it prints what each thread is doing, and ends."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType

__all__ = ["STATUS", "StepTimeout"]

STATUS = 124
"""Exit status of a run whose step took too long, the same as that of the command ``timeout``."""

_SLICE = 0.25  # seconds of each wait; time in which the process is suspended counts at most as one wait


class StepTimeout:
    """Context manager that ends the process if a step takes too long; call ``step_done`` after each step.

    Args:
        seconds: limit of a step; None: no limit.
        first: limit of the first step, which compiles plans; None: ten times as long.
        end: called with the exit status to end the process.
        rank: of this process among several that train together, for the message.
    """

    def __init__(
        self,
        seconds: float | None,
        first: float | None = None,
        *,
        end: Callable[[int], object] = os._exit,
        rank: int | None = None,
    ) -> None:
        self._seconds, self._first = seconds, first if first is not None or seconds is None else 10 * seconds
        self._end = end
        self._where = "" if rank is None else f"rank {rank}: "
        self._steps = 0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> StepTimeout:
        if self._seconds is not None:
            self._thread = threading.Thread(target=self._watch, name="netbuilder-step-limit", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def step_done(self) -> None:
        """Note that a step has finished."""
        self._steps += 1

    def _watch(self) -> None:
        seen, waited = 0, 0.0
        while True:
            limit = float((self._seconds if seen else self._first) or 0)
            piece = min(_SLICE, max(limit - waited, 1e-3))
            if self._over.wait(piece):
                return
            if self._steps > seen:
                seen, waited = self._steps, 0.0
                continue
            waited += piece
            if waited >= limit:
                return self._abort(seen + 1, limit)

    def _abort(self, step: int, limit: float) -> None:
        option = "--first-step-limit" if step == 1 else "--step-limit"
        print(
            f"netbuilder-train: {self._where}step {step} of this run has not finished after {limit:g} s ({option}), so "
            "the run ends; with --checkpoint, --resume auto resumes from the last checkpoint. What the threads are "
            "doing:",
            file=sys.stderr, flush=True,
        )  # fmt: skip
        try:
            faulthandler.dump_traceback(sys.stderr, all_threads=True)
        except (AttributeError, OSError, ValueError):  # standard error is not a file
            faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=True)
        self._end(STATUS)
