"""The lane of collectives: one thread per process that makes all calls of the engine, in the order of submission."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np

from netbuilder.data.forking import new_lock, renew_after_fork
from netbuilder.data.waiting import wait
from netbuilder.proto import DistributedError
from netbuilder.proto.threads import Thread

__all__ = ["FORKED", "Lane", "Submitted"]

T = TypeVar("T")

FORKED = "a forked process cannot exchange values with other ranks; start processes by netbuilder-launch or mpiexec"
_IDLE = 0.25  # seconds between two calls of what a lane does when it has nothing to do
_SLICE = 0.1  # seconds of a wait, between which interrupts and the end of a net's run are noticed


class Submitted(Generic[T]):
    """A function that a lane runs, or will run."""

    def __init__(self, lane: Lane, function: Callable[[], T]) -> None:
        self._lane = lane
        self._function: Callable[[], T] | None = function
        self._done = threading.Condition(new_lock())
        self._result: Any = None
        self._error: BaseException | None = None
        self._ended = False

    def run(self) -> None:
        """Run the function; called by the lane."""
        assert self._function is not None
        try:
            result, error = self._function(), None
        except BaseException as raised:
            result, error = None, raised
        self.end(result, error)

    def end(self, result: Any, error: BaseException | None) -> None:
        """Set the result, or the error of ``result()``."""
        with self._done:
            if not self._ended:
                self._result, self._error, self._ended, self._function = result, error, True, None
            self._done.notify_all()

    @property
    def ended(self) -> bool:
        """Whether the function has returned or raised."""
        return self._ended

    def result(self) -> T:
        """Wait for the function; return its result, or raise its error.

        An exception in the waiting thread, such as KeyboardInterrupt, or the end of the net's run by ``cancel`` or its
        time limit, also ends what the lane is doing: it can exchange nothing more.
        """
        if not self._ended:
            try:
                with self._done:
                    while not self._ended:
                        wait(self._done, _SLICE)
            except BaseException as error:
                self._lane.interrupt(error)
                raise
        if self._error is not None:
            raise self._error
        result: T = self._result
        return result


class Lane:
    """A thread that runs functions one after another; it is started by the first one.

    Args:
        name: of the thread.

    Attributes:
        interrupted: the error that has ended it.
        when_idle: called every now and then, in the thread, while there is nothing to do; must not raise.
    """

    def __init__(self, name: str = "netbuilder-collectives") -> None:
        self._name = name
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget thread and work, which belong to the process that a forked one comes from."""
        for item in getattr(self, "_waiting", ()):
            item.end(None, DistributedError(FORKED))
        self._waiting: deque[Submitted[Any]] = deque()
        self._more = threading.Condition(new_lock())
        self._thread: Thread | None = None
        self._item: Submitted[Any] | None = None
        self.interrupted: BaseException | None = None
        self.when_idle: Callable[[], object] | None = None

    def submit(self, function: Callable[[], T]) -> Submitted[T]:
        """Run a function in the thread, after all that were submitted before."""
        item = Submitted(self, function)
        with self._more:
            if self._thread is None:
                thread = Thread(target=self._work, name=self._name, daemon=True)
                thread.start()
                self._thread = thread
            self._waiting.append(item)
            self._more.notify()
        return item

    def on_this_thread(self) -> bool:
        """Whether the caller is a function that the lane runs."""
        return threading.current_thread() is self._thread

    def interrupt(self, error: BaseException) -> None:
        """End what the lane does, at its next ``check``, and all that waits, with an error; it runs nothing more.

        Its thread ends, too.
        """
        with self._more:
            self.interrupted = self.interrupted or error
            waiting, self._waiting = list(self._waiting), deque()
            self._more.notify()
        for item in waiting:
            item.end(None, self._stopped())

    def give_up(self, error: BaseException) -> None:
        """Interrupt the lane, and end what it runs with the error, although the thread does not return from it."""
        running = self._item
        self.interrupt(error)
        if running is not None:
            running.end(None, self._stopped())

    def check(self) -> None:
        """Raise DistributedError if the lane was interrupted; what waits in the lane calls this."""
        if self.interrupted is not None:
            raise self._stopped()

    @property
    def _idle(self) -> Callable[[], object] | None:
        return self.when_idle if self.interrupted is None else None

    def _stopped(self) -> DistributedError:
        error = self.interrupted
        if isinstance(error, DistributedError):
            return error
        stopped = DistributedError(
            f"the exchange with other ranks was interrupted by {type(error).__name__}, so that they and this one "
            "no longer agree; start the program again"
        )
        stopped.__cause__ = error
        return stopped

    @np.errstate(all="ignore")
    def _work(self) -> None:
        while True:
            with self._more:
                if not self._waiting and self.interrupted is not None:
                    self._thread = None
                    return
                if not self._waiting:
                    self._more.wait(None if self._idle is None else _IDLE)
                item = self._waiting.popleft() if self._waiting else None
            if item is None:
                if self._idle is not None:
                    self._idle()
                continue
            self._item = item
            if self.interrupted is None:
                item.run()
            else:
                item.end(None, self._stopped())
            self._item = None
            del item
