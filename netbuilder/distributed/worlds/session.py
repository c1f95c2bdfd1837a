"""A session: the ranks agree on each collective before they make it, so that a disagreement is an error and no hang."""

from __future__ import annotations

import functools
import hashlib
import math
import os
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import field
from typing import TypeVar

import numpy as np

from netbuilder.data.forking import new_lock, renew_after_fork
from netbuilder.distributed.failure.recent import Recent
from netbuilder.distributed.failure.roll_call import State, main_stack
from netbuilder.distributed.failure.watchdog import Watchdog
from netbuilder.distributed.stores.heartbeat import Heartbeat, Heartbeats
from netbuilder.distributed.stores.store import Store
from netbuilder.distributed.transport.communicator import Communicator
from netbuilder.distributed.transport.lane import FORKED, Lane, Submitted
from netbuilder.distributed.transport.time_limits import TimeLimits, time_limits
from netbuilder.distributed.worlds.promises import History, Promise, Votes, is_kept
from netbuilder.proto import DistributedError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.threads import Thread

__all__ = ["AHEAD", "HEADER_BYTES", "SIGN", "Collective", "Session"]

T = TypeVar("T")

_TEXT = 1 << 11  # bytes of the text that ranks exchange when they disagree
_READABLE = 300  # characters of such a text
_LEAST_BYTES_PER_SECOND = 5e6  # an exchange takes no longer than its time limit and its bytes by this
SIGN = 1.0  # seconds between two heartbeats
_NUMBERS = 1 << 56  # of texts
_END = "the end of the program"
_FAILURE = "the report of a failure"
_CONNECTING = ("CreateCommonWorld", "CloneCommonWorld", "DestroyCommonWorld")
_FIRST, _EACH = struct.Struct("=5q"), struct.Struct("=4q")  # filling an array by them is faster than by NumPy
AHEAD = 16
"""Collectives that one header is of, at most."""
HEADER_BYTES = _FIRST.size + AHEAD * _EACH.size


@dataclass(frozen=True)
class Collective:
    """What a rank is about to do with the others.

    Args:
        what: the operator.
        blob: the blob, or the first of several; "" if there is none.
        terms: what all ranks must agree on besides, such as the common world, shapes, types and arguments.
        layouts: how the values are stored; ranks may differ in it.
        timeout: seconds to wait for other ranks at most; None: those of ``time_limits``; infinity: no limit.
        nbytes: bytes that it exchanges, as far as known; many take longer.
        patient: wait for the longer time of a first exchange before this process has exchanged anything, whatever
            ``timeout`` says.
        located: adds the operator's position to an error; None: it is not known. A program may wait for a later
            collective first, so an error of this one must say where it comes from.
        votes: how it is made without a header; None: it always needs one.
    """

    what: str
    blob: str = ""
    terms: str = ""
    layouts: str = ""
    timeout: float | None = None
    nbytes: int = 0
    patient: bool = False
    located: Callable[[Exception], Exception] | None = field(default=None, compare=False, repr=False)
    votes: Votes | None = field(default=None, compare=False, repr=False)

    @functools.cached_property
    def numbers(self) -> tuple[int, int]:
        """What stands for the collective and for the layouts in a header: two ranks have the same if these agree."""
        stored = self.layouts if self.votes is None else f"{self.layouts} {self.votes.promised}"
        return _number_of(f"{self.what} {self.blob} {self.terms}"), _number_of(stored)

    def __str__(self) -> str:
        return f"{self.what}{f' of {self.blob!r}' if self.blob else ''}{f' ({self.terms})' if self.terms else ''}"


