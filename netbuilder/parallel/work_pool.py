"""Parallel: a pool of threads, made once, that does units of work and returns their results in order."""

from __future__ import annotations

import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from contextvars import Context, copy_context
from queue import SimpleQueue
from typing import Any

from netbuilder.data.forking import new_lock, renew_after_fork
from netbuilder.proto import NetError, UsageError
from netbuilder.proto.threads import Thread

__all__ = ["Parallel", "Parallelizable"]

_CLOSING_SECONDS = 10.0

_Task = tuple[Context, Any, "Future[Any]"]


class Parallelizable:
    """A unit of work for ``Parallel``; subclasses define ``forward_backward``."""

    def forward_backward(self, x: Any) -> Any:
        """Do the work for one input, and return its result.

        Raises:
            NotImplementedError: the class does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__} must define forward_backward(self, x)")


class Parallel:
    """Threads that call ``forward_backward`` for each input; results come in the order of the inputs.

    The threads are made once. Each call has the name scopes, device scopes and other context variables of the thread
    that put its input. Results must be read: ``get`` once for each ``put``.

    If a call fails, ``get`` raises its error when it is that input's turn, and drops all other inputs: those that no
    thread has begun are not begun, and those in progress are waited for. The pool can be used again afterwards.

    Args:
        num_workers: number of threads; 0: ``put`` does the work in the caller's thread, for debugging.
        parallelizable: the unit of work, an object with a method ``forward_backward``.
        serial_init: do the work for the first ``num_workers`` inputs in the caller's thread, for work that
            initializes something at its first use.

    Raises:
        NetError: ``num_workers`` is not a whole number of 0 or more.
        TypeError: ``parallelizable`` has no method ``forward_backward``.

    >>> class Square(Parallelizable):
    ...     def forward_backward(self, x):
    ...         return x * x
    >>> with Parallel(2, Square()) as pool:
    ...     pool.put(3)
    ...     pool.put(4)
    ...     print(pool.get(), pool.get(), pool.map([1, 2, 3]))
    9 16 [1, 4, 9]
    """

    def __init__(self, num_workers: int, parallelizable: Any, serial_init: bool = True) -> None:
        if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 0:
            raise NetError(f"Parallel: num_workers must be a whole number, 0 or more, got {num_workers!r}")
        if isinstance(parallelizable, type) or not callable(getattr(parallelizable, "forward_backward", None)):
            raise TypeError(
                f"Parallel: parallelizable must be an object with a method forward_backward, got {parallelizable!r}; "
                "derive its class from Parallelizable"
            )
        self._parallelizable = parallelizable
        self._serial = num_workers if serial_init else 0  # inputs still to be done in the caller's thread
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._results: deque[Future[Any]] = deque()
        self._failed = threading.Event()  # a call has failed, and its error is not raised yet
        self._lock = new_lock()
        self._unusable = ""
        self._threads = [
            Thread(
                target=_work,
                args=(self._tasks, parallelizable, self._failed),
                name=f"netbuilder-parallel-{number}",
                daemon=True,
            )
            for number in range(num_workers)
        ]
        for thread in self._threads:
            thread.start()
        self._stop = weakref.finalize(self, _stop, self._tasks, num_workers)
        renew_after_fork(self)

    def renew(self) -> None:
        """Refuse inputs and results: in a forked process the threads do not exist."""
        if self._threads and not self._unusable:
            self._stop.detach()
            self._unusable = "its threads are in the parent process, not in this forked one; make another one here"

    def __enter__(self) -> Parallel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        """The number of results that have not been read."""
        return len(self._results)

    def __repr__(self) -> str:
        return f"Parallel({len(self._threads)} workers, {type(self._parallelizable).__name__}, {len(self)} results due)"

    def put(self, x: Any) -> None:
        """Hand an input to the next free thread.

        Raises:
            UsageError: the pool is closed.
        """
        with self._lock:
            self._check()
            in_thread = bool(self._threads) and not self._serial
            self._serial = max(0, self._serial - 1)
            result: Future[Any] = Future()
            self._results.append(result)
            task = copy_context(), x, result
            if in_thread:
                self._tasks.put(task)
        if not in_thread:
            _do(task, self._parallelizable, self._failed)

    def get(self) -> Any:
        """Wait for the result of the earliest input whose result has not been read, and return it.

        Raises:
            UsageError: there is no such input, or the pool is closed.
            BaseException: the error of that call, with the thread in a note.
        """
        with self._lock:
            self._check()
            if not self._results:
                raise UsageError("Parallel: get() without a put(); all results have been read")
            result = self._results.popleft()
        try:
            return result.result()
        except BaseException:
            self._drop()
            raise

    def map(self, inputs: Iterable[Any]) -> list[Any]:
        """Return the results for several inputs, in their order.

        Raises:
            UsageError: results of earlier inputs have not been read, or the pool is closed.
            BaseException: the first error of a call.
        """
        if self._results:
            raise UsageError(
                f"Parallel: {len(self)} results of earlier inputs are due; read them by get() before map()"
            )
        for x in inputs:
            self.put(x)
        return [self.get() for _ in range(len(self))]

    def close(self, timeout: float = _CLOSING_SECONDS) -> None:
        """Stop the threads; inputs that none has begun are dropped. Calling it again has no effect.

        Args:
            timeout: seconds to wait for calls in progress; after that, a RuntimeWarning is given.
        """
        with self._lock:
            closed, self._unusable = bool(self._unusable), self._unusable or "it is closed; make another one"
        if closed:
            return
        for result in self._results:
            result.cancel()
        self._results.clear()
        self._stop()
        end = time.monotonic() + timeout
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, end - time.monotonic()))
        if late := [thread.name for thread in self._threads if thread.is_alive()]:
            warnings.warn(
                f"Parallel: {', '.join(late)} still running after {timeout:g} seconds; each ends when its call returns",
                RuntimeWarning,
                stacklevel=2,
            )

    def _check(self) -> None:
        if self._unusable:
            raise UsageError(f"{self!r} cannot be used: {self._unusable}")

    def _drop(self) -> None:
        """Drop all inputs after an error, and wait for those in progress."""
        with self._lock:
            dropped = list(self._results)
            self._results.clear()
        for result in dropped:
            if not result.cancel():
                result.exception()
        self._failed.clear()


def _stop(tasks: SimpleQueue[_Task | None], num_workers: int) -> None:
    for _ in range(num_workers):
        tasks.put(None)


def _work(tasks: SimpleQueue[_Task | None], parallelizable: Any, failed: threading.Event) -> None:
    while (task := tasks.get()) is not None:
        _do(task, parallelizable, failed)
        del task  # an idle thread keeps no input


def _do(task: _Task, parallelizable: Any, failed: threading.Event) -> None:
    context, x, result = task
    if failed.is_set():
        result.cancel()  # inputs are begun in order, so the error is raised before this result is due
    if not result.set_running_or_notify_cancel():
        return
    try:
        result.set_result(context.run(parallelizable.forward_backward, x))
    except BaseException as error:
        if hasattr(error, "add_note"):
            error.add_note(f"(in the thread {threading.current_thread().name!r} of a Parallel)")
        failed.set()
        result.set_exception(error)
