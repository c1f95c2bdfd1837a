"""A communicator whose ranks are threads of the test's process, and a way to run a function on each of them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.distributed.transport.communicator import Communicator
from netbuilder.distributed.transport.lane import Lane
from netbuilder.distributed.worlds.session import Session
from netbuilder.distributed.worlds.world import CommonWorld

__all__ = ["ThreadCommunicator", "end_lanes", "on_ranks", "thread_sessions", "thread_worlds", "use_thread_worlds"]

_SLICE = 0.005
_lanes: list[Lane] = []


class _Meeting:
    """Where all ranks leave a value and get those of all."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.condition = threading.Condition()
        self.rounds: dict[int, dict[int, Any]] = {}
        self.messages: dict[int, list[tuple[int, int, Any]]] = {rank: [] for rank in range(size)}
        self.posted: dict[int, list[tuple[int, bytes]]] = {rank: [] for rank in range(size)}
        self.clones: dict[Any, _Meeting] = {}

    def exchange(self, rank: int, number: int, value: Any, check: Callable[[], object]) -> list[Any]:
        with self.condition:
            values = self.rounds.setdefault(number, {})
            values[rank] = value
            self.condition.notify_all()
            while len(values) < self.size:
                self.condition.wait(_SLICE)
                check()
            return [values[each] for each in range(self.size)]


class ThreadCommunicator(Communicator):
    """One of several ranks that are threads; sums are formed in float64, or in the dtype of integers."""

    engine = "threads"

    def __init__(self, meeting: _Meeting, rank: int) -> None:
        super().__init__(rank, meeting.size)
        self._meeting, self._number = meeting, 0
        self.calls: list[str] = []

    def _exchange(self, what: str, value: Any) -> list[Any]:
        self._number += 1
        self.calls.append(what)
        got = self._meeting.exchange(self.rank, self._number, (what, value), self.check)
        assert {each for each, _ in got} == {what}, f"ranks meet in different calls: {got}"
        return [each for _, each in got]

    def clone(self) -> Communicator:
        return self.split(0, self.rank)

    def split(self, color: int, key: int) -> Communicator:
        given = self._exchange("split", (color, key))
        ranks = sorted((each, rank) for rank, (of, each) in enumerate(given) if of == color)
        with self._meeting.condition:
            meeting = self._meeting.clones.setdefault((self._number, color), _Meeting(len(ranks)))
        return ThreadCommunicator(meeting, ranks.index((key, self.rank)))

    def close(self) -> None:
        self._exchange("close", None)

    def abort(self, code: int) -> None:
        raise SystemExit(code)

    def _allreduce(self, array: Any, maximum: bool, patient: bool) -> None:
        rows = np.stack(self._exchange("allreduce", array.copy()))
        exact = rows.astype(np.float64) if rows.dtype.kind == "f" else rows
        array[:] = exact.max(axis=0) if maximum else functools.reduce(np.add, exact)

    def _reduce(self, array: Any, root: int) -> None:
        rows = np.stack(self._exchange("reduce", array.copy()))
        if self.rank == root:
            array[:] = rows.sum(axis=0)

    def _broadcast(self, array: Any, root: int) -> None:
        array[:] = self._exchange("broadcast", array.copy())[root]

    def _allgather(self, own: Any, out: Any, counts: Sequence[int]) -> None:
        out[:] = np.concatenate(self._exchange("allgather", own.copy()))

    def _alltoall(self, array: Any, counts: Sequence[int], out: Any, received: Sequence[int]) -> None:
        starts = np.cumsum([0, *counts])
        parts = [array[starts[rank] : starts[rank + 1]].copy() for rank in range(self.size)]
        given = [each[self.rank] for each in self._exchange("alltoall", parts)]
        assert list(map(len, given)) == list(received)
        out[:] = np.concatenate(given)

    def _barrier(self) -> None:
        self._exchange("barrier", None)

    def _send(self, array: Any, to: int, tag: int) -> None:
        with self._meeting.condition:
            self._meeting.messages[to].append((self.rank, tag, array.copy()))
            self._meeting.condition.notify_all()

    def _receive(self, out: Any, source: int | None, tag: int | None) -> tuple[int, int]:
        with self._meeting.condition:
            while True:
                for each in self._meeting.messages[self.rank]:
                    if source in (None, each[0]) and tag in (None, each[1]):
                        self._meeting.messages[self.rank].remove(each)
                        out[:] = each[2]
                        return each[0], each[1]
                self._meeting.condition.wait(_SLICE)
                self.check()

    def post(self, data: bytes, to: int) -> None:
        with self._meeting.condition:
            self._meeting.posted[to].append((self.rank, data))

    def poll(self) -> tuple[int, bytes] | None:
        with self._meeting.condition:
            posted = self._meeting.posted[self.rank]
            return posted.pop(0) if posted else None


def thread_sessions(size: int, answering: bool = False) -> list[Session]:
    """Return the sessions of so many ranks, each with a lane of its own.

    Args:
        size: number of ranks.
        answering: the lanes answer other ranks while they have nothing to do.
    """
    meeting, lanes = _Meeting(size), [Lane(f"lane of rank {rank}") for rank in range(size)]
    _lanes.extend(lanes)
    sessions = [Session(ThreadCommunicator(meeting, rank), lane) for rank, lane in enumerate(lanes)]
    for session in sessions if answering else ():
        session.answer_when_idle()
    return sessions


def end_lanes() -> None:
    """End the threads of all lanes that were made here; called after each test."""
    while _lanes:
        _lanes.pop().interrupt(RuntimeError("the test has ended"))


def thread_worlds(size: int, name: str = "cw", timeout: float | None = 20) -> list[CommonWorld]:
    """Return the common worlds of so many ranks."""
    meeting, sessions = _Meeting(size), thread_sessions(size)
    worlds = []
    for rank, session in enumerate(sessions):
        communicator = ThreadCommunicator(meeting, rank)
        communicator.check = session.check
        worlds.append(CommonWorld(name, communicator, session, timeout))
    return worlds


def use_thread_worlds(monkeypatch: Any, size: int) -> None:
    """Let CreateCommonWorld make worlds of so many ranks that are threads, each with a lane of its own."""
    sessions, meetings, lock = thread_sessions(size), dict[str, _Meeting](), threading.Lock()
    worlds: dict[tuple[str, int], CommonWorld] = {}

    def create_world(
        name: str, size: int, rank: int, timeout: float | None = None, store: Any = None, gpus: Any = ()
    ) -> CommonWorld:
        with lock:
            meeting = meetings.setdefault(name, _Meeting(size))
        if (name, rank) not in worlds:
            communicator = ThreadCommunicator(meeting, rank)
            communicator.check = sessions[rank].check
            worlds[name, rank] = CommonWorld(name, communicator, sessions[rank], timeout)
        return worlds[name, rank]

    monkeypatch.setattr("netbuilder.ops.collectives.worlds.create_world", create_world)


def on_ranks(size: int, function: Callable[[int], Any], timeout: float = 30) -> list[Any]:
    """Call a function with each rank, in a thread each; return what it returns or raises."""
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = function(rank)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
        assert not thread.is_alive(), "a rank hangs"
    return results