class Session:
    """The ranks of a run and their order of collectives, over all common worlds.

    Before a collective the ranks exchange a header of a few numbers. If they differ, all ranks raise the same error,
    and so they do if one of them has reported a failure; the session is over then. A header is of all collectives that
    every rank has submitted already: these need no other, and none of them waits for a rank that does something else.
    Where the exchange takes longer than what the ranks compute meanwhile, there are few headers.

    Sums and gathers that have followed a collective twice in the same order need no header at all: in that of the
    collective all ranks promise to make them again. A rank that then does something else, or has failed, takes part in
    what was promised with zeros and one NaN, or with what no other rank gives. All see it, and exchange a header before
    they go on, as after any sum that is NaN.

    Args:
        control: the communicator for headers; nothing else uses it.
        lane: the thread that makes all calls.

    Attributes:
        recent: the last collectives, and the time that all have taken.
    """

    def __init__(self, control: Communicator, lane: Lane) -> None:
        self.control, self.lane, self.recent = control, lane, Recent()
        self._watchdog = Watchdog(
            control, lane, self._state, self._located, lambda: str(self._agreed or ""), self.recent
        )
        control.check = self.check
        self._call: Collective | None = None
        self._last: Collective | None = None
        self._agreed: Collective | None = None  # the last one that all ranks have begun
        self._since = time.monotonic()  # when _call has begun, or _last has ended
        self._has_exchanged = False  # values, and not only connected the ranks
        self._number = 0
        self._submitted: deque[Collective | None] = deque()  # and not begun; None: between two ranks
        self._same_layouts: deque[bool] = deque()  # of the next ones, on which the ranks have agreed
        self._history = History(_number_of)
        self._keeps = False  # what was added before another rank refused
        self._header = np.zeros(HEADER_BYTES // 8, np.int64)
        self._refused: BaseException | None = None  # why no further collective may be submitted
        self._ended: BaseException | None = None  # why those that were submitted are not run either
        self._lock = new_lock()
        self._heartbeat: Heartbeat | None = None
        renew_after_fork(self)

    def renew(self) -> None:
        """End the session in a forked process: MPI serves the one that it comes from."""
        self._refused = self._ended = DistributedError(FORKED)

    @property
    def rank(self) -> int:
        return self.control.rank

    @property
    def size(self) -> int:
        return self.control.size

    @property
    def over(self) -> BaseException | None:
        """The error that ended the session; None if there was none."""
        return self._ended or self._refused or self.lane.interrupted

    def check(self) -> None:
        """Raise DistributedError if the wait must end; see ``Watchdog``."""
        self._watchdog.check()

    def watch(self, store: Store | None) -> None:
        """Begin to look after waits inside MPI, and to send heartbeats to the other ranks by a store.

        Args:
            store: one that all ranks see, with a prefix of the run; None: there is none.
        """
        if store is not None:
            signs = store.with_prefix("ranks")
            self._heartbeat = Heartbeat(signs, self.rank, lambda: self._state().encode().decode(), interval=SIGN)
            self._watchdog.signs = Heartbeats(signs, self.size)
        Thread(target=self._watchdog.supervise, name="netbuilder-watchdog", daemon=True).start()

    def unwatch(self) -> None:
        """Send no more heartbeats."""
        if self._heartbeat is not None:
            self._heartbeat.close()

    def answer_when_idle(self) -> None:
        """Let the lane answer ranks that wait for this one, even while the rest of the program hangs."""
        self.lane.when_idle = self._watchdog.look

    def submit(self, call: Collective, body: Callable[[bool], T]) -> Submitted[T]:
        """Run ``body`` in the lane after all ranks have agreed on ``call``.

        Args:
            call: what ``body`` does.
            body: is given whether all ranks store the values in the same layouts.

        Raises:
            DistributedError: the session is over; or, by ``result()``, the ranks do not agree, or one has failed.
        """
        return self._queue(call, call, lambda: self._perform(call, body))

    def submit_between_two(self, call: Collective, body: Callable[[], T]) -> Submitted[T]:
        """Run ``body``, which sends to one rank or receives from one, in the lane; the other ranks take no part."""

        def perform() -> T:
            if self._ended is not None:
                raise self._ended
            with _In(self, call, self.limit_of(call)):
                return body()

        return self._queue(call, None, perform)

    def _queue(self, call: Collective, agreed_on: Collective | None, perform: Callable[[], T]) -> Submitted[T]:
        """Run a function in the lane; a header may be of the collective that it makes, None if it makes none."""

        def run() -> T:
            self._submitted.popleft()
            return perform()

        with self._lock:  # both are in the same order, and nothing comes after the report of a failure
            self.require(call)
            self._submitted.append(agreed_on)
            return self.lane.submit(run)

    def require(self, call: Collective) -> None:
        """Raise DistributedError if the session is over."""
        if (error := self.over) is not None:
            raise DistributedError(
                f"{call.what}: the ranks exchange nothing more after an earlier error; run the init net, which makes "
                f"the common worlds, on all of them again, or start the program again. The error: {error}"
            ) from error

    def _perform(self, call: Collective, body: Callable[[bool], T]) -> T:
        if self._ended is not None:  # by a collective that was submitted before
            raise self._ended
        try:
            limits = time_limits()
            silence, limit = self._silence(call, limits), self.limit_of(call, limits)
            unasked = not self._same_layouts and self._history.promises
            with _In(self, call, _longer(limit, call) if unasked else limit, silence):
                self._number += 1
                self.recent.begin(self._number, call)
                if unasked:
                    result = self._keep_promise(call, body, limits)
                else:
                    result = self._run_agreed(call, body, self._agree(call), limits)
                self._agreed = call
                self._has_exchanged = self._has_exchanged or call.what not in _CONNECTING
                return result
        except BaseException as error:
            found = _located(call, error)
            self._ended = self._ended or found
            if found is error:
                raise
            raise found from error

    def _located(self, error: DistributedError) -> BaseException:
        return error if self._call is None else _located(self._call, error)

    def _keep_promise(self, call: Collective, body: Callable[[bool], T], limits: TimeLimits) -> T:
        """Make what all ranks have promised; where one of them does not make it, agree on what all make."""
        promise, votes = self._history.next(), call.votes
        kept = is_kept(promise, call.numbers, votes)
        if kept:
            with promise.promised.unasked(promise.seconds):
                result = body(True)
        else:
            promise.promised.refuse()
        if not kept or (votes is not None and votes.doubtful):
            made = kept and votes is not None and not votes.stops
            self._history.end_promises()
            same_layouts = self._agree(call, kept=made)
            if not (made and same_layouts):
                if made and votes is not None:
                    votes.restore(self._keeps)
                return self._run_agreed(call, body, same_layouts, limits)
        self._history.add(Promise(promise.numbers, promise.promised, self.recent.end_unasked(promise.seconds)))
        return result

    def _run_agreed(self, call: Collective, body: Callable[[bool], T], same_layouts: bool, limits: TimeLimits) -> T:
        """Make a collective on which the ranks have agreed."""
        self._agreed = call
        self._watchdog.all_are_there(call, self.moving_limit(call, self.limit_of(call, limits), limits))
        self.recent.all_are_there()
        result = body(same_layouts)
        seconds = self.recent.end()
        if call.what in _CONNECTING:
            self._history.forget()
        elif call.votes is not None and same_layouts:
            self._history.add(Promise(call.numbers, call.votes.promised, seconds))
        elif call.votes is not None:
            self._history.break_off()
        return result

    def _agree(self, call: Collective, *, kept: bool = False) -> bool:
        """Return whether all ranks store the values in the same layouts, after they have agreed on the collective.

        Raises:
            DistributedError: they do not agree, or one has failed.
        """
        if call.votes is None:
            self._history.begin(call.numbers[0])
        if not self._same_layouts and not self._exchange_header(call, kept=kept):
            raise self._disagreement(str(call))
        return self._same_layouts.popleft()

    def _exchange_header(self, call: Collective, *, failed: bool = False, kept: bool = False) -> bool:
        """Exchange the header of a collective, and of those that have been submitted after it.

        Return whether all ranks make this one; ``_same_layouts`` has those on which they agree, beginning with it.

        Args:
            call: the collective, whose number is ``_number``.
            failed: the rank reports a failure instead.
            kept: the rank has made it as promised, and its values are sums now.
        """
        header, calls = self._header, [call, *self._next()]
        promised = self._history.promised_after(call.numbers[0]) if call.votes is None else 0
        keeper = self.size - self.rank if kept else 0  # the first of these ranks
        _FIRST.pack_into(header.data, 0, failed, -len(calls), promised, -promised, keeper)
        for place, each in enumerate(calls):
            _EACH.pack_into(header.data, _FIRST.size + place * _EACH.size, *self._fields(each, place))
        self.control.allreduce(header, maximum=True, patient=True)
        any_failed, fewest, most_promised, least_promised, first_keeper = _FIRST.unpack_from(header.data)
        self._keeps = kept and keeper == first_keeper
        for place in range(0 if any_failed else -fewest):
            fields = _EACH.unpack_from(header.data, _FIRST.size + place * _EACH.size)
            most, least, most_of_layouts, least_of_layouts = fields
            if most != -least:
                break  # the next header finds it, unless it is in the first place
            self._same_layouts.append(most_of_layouts == -least_of_layouts)
        if self._same_layouts and promised and most_promised == -least_promised:
            self._history.promise(call.numbers[0], [each.numbers for each in calls[1 : len(self._same_layouts)]])
        return bool(self._same_layouts)

    def _next(self) -> list[Collective]:
        """Return the collectives that this rank makes next, whatever others do."""
        found = list[Collective]()
        with self._lock:
            for each in self._submitted:
                if each is None or len(found) == AHEAD - 1:
                    break
                found.append(each)
        return found

    def _fields(self, call: Collective, place: int) -> tuple[int, int, int, int]:
        """Return four numbers whose maxima over the ranks tell whether all make the collective, in the same layouts."""
        first, second = call.numbers
        first = (first + self._number + place) % _NUMBERS
        return first, -first, second, -second

    def limit_of(self, call: Collective, limits: TimeLimits | None = None) -> float | None:
        """Return how long a collective waits, in seconds: longer until one has exchanged values, or its own time.

        Args:
            call: the collective.
            limits: those of this process; None: asks for them.
        """
        limits = limits or time_limits()
        if call.timeout is not None and (self._has_exchanged or not call.patient):
            return call.timeout
        return limits.seconds if self._has_exchanged else limits.first

    def _silence(self, call: Collective, limits: TimeLimits) -> float | None:
        """Return how long a rank may not answer at all, where a collective waits longer than usual; None: for ever.

        Until one has exchanged values a rank may be in calls that let no other thread run: it may be loading its data.
        That does not hold where its program has ended, or failed.
        """
        first = not self._has_exchanged and call.what not in (_END, _FAILURE)
        return None if first or self.lane.when_idle is None else limits.seconds

    def moving_limit(self, call: Collective, limit: float | None, limits: TimeLimits | None = None) -> float | None:
        """Return how long the values of a collective may move: all ranks are there, so it is no longer than usual.

        Args: see ``limit_of``; ``limit`` is what that returns.
        """
        if limit is None:
            return None
        return _longer(min(limit, (limits or time_limits()).seconds or limit), call)

    def _state(self) -> State:
        """Return what this rank does, for others that wait for it."""
        call, since = self._call, time.monotonic() - self._since
        waits_in = "" if call is None else str(call)
        return State(waits_in, self._number, str(self._last or ""), since, [] if waits_in else main_stack())

    def begin(self, call: Collective, limit: float | None, silence: float | None) -> None:
        """Note that this rank makes a collective, and limit its wait; see ``Watchdog.waiting``."""
        self._call, self._since = call, time.monotonic()
        self._watchdog.begin(call, limit, silence)

    def end(self, call: Collective) -> None:
        """Note that it has ended."""
        self._watchdog.end()
        self._call, self._last, self._since = None, call, time.monotonic()

    def _disagreement(self, text: str) -> DistributedError:
        """Return the error for ranks that do not agree, which is the same on all of them.

        Args:
            text: what this rank is about to do, or "!" and why it cannot.
        """
        own = np.zeros(_TEXT, np.uint8)
        encoded = text.encode()[:_TEXT]
        own[: len(encoded)] = np.frombuffer(encoded, np.uint8)
        rows = self.control.allgather(own).reshape(self.size, _TEXT)
        self.recent.print(self.rank)
        return DistributedError(_compare([bytes(row).rstrip(b"\0").decode(errors="replace") for row in rows]))

    def report_failure(self, error: BaseException) -> None:
        """Make the next collective of the other ranks raise an error that says that this rank has failed, and why.

        Nothing happens if the session is over: then they know already.
        """
        text = f"!{type(error).__name__}: {error}"

        def tell() -> None:
            if self._ended is None:
                self._number += 1
                call = Collective(_FAILURE)
                with _In(self, call, math.inf, self._silence(call, time_limits())):
                    if self._history.promises:
                        self._history.next().promised.refuse()
                    self._exchange_header(call, failed=True)
                self._ended = self._disagreement(text)

        with self._lock:
            if self.size == 1 or self.over is not None:
                return
            self._refused = error
            self.lane.submit(tell)

    def close(self) -> None:
        """Tell the other ranks that this one exchanges nothing more; wait until they have heard it."""
        if self.lane.interrupted is not None:
            self.control.abort(1)
        elif self._ended is None:
            if self._refused is None:
                self.submit(Collective(_END, timeout=math.inf), lambda same_layouts: None).result()
        self.lane.submit(self._leave).result()

    def _leave(self) -> None:
        """Answer no longer: MPI ends after this."""
        self.lane.when_idle = None
        self.unwatch()


class _In:
    """The context in which a rank makes a collective; a generator would take several times as long for it.

    Args: see ``Session.begin``.
    """

    __slots__ = ("_call", "_given", "_session")

    def __init__(self, session: Session, call: Collective, limit: float | None, silence: float | None = None) -> None:
        self._session, self._call, self._given = session, call, (limit, silence)

    def __enter__(self) -> None:
        self._session.begin(self._call, *self._given)

    def __exit__(self, *error: object) -> None:
        self._session.end(self._call)


def _longer(limit: float | None, call: Collective) -> float | None:
    return None if limit is None else limit + call.nbytes / _LEAST_BYTES_PER_SECOND


def _located(call: Collective, error: BaseException) -> BaseException:
    return error if call.located is None or not isinstance(error, Exception) else call.located(error)


def _number_of(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


def _compare(texts: list[str]) -> str:
    """Return the message for ranks that do not agree.

    >>> _compare(["Barrier", "!ValueError: no", "Barrier"])
    'rank 1 of 3 has failed (ValueError: no), while ranks 0, 2 wait in Barrier'
    """
    texts = _shortened(texts)
    at: dict[str, list[int]] = {}
    for rank, text in enumerate(texts):
        at.setdefault(text, []).append(rank)
    failed = {text[1:]: ranks for text, ranks in at.items() if text.startswith("!")}
    rest = {text: ranks for text, ranks in at.items() if not text.startswith("!")}
    if failed:
        message = "; ".join(
            f"{_named(ranks)} of {len(texts)} {'has' if len(ranks) == 1 else 'have'} failed ({text})"
            for text, ranks in failed.items()
        )
        waiting = ", ".join(
            f"{_named(ranks)} {'waits' if len(ranks) == 1 else 'wait'} in {text}" for text, ranks in rest.items()
        )
        return f"{message}, while {waiting}" if waiting else message
    if len(rest) == 1:
        return f"the ranks have made different numbers of collectives before {texts[0]}"
    return "the ranks do not exchange the same: " + "; ".join(
        f"{_named(ranks)}: {text}" for text, ranks in rest.items()
    )


def _shortened(texts: list[str]) -> list[str]:
    """Return the texts, of long ones only the beginning and what surrounds the first difference."""
    if max(map(len, texts)) <= _READABLE:
        return texts
    third = _READABLE // 3
    start = len(os.path.commonprefix(texts)) - third
    if start <= third:
        return [text[: 2 * _READABLE] for text in texts]
    return [f"{text[:third]} ... {text[start : start + _READABLE]}" for text in texts]


def _named(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
