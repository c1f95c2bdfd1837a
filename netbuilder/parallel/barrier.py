"""ParallelState: a barrier at which threads exchange values, for work that needs the values of all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from netbuilder.proto import NetError, UsageError

__all__ = ["AllReduce", "ParallelState"]

_WAITING_SECONDS = 300.0

_NONE: Any = object()


class ParallelState:
    """A barrier for a fixed number of workers: each pushes a value, a function reduces them once, each pulls its own.

    A round ends when each worker has pulled its result; the next one starts clean. A worker that is a round ahead
    waits until the others have pulled. The reducer gets the values in the order of the workers, whichever comes first,
    so that results do not depend on timing.

    Args:
        workers: number of workers, which are numbered from 0.
        reducer: called once per round, by the worker that comes last, with the list of values; returns one result for
            each worker.
        time_limit: seconds that a worker waits for the others before it gives up.

    Raises:
        NetError: ``workers`` is not a positive whole number, or ``time_limit`` is not positive.
        TypeError: ``reducer`` is not a function.

    >>> state = ParallelState(2, lambda values: [sum(values)] * len(values))
    >>> state.push(0, 3)
    >>> state.push(1, 4)
    >>> state.pull(0), state.pull(1), len(state)
    (7, 7, 2)
    """

    def __init__(
        self, workers: int, reducer: Callable[[list[Any]], Sequence[Any]], *, time_limit: float = _WAITING_SECONDS
    ) -> None:
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise NetError(f"ParallelState: workers must be a whole number, 1 or more, got {workers!r}")
        if not callable(reducer):
            raise TypeError(f"ParallelState: reducer must be a function of a list of values, got {reducer!r}")
        if not time_limit > 0:
            raise NetError(f"ParallelState: time_limit must be a positive number of seconds, got {time_limit!r}")
        self._reducer, self._limit = reducer, time_limit
        self._values: list[Any] = [_NONE] * workers
        self._results: list[Any] = [_NONE] * workers
        self._failure: BaseException | None = None
        self._changed = threading.Condition()

    def __len__(self) -> int:
        """The number of workers."""
        return len(self._values)

    def __repr__(self) -> str:
        pushed = sum(value is not _NONE for value in self._values)
        return f"ParallelState({len(self)} workers, {pushed} values pushed)"

    def push(self, worker: int, value: Any) -> None:
        """Give a worker's value for this round.

        Raises:
            NetError: there is no such worker, the others have not pulled the last round's results within the time
                limit, the reducer failed, or ``abort`` was called.
            UsageError: the worker has pushed in this round already.
        """
        self._check_worker(worker)
        with self._changed:
            if self._values[worker] is not _NONE or self._results[worker] is not _NONE:
                raise UsageError(f"ParallelState: worker {worker} has pushed a value already; pull its result first")
            self._wait(lambda: not self._unread, worker, "has not been pulled", lambda: self._unread)
            self._values[worker] = value
            if not self._missing:
                self._reduce()
            self._changed.notify_all()

    def pull(self, worker: int) -> Any:
        """Wait until all workers have pushed, and return the result of one of them; each is returned once.

        Any thread may pull, so that a master can collect the results of all workers.

        Raises:
            NetError: there is no such worker, a value is missing after the time limit, the reducer failed, or
                ``abort`` was called.
        """
        self._check_worker(worker)
        with self._changed:
            self._wait(lambda: self._results[worker] is not _NONE, worker, "has not been pushed", lambda: self._missing)
            result, self._results[worker] = self._results[worker], _NONE
            self._changed.notify_all()
            return result

    def exchange(self, worker: int, value: Any) -> Any:
        """Push a worker's value and pull its result."""
        self.push(worker, value)
        return self.pull(worker)

    def abort(self, error: BaseException | None = None) -> None:
        """Make all waiting workers, and later calls, raise: for a worker that cannot continue.

        Args:
            error: the reason, which becomes the cause of the errors.
        """
        with self._changed:
            if self._failure is None:
                self._failure = error if error is not None else NetError("ParallelState: abort() was called")
            self._changed.notify_all()

    def reset(self) -> None:
        """Drop the values and results of the present round, and an error: the next round starts clean.

        No worker may be waiting.
        """
        with self._changed:
            self._values, self._results = [_NONE] * len(self), [_NONE] * len(self)
            self._failure = None
            self._changed.notify_all()

    @property
    def _unread(self) -> list[int]:
        """The workers whose results of the last round are still to be pulled."""
        return [worker for worker, result in enumerate(self._results) if result is not _NONE]

    @property
    def _missing(self) -> list[int]:
        """The workers that have not pushed in this round."""
        return [worker for worker, value in enumerate(self._values) if value is _NONE]

    def _reduce(self) -> None:
        values, self._values = self._values, [_NONE] * len(self)
        try:
            results = list(self._reducer(values))
            if len(results) != len(self):
                raise NetError(
                    f"ParallelState: the reducer must return one result for each of the {len(self)} workers, got "
                    f"{len(results)}"
                )
        except BaseException as error:
            self._failure = error
            self._changed.notify_all()
            raise
        self._results = results

    def _wait(self, ready: Callable[[], bool], worker: int, lacks: str, of: Callable[[], list[int]]) -> None:
        """Wait until ``ready()``; ``of()`` returns the workers whose value ``lacks`` something until then."""
        end = time.monotonic() + self._limit
        while self._failure is None and not ready():
            if not self._changed.wait(max(0.0, end - time.monotonic())) and time.monotonic() >= end:
                raise NetError(
                    f"ParallelState: worker {worker} has waited for {self._limit:g} seconds, but the value of the "
                    f"workers {of()} {lacks}; call abort() where a worker fails, or give a larger time_limit"
                )
        if self._failure is not None:
            raise NetError(
                f"ParallelState: worker {worker} cannot continue, because another one failed: {self._failure}; call "
                "reset() before the next round"
            ) from self._failure

    def _check_worker(self, worker: Any) -> None:
        if isinstance(worker, bool) or not isinstance(worker, int) or not 0 <= worker < len(self):
            raise NetError(f"ParallelState: the workers are numbered from 0 to {len(self) - 1}, got {worker!r}")


class AllReduce:
    """The sum, or the mean, of the arrays of several workers.

    Args:
        workers: number of workers.
        mean: divide the sum by the number of workers.
        time_limit: see ``ParallelState``.

    >>> total = AllReduce(1)
    >>> total(0, 2.5)
    2.5
    """

    def __init__(self, workers: int, *, mean: bool = False, time_limit: float = _WAITING_SECONDS) -> None:
        def reduce(values: list[Any]) -> list[Any]:
            total = values[0]
            for value in values[1:]:
                total = total + value
            return [total / len(values) if mean else total] * len(values)

        self.state = ParallelState(workers, reduce, time_limit=time_limit)

    def __len__(self) -> int:
        """The number of workers."""
        return len(self.state)

    def __call__(self, worker: int, value: Any) -> Any:
        """Wait for the values of all workers; return their sum or mean, the same object for all workers."""
        return self.state.exchange(worker, value)
