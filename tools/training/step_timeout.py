"""A time limit for each step: a run that exceeds it prints what each thread is doing, and ends."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from netbuilder.proto.threads import Thread
from netbuilder.tools.training.callbacks import Callback

if TYPE_CHECKING:
    from netbuilder.tools.training.run import Run

__all__ = ["STATUS", "StepTimeout"]

STATUS = 124
"""Exit status of a run whose step took too long, the same as that of the command ``timeout``."""

_SLICE = 0.25  # seconds of each wait; time in which the process is suspended counts at most as one wait


class StepTimeout(Callback):
    """Ends the process if a step, or a batch of an evaluation, takes too long.

    Args:
        seconds: limit of a step; None: no limit.
        first: limit of the first step, which compiles plans; None: ten times as long.
        end: called with the exit status to end the process.
        rank: of this process among several that train together, for the message.
    """

    name = "step_timeout"

    def __init__(
        self,
        seconds: float | None,
        first: float | None = None,
        *,
        end: Callable[[int], object] = os._exit,
        rank: int | None = None,
    ) -> None:
        self._seconds, self.first_limit = seconds, first if first is not None or seconds is None else 10 * seconds
        self._end = end
        self._where = "" if rank is None else f"rank {rank}: "
        self._steps = 0
        self._over = threading.Event()
        self.thread: Thread | None = None

    def __enter__(self) -> StepTimeout:
        if self._seconds is not None:
            self.thread = Thread(target=self._watch, name="netbuilder-step-limit", daemon=True)
            self.thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._over.set()
        if self.thread is not None:
            self.thread.join()

    def after_step(self, run: Run | None = None) -> None:
        self._steps += 1

    after_evaluated_batch = after_step

    def after_training(self, run: Run) -> None:
        self.__exit__()  # what follows, such as the last checkpoint, is no step

    def _watch(self) -> None:
        seen, waited = 0, 0.0
        while True:
            limit = float((self._seconds if seen else self.first_limit) or 0)
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
