"""The watchdog of collectives: who waits too long for other ranks says who is missing, and ends the exchange."""

from __future__ import annotations

import faulthandler
import heapq
import itertools
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from netbuilder.distributed.failure.abort import end_job
from netbuilder.distributed.failure.recent import Recent
from netbuilder.distributed.failure.roll_call import RollCall, State, shortened
from netbuilder.distributed.stores.heartbeat import Heartbeats, LastSign
from netbuilder.distributed.transport.communicator import Communicator
from netbuilder.distributed.transport.lane import Lane
from netbuilder.proto import DistributedError

__all__ = ["LAST_WORDS", "LOOK_FROM_OUTSIDE", "PATIENCE", "Wait", "Watchdog"]

_log = logging.getLogger("netbuilder")

LAST_WORDS = 0.5  # seconds for other ranks to print what they do, before the error ends them
_LOOK = 0.05  # seconds between two looks at the time and at messages of other ranks
LOOK_FROM_OUTSIDE = 0.5  # seconds between two looks at a lane that may be inside MPI
_LONGEST_LOOK = 1.0  # seconds that one of them counts for: a process that was stopped has not waited meanwhile
PATIENCE = 60.0  # seconds after which a wait without a limit is warned of
_ANSWERING = 2.0  # seconds that other ranks have to answer, at most


class Watchdog:
    """Looks after the waits of a lane: ``check`` is called while it waits, and ``look`` while it has nothing to do.

    At half the time limit a warning names the ranks that are missing, and at the end an error, which reaches the other
    ranks as well.

    Args:
        communicator: of the ranks; see ``RollCall``.
        lane: makes all calls.
        state: returns what this rank does.
        located: adds the position of the operator that waits to an error.
        agreed: returns the last collective that all ranks have begun; "" if there is none.
        recent: the last collectives of this rank, which an error prints.

    Attributes:
        signs: the ranks' heartbeats in a store, which tell of those that do not answer; None: there is no store.
    """

    def __init__(
        self,
        communicator: Communicator,
        lane: Lane,
        state: Callable[[], State],
        located: Callable[[DistributedError], BaseException] = lambda error: error,
        agreed: Callable[[], str] = lambda: "",
        recent: Recent | None = None,
    ) -> None:
        self._communicator, self._lane, self._located, self._agreed = communicator, lane, located, agreed
        self._roll_call, self._recent = RollCall(communicator, state), recent or Recent()
        self._next_look = 0.0
        self._wait: Wait | None = None
        self._checks = 0
        self.signs: Heartbeats | None = None

    @contextmanager
    def waiting(self, call: object, limit: float | None, silence: float | None = None) -> Iterator[None]:
        """In the block, wait for other ranks no longer than this.

        Args:
            call: what waits, for messages.
            limit: seconds; infinity: only a warning comes; None: nothing comes.
            silence: seconds after which a rank that has not answered since the wait began, or later, ends it: one that
                does something else answers; None: never.
        """
        self.begin(call, limit, silence)
        try:
            yield
        finally:
            self.end()

    def begin(self, call: object, limit: float | None, silence: float | None) -> None:
        """Begin to wait; see ``waiting``, which takes longer."""
        self._wait = None if limit is None else Wait(call, limit, moving=False, silence=silence)

    def end(self) -> None:
        """Wait for nothing."""
        self._wait = None

    def all_are_there(self, call: object, limit: float | None) -> None:
        """For the rest of the block of ``waiting``, wait no longer than this: all ranks exchange values.

        Args: see ``waiting``.
        """
        self._wait = None if limit is None else Wait(call, limit, moving=True)

    def check(self) -> None:
        """Raise DistributedError if the wait must end.

        The lane was interrupted, a rank has given up, the engine has failed, or the wait is at its limit.
        """
        self._lane.check()
        self._checks += 1
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK
        self._roll_call.look()
        if self._roll_call.given_up:
            self._end(self._roll_call.given_up)
        if failure := self._communicator.failure():
            self._roll_call.give_up(failure)
            self._end(failure)
        if self._wait is not None:
            self._look_at_time(self._wait, now)

    def look(self) -> None:
        """Answer other ranks; called by a lane that has nothing to do.

        If the engine has failed, the job ends: the program may wait for a GPU, which waits for the other ranks.
        """
        self._roll_call.look()
        failure = self._communicator.failure()
        if failure:
            self._roll_call.give_up(failure)
        if text := failure or self._roll_call.given_up:
            try:
                self._end(text)
            except DistributedError:
                pass  # what is submitted from now on raises it
        if failure:
            end_job(1)

    def supervise(self) -> None:
        """End waits in which MPI or NCCL itself does not return, so that nobody calls ``check``; for its own thread."""
        of, checks, inside, before = None, 0, 0.0, time.monotonic()
        while self._lane.interrupted is None:
            time.sleep(LOOK_FROM_OUTSIDE)
            now, wait = time.monotonic(), self._wait
            inside += min(now - before, _LONGEST_LOOK)
            before = now
            if wait is None or (wait, self._checks) != (of, checks):
                of, checks, inside = wait, self._checks, 0.0
            elif inside >= wait.longest_call:
                self._end_from_outside(wait, inside)
            elif inside >= wait.longest_call - _ANSWERING:
                self._signs()

    def _end_from_outside(self, wait: Wait, inside: float) -> None:
        """Give up the lane, which is inside MPI, or NCCL."""
        call, communicator = str(wait.call), self._communicator
        text = (
            f"rank {communicator.rank} of {communicator.size} has been inside {communicator.engine} for {inside:.3g} s "
            f"in {shortened(call)}, which does not return"
        )
        if signs := self._signs():
            text += f"; {self._roll_call.missing(call, signs, self._agreed(), asked=False)}"
        self._print(text)
        self._lane.give_up(self._located(DistributedError(text)))

    def _signs(self) -> list[LastSign]:
        try:
            return [] if self.signs is None else self.signs.look()
        except DistributedError:  # the store is gone
            return []

    def _look_at_time(self, wait: Wait, now: float) -> None:
        step = wait.advance(now)
        if step == "ask":
            silent = self._roll_call.silent() if math.isfinite(wait.asked) else []  # earlier answers are of other waits
            wait.unanswered = {rank: wait.unanswered.get(rank, wait.asked) for rank in silent}
            wait.asked = wait.waited
            self._roll_call.ask()
            self._signs()  # their ages count from the first look
        elif step == "look":
            silent = self._roll_call.silent(self._signs())
            if any(wait.unanswered.get(rank, wait.asked) <= wait.waited - wait.silence / 2 for rank in silent):
                self._give_up(wait)
        elif step == "warn":
            end = f"; it gives up after {wait.limit:g} s" if math.isfinite(wait.limit) else ""
            _log.warning("%s%s", self._describe(wait), end)
        elif step == "end":
            self._give_up(wait)

    def _give_up(self, wait: Wait) -> NoReturn:
        text = self._describe(wait)
        self._roll_call.give_up(text)
        self._end(text)

    def _describe(self, wait: Wait) -> str:
        call, own = str(wait.call), f"rank {self._communicator.rank} of {self._communicator.size}"
        what = "while values move" if wait.moving else "for the other ranks"
        waited = f"has waited {min(wait.waited, wait.limit):.3g} s {what} in {shortened(call)}"
        return f"{own} {waited}; {self._roll_call.missing(call, self._signs(), self._agreed())}"

    def _end(self, text: str) -> NoReturn:
        """Print the error and what all threads do; interrupt the lane, and raise it."""
        error = self._located(DistributedError(text))
        self._print(text)
        self._lane.interrupt(error)
        time.sleep(LAST_WORDS)
        raise error

    def _print(self, text: str) -> None:
        self._recent.print(self._communicator.rank)
        print(f"{text}. The threads of rank {self._communicator.rank}:", file=sys.stderr, flush=True)
        try:
            faulthandler.dump_traceback(sys.stderr, all_threads=True)
        except (AttributeError, OSError, ValueError):  # standard error is not a file
            faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=True)


