"""Worker threads in a pool; lanes, and teams of threads within a lane, borrow them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from netbuilder.data.forking import new_lock, renew_after_fork
from netbuilder.proto.threads import Thread

__all__ = ["Team", "Worker", "pool", "thread_count"]

Call = Callable[[], object]

_POLL_SECONDS = 0.001  # between looks at whether a dismissed worker is done
_DISMISS_SECONDS = 60.0  # that dismissed workers may take to finish their jobs


def _nothing() -> None:
    pass


class Worker(Thread):
    """A thread that runs one job after another; it waits in between and ends with the process."""

    def __init__(self, number: int) -> None:
        super().__init__(name=f"netbuilder-lane-{number}", daemon=True)
        self._go = threading.Lock()
        self._go.acquire()
        self._done = threading.Lock()
        self._done.acquire()
        self._job: Call = _nothing
        self._busy = self._dismissed = False
        self._error: BaseException | None = None
        self.start()

    def begin(self, job: Call) -> None:
        self._job = job
        self._busy = True
        self._go.release()

    def wait(self) -> None:
        """Wait until the job has ended; raise its error: jobs catch those of calls, but may lack memory for that."""
        self._done.acquire()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def run(self) -> None:
        while True:
            self._go.acquire()
            if self._dismissed:
                return
            job, self._job = self._job, _nothing  # a job may hold a plan and its memory
            try:
                job()
            except BaseException as error:
                self._error = error
            finally:
                del job
                self._busy = False
                self._done.release()


class Pool:
    """The free workers; made when first needed and kept for all plans of the process."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._free: list[Worker] = []
        self.made = 0
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the workers: their threads do not exist in a forked process."""
        self._free.clear()

    def acquire(self, count: int) -> list[Worker]:
        with self._lock:
            while len(self._free) < count:
                self._free.append(Worker(self.made + 1))
                self.made += 1
            workers = self._free[-count:]
            del self._free[-count:]
            return workers

    def release(self, workers: list[Worker]) -> None:
        with self._lock:
            self._free.extend(workers)

    def dismiss(self, workers: list[Worker]) -> None:
        """Wait until workers have finished their jobs, then let their threads end.

        For a caller that was interrupted and so does not know which of them it has waited for.
        """
        end = time.monotonic() + _DISMISS_SECONDS
        for worker in workers:
            while worker._busy and time.monotonic() < end:
                time.sleep(_POLL_SECONDS)
            worker._dismissed = True
            with contextlib.suppress(RuntimeError):  # released already, if the interrupt came just then
                worker._go.release()


pool = Pool()


def thread_count() -> int:
    """Return how many workers the process has made."""
    return pool.made


class Team:
    """Jobs that run in parallel: the first in the caller's thread, the others in workers.

    Args:
        jobs: none of them may raise.
    """

    def __init__(self, jobs: Sequence[Call]) -> None:
        self._own, *others = jobs
        self._others = [_quiet(job) for job in others]

    def run(self) -> None:
        """Do all jobs."""
        workers = pool.acquire(len(self._others)) if self._others else []
        try:
            for worker, job in zip(workers, self._others):
                worker.begin(job)
            self._own()
            for worker in workers:
                worker.wait()
        except BaseException:  # an interrupt
            pool.dismiss(workers)
            raise
        pool.release(workers)


def _quiet(job: Call) -> Call:
    """Return a job that runs without NumPy's floating-point warnings, as plans do: inf and NaN are legal results."""

    def run() -> None:
        with np.errstate(all="ignore"):
            job()

    return run
