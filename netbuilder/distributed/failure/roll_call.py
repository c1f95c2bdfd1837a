"""The roll call: what the other ranks do, asked by one that waits for them, and answered while their program hangs."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, field
from pathlib import Path

from netbuilder.distributed.stores.heartbeat import LastSign
from netbuilder.distributed.transport.communicator import Communicator
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["FRESH", "RollCall", "State", "main_stack", "shortened"]

_FRAMES = 10  # of a stack
_LONGEST = 3000  # bytes of a message, which MPI sends without waiting for the receiver
_READABLE = 300  # characters of a collective


@dataclass(frozen=True)
class State:
    """What a rank does.

    Args:
        waits_in: the collective in which it waits for others; "" if it does not.
        number: how many collectives it has begun.
        last: the last collective that it has finished; "" if there is none.
        seconds: since when it waits, or since when it has finished the last one.
        stack: where its main thread is, the innermost function first.
    """

    waits_in: str = ""
    number: int = 0
    last: str = ""
    seconds: float = 0.0
    stack: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """What the rank does, as the rest of a sentence that begins with its number."""
        at = f"; its main thread is at {' <- '.join(self.stack)}" if self.stack else ""
        if self.waits_in:
            return f"waits in {self.waits_in} for {self.seconds:.0f} s{at}"
        if self.last:
            return f"has finished {self.last} {self.seconds:.0f} s ago, and has begun no other collective{at}"
        return f"has begun no collective{at}"

    def encode(self) -> bytes:
        """Return a message; of a long stack the innermost functions."""
        stack = list(self.stack)
        while True:
            shown = {"waits_in": shortened(self.waits_in), "last": shortened(self.last), "stack": stack}
            text = json.dumps({**asdict(self), **shown}).encode()
            if len(text) <= _LONGEST or not stack:
                return text
            stack.pop()


class RollCall:
    """Messages between ranks apart from their collectives; all calls come from the thread of the lane.

    A rank answers while it waits in a collective and while its lane has nothing to do, whatever its other threads do.
    One that is stopped, has ended, or is in a call of C that keeps Python's lock gives no answer.

    Args:
        communicator: nothing else calls its ``post`` and ``poll``.
        state: returns what this rank does.
    """

    def __init__(self, communicator: Communicator, state: Callable[[], State]) -> None:
        self._communicator, self._state = communicator, state
        self.answers: dict[int, State] = {}
        self.given_up: str = ""

    @property
    def _others(self) -> list[int]:
        return [rank for rank in range(self._communicator.size) if rank != self._communicator.rank]

    def ask(self) -> None:
        """Ask all other ranks what they do; forget earlier answers."""
        self.answers = {}
        for rank in self._others:
            self._communicator.post(b"?", rank)

    def give_up(self, text: str) -> None:
        """Tell all other ranks that this one exchanges nothing more, and why."""
        for rank in self._others:
            self._communicator.post(b"!" + text.encode()[:_LONGEST], rank)

    def look(self) -> None:
        """Read what other ranks have sent, and answer; ``given_up`` is the message of one that has given up."""
        while (message := self._communicator.poll()) is not None:
            rank, data = message
            if data == b"?":
                self._communicator.post(self._state().encode(), rank)
            elif data.startswith(b"!"):
                self.given_up = self.given_up or data[1:].decode(errors="replace")
            else:
                self.answers[rank] = State(**json.loads(data))

    def silent(self, signs: Sequence[LastSign] = ()) -> list[int]:
        """Return the ranks that have not answered since they were asked last, nor sent a heartbeat just now.

        Args:
            signs: see ``missing``.
        """
        alive = {rank for rank, sign in enumerate(signs) if sign.age is not None and sign.age <= FRESH}
        return [rank for rank in self._others if rank not in self.answers and rank not in alive]

    def missing(self, own: str, signs: Sequence[LastSign] = (), agreed: str = "", *, asked: bool = True) -> str:
        """Return who is there and who is not, as sentences: by the answers of the ranks, or else their heartbeats.

        Args:
            own: the collective in which this rank waits.
            signs: the last heartbeat of each rank in a store; () if there is no store.
            agreed: the last collective that all ranks have begun: of a rank that tells nothing itself; "" if unknown.
            asked: whether the ranks have been asked; if not, only the signs tell.
        """
        found = {rank: _described(sign, asked) for rank, sign in enumerate(signs)}
        states = {rank: state for rank, (state, lives, _) in found.items() if lives} | (self.answers if asked else {})
        waiting = [rank for rank in self._others if rank in states and states[rank].waits_in == shortened(own)]
        others = [rank for rank in self._others if rank not in waiting]
        begun = f"; it has begun {shortened(agreed)}, as all ranks have" if agreed else ""
        silent = {rank: text if lives else text + begun for rank, (_, lives, text) in found.items()}
        answers = {rank: str(state) for rank, state in self.answers.items()} if asked else {}
        told = silent | answers
        lines = [f"rank {rank} {told.get(rank, _SILENT + begun)}" for rank in others[:_MOST]]
        if len(others) > _MOST:
            lines.append(f"{len(others) - _MOST} more ranks are missing")
        there = f"there: {_named(sorted([*waiting, self._communicator.rank]))}; " if waiting else ""
        return there + "missing: " + ("; ".join(lines) if lines else "none, now")


_MOST = 16  # ranks that are described one by one
_SILENT = "does not answer: it is stopped, has ended, or is in a call that lets no other thread run"


FRESH = 1.5  # seconds up to which a heartbeat is a recent one; they come each second


def _described(sign: LastSign, asked: bool) -> tuple[State, bool, str]:
    """Return what a rank did in its last heartbeat, whether that is recent, and the rest of a sentence about it."""
    silent = "does not answer by MPI, " if asked else ""
    also = f"{silent}and " if asked else ""
    if sign.age is None:
        return State(), False, f"{also}has never sent a heartbeat"
    state = State(**json.loads(sign.doing))
    if sign.age <= FRESH:
        return state, True, f"{silent}{'but ' if asked else ''}sends heartbeats: it {state}"
    return state, False, f"{also}has sent no heartbeat for {sign.age:.0f} s; in the last one it {state}"


def _named(ranks: list[int]) -> str:
    more = f" and {len(ranks) - _MOST} more" if len(ranks) > _MOST else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:_MOST]))}{more}"


def shortened(call: str) -> str:
    """Return the description of a collective, of one over many blobs only the beginning."""
    return call if len(call) <= _READABLE else call[: _READABLE - 4] + " ..."


def main_stack() -> list[str]:
    """Return where the main thread is, the innermost function first."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    lines: list[str] = []
    while frame is not None and len(lines) < _FRAMES:
        code = frame.f_code
        lines.append(f"{'/'.join(Path(code.co_filename).parts[-2:])}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return lines
