"""What a rank has exchanged last, and how long it took: for errors, and to find the rank that keeps others waiting."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque

from netbuilder.distributed.failure.roll_call import shortened
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["KEPT", "ExchangeSeconds", "Recent"]

KEPT = 64
"""Collectives that a rank remembers."""


@dataclass(frozen=True)
class ExchangeSeconds:
    """How long a rank's collectives have taken, in seconds.

    Args:
        waiting: until all ranks were there.
        moving: of values, from then on.
    """

    waiting: float = 0.0
    moving: float = 0.0

    def __sub__(self, other: ExchangeSeconds) -> ExchangeSeconds:
        return ExchangeSeconds(self.waiting - other.waiting, self.moving - other.moving)


@dataclass
class _Made:
    """A collective: its number, and when it has begun, all ranks have, and it has ended; None: not yet."""

    number: int
    call: object
    begun: float
    there: float | None = None
    ended: float | None = None

    def __str__(self) -> str:
        what = f"#{self.number} {shortened(str(self.call))}"
        if self.there is None:
            return f"{what}: waits for the other ranks"
        waited = f"{what}: waited {self.there - self.begun:.3g} s"
        return f"{waited}, did not end" if self.ended is None else f"{waited}, took {self.ended - self.there:.3g} s"


class Recent:
    """The last collectives of a rank. One thread makes them, any thread may read."""

    def __init__(self) -> None:
        self._kept: deque[_Made] = deque(maxlen=KEPT)
        self._waiting = self._moving = 0.0

    def begin(self, number: int, call: object) -> None:
        """Note that this rank has begun a collective."""
        self._kept.append(_Made(number, call, time.monotonic()))

    def all_are_there(self) -> None:
        """Note that all ranks have begun it."""
        last = self._kept[-1]
        last.there = time.monotonic()
        self._waiting += last.there - last.begun

    def end(self) -> float:
        """Note that it has ended; return the seconds in which its values have moved."""
        last = self._kept[-1]
        last.ended = time.monotonic()
        moved = last.ended - (last.there or last.begun)
        self._moving += moved
        return moved

    def end_unasked(self, usual: float) -> float:
        """Note that one has ended of which this rank does not know when all had begun it.

        Args:
            usual: seconds in which its values move; what it has taken longer counts as waiting.

        Returns:
            the seconds, or fewer if it has taken less.
        """
        last = self._kept[-1]
        last.there = max(last.begun, time.monotonic() - usual)
        self._waiting += last.there - last.begun
        return self.end()

    @property
    def seconds(self) -> ExchangeSeconds:
        """Of all collectives that this rank has made."""
        return ExchangeSeconds(self._waiting, self._moving)

    def print(self, rank: int) -> None:
        """Print a line for each collective to standard error, the last one at the end."""
        lines = [f"the last collectives of rank {rank}:", *(f"  {each}" for each in list(self._kept))]
        with contextlib.suppress(OSError, ValueError):  # it is closed
            print("\n".join(lines), file=sys.stderr, flush=True)
