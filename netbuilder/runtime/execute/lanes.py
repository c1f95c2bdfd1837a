"""Lanes: threads that run the steps of a plan concurrently, each in order, and wait for one another where needed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from operator import length_hint
from typing import Any

import numpy as np

from netbuilder.data.forking import open_lock, renew_after_fork
from netbuilder.runtime.values.workers import pool

__all__ = ["LaneProgram"]

Call = Callable[[], object]


class _Stopped(Exception):
    """Another lane failed."""


class _Common:
    """State that the calls of all lanes share.

    It is not in the LaneProgram, because a reference cycle would then keep the program alive after its last user.
    """

    __slots__ = ("stop",)

    def __init__(self) -> None:
        self.stop = False


class LaneProgram:
    """Calls assigned to lanes, with the waits between them.

    Args:
        calls: what to run, in the order that a single thread would use.
        lanes: the lane of each call.
        after: for each call, the indices of earlier calls that it has to wait for; calls in its own lane may be among
            them.
        before: for each lane, what its thread calls first in every run, if anything.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        lanes: Sequence[int],
        after: Sequence[Collection[int]],
        before: Sequence[Call | None],
    ) -> None:
        self._before = before
        count = len(before)
        self._locks: list[Any] = []
        self._common = _Common()
        self._failure: tuple[int, BaseException, str] | None = None
        self._items: list[list[tuple[Call, int]]] = [[] for _ in range(count)]
        signals: list[list[Call]] = [[] for _ in calls]
        waits: list[list[Call]] = [[] for _ in calls]
        # seen[a][b]: the last call of lane b that lane a has waited for; waits for earlier ones are superfluous.
        seen = [[-1] * count for _ in range(count)]
        at_call: list[list[int]] = []
        for index, lane in enumerate(lanes):
            for source in sorted(after[index], reverse=True):
                other = lanes[source]
                if other != lane and seen[lane][other] < source:
                    wait, signal = self._edge(source, index)
                    waits[index].append(wait)
                    signals[source].append(signal)
                    seen[lane] = [max(a, b) for a, b in zip(seen[lane], at_call[source])]
                    seen[lane][other] = max(seen[lane][other], source)
            seen[lane][lane] = index
            at_call.append(list(seen[lane]))
        for index, lane in enumerate(lanes):
            for call in (*waits[index], calls[index], *signals[index]):
                self._items[lane].append((call, index))
        self._programs = [[call for call, _ in items] for items in self._items]
        renew_after_fork(self)

    def renew(self) -> None:
        """Reset the locks: in a forked process no other thread is in the middle of a run."""
        for lock in self._locks:
            open_lock(lock)
        self._reset()

    def _reset(self) -> None:
        self._failure, self._common.stop = None, False
        for lock in self._locks:
            lock.acquire(blocking=False)

    def _edge(self, source: int, index: int) -> tuple[Call, Call]:
        """Return the wait that goes before the call ``index``, and the signal that goes after the call ``source``."""
        lock = threading.Lock()
        lock.acquire()
        self._locks.append(lock)
        common = self._common

        def wait() -> None:
            lock.acquire()
            if common.stop:
                raise _Stopped

        def signal() -> None:
            try:
                lock.release()
            except RuntimeError:  # after a failure `_end` has released it already
                if not common.stop:
                    raise

        return wait, signal

    def _run_lane(self, lane: int) -> None:
        before, calls = self._before[lane], iter(self._programs[lane])
        try:
            if before is not None:
                before()
            with np.errstate(all="ignore"):
                for call in calls:
                    call()
        except _Stopped:
            pass
        except BaseException as error:
            self._end()  # first: what follows may lack memory
            position = max(len(self._programs[lane]) - length_hint(calls) - 1, 0)
            if self._failure is None:
                self._failure = (self._items[lane][position][1], error, threading.current_thread().name)

    def _end(self) -> None:
        """Make all lanes end at their next wait."""
        self._common.stop = True
        for lock in self._locks:
            if lock.locked():
                try:
                    lock.release()
                except RuntimeError:
                    continue

    def run(self) -> tuple[int, BaseException, str] | None:
        """Run all calls; return the first failure (index of the call, error, name of the thread), or None."""
        workers = pool.acquire(len(self._programs) - 1)
        try:
            for lane, worker in enumerate(workers, start=1):
                worker.begin(lambda lane=lane: self._run_lane(lane))  # type: ignore[misc]
            self._run_lane(0)
            for worker in workers:
                worker.wait()
        except BaseException:  # an interrupt, between the calls of this thread's lane
            self._end()
            pool.dismiss(workers)
            self._reset()
            raise
        pool.release(workers)
        failure, self._failure = self._failure, None
        if failure is not None:
            self._reset()
        return failure