class Wait:
    """A wait with a time limit, and what to do at which of its seconds.

    Attributes:
        asked: when the ranks were asked last, in seconds of the wait; infinity: not yet.
        unanswered: rank -> since when it has answered nothing.
    """

    def __init__(self, call: object, limit: float, moving: bool, silence: float | None = None) -> None:
        self.call, self.limit, self.moving, self.silence = call, limit, moving, silence or math.inf
        self._steps: Iterator[tuple[float, str]] | None = None  # most waits are over before they are needed
        self._next = (0.0, "")
        self.longest_call = min(self.limit, self.silence)  # of the engine: one that waits returns, and asks again
        self.waited, self._seen = 0.0, time.monotonic()
        self.asked, self.unanswered = math.inf, dict[int, float]()

    def _all_steps(self) -> Iterator[tuple[float, str]]:
        """Yield what is due, and when, in seconds of the wait."""
        half = self.limit / 2 if math.isfinite(self.limit) else PATIENCE
        answering = min(_ANSWERING, half / 2)
        steps = [(half - answering, "ask"), (half, "warn"), (self.limit - answering, "ask"), (self.limit, "end")]
        return heapq.merge(steps, self._looks(), key=lambda step: step[0])

    def _looks(self) -> Iterator[tuple[float, str]]:
        """Yield when to ask the ranks, and when to look who has not answered, before the wait ends."""
        answering = min(_ANSWERING, self.silence / 4)
        for number in itertools.count(1):
            if (at := number * self.silence / 2) >= self.limit or self.silence >= self.limit:
                return
            yield at - answering, "ask"
            yield at, "look"

    def advance(self, now: float) -> str:
        """Count the time until now; return what is due, "" if nothing is."""
        self.waited += min(now - self._seen, _LONGEST_LOOK)
        self._seen = now
        if self._steps is None:
            self._steps = self._all_steps()
            self._next = next(self._steps)
        if self.waited < self._next[0]:
            return ""
        due, self._next = self._next[1], next(self._steps, (math.inf, ""))
        return due
