"""What ranks make without a header: what they have made in the same order twice, they promise to make again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from netbuilder.distributed.transport.communicator import Communicator
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Gather", "History", "Promise", "Promised", "Sums", "Votes", "is_kept"]

_MOST_LISTS = 256
_NAN_OF_BFLOAT16 = 0x7FC0


class _Unasked:
    """The context in which a communicator is ``unasked``; a generator would take several times as long for it."""

    __slots__ = ("_communicator", "_seconds")

    def __init__(self, communicator: Communicator, seconds: float) -> None:
        self._communicator, self._seconds = communicator, seconds

    def __enter__(self) -> None:
        self._communicator.unasked = self._seconds

    def __exit__(self, *error: object) -> None:
        self._communicator.unasked = None


@dataclass(frozen=True)
class Promised(ABC):
    """What a rank makes without a header: the calls by which all ranks see whether one of them refuses.

    Args:
        communicator: makes them.
    """

    communicator: Communicator

    def unasked(self, seconds: float = 0.0) -> _Unasked:
        """Return a context in which the ranks have not found out whether all are there.

        Args:
            seconds: in which the values move.
        """
        return _Unasked(self.communicator, seconds)

    def refuse(self) -> None:
        """Take part with values by which all ranks see that this one does something else."""
        with self.unasked():
            self._refuse()

    @abstractmethod
    def _refuse(self) -> None: ...

    @abstractmethod
    def __str__(self) -> str:
        """What all ranks must agree on."""


@dataclass(frozen=True)
class Sums(Promised):
    """Sums of arrays, one after the other. A rank that refuses gives zeros, and one NaN.

    Args:
        kinds: type and number of elements of each.
        place: of the one whose first element is NaN where a rank refuses.
        deterministic, bfloat16: see ``Communicator.allreduce``.
    """

    kinds: tuple[tuple[str, int], ...]
    place: int = 0
    deterministic: bool = False
    bfloat16: bool = False

    def __str__(self) -> str:
        return f"sums {self.kinds}, {self.place}, {self.deterministic}, {self.bfloat16}"

    def _refuse(self) -> None:
        for number, (kind, size) in enumerate(self.kinds):
            array = np.zeros(size, kind)
            if number == self.place:
                array[0] = _NAN_OF_BFLOAT16 if self.bfloat16 else np.nan
            self.communicator.allreduce(array, deterministic=self.deterministic, bfloat16=self.bfloat16)


@dataclass(frozen=True)
class Gather(Promised):
    """An array of each rank that all receive. A rank that refuses gives one which no other rank can give.

    Args:
        kind: type of the elements.
        size: number of those of each rank.
        refusal: all elements of a rank that refuses.
    """

    kind: str
    size: int
    refusal: int

    def __str__(self) -> str:
        return f"gather {self.kind}, {self.size}, {self.refusal}"

    def _refuse(self) -> None:
        self.communicator.allgather(np.full(self.size, self.refusal, self.kind))


class Votes(Protocol):
    """An operator that is made without a header: how it finds out that another rank has refused, and begins anew."""

    @property
    def promised(self) -> Promised: ...

    @property
    def stops(self) -> bool:
        """Whether it leaves its values as they were, and makes no further call, where a rank may have refused."""

    @property
    def doubtful(self) -> bool:
        """Whether a rank may have refused the last time."""

    def restore(self, keep: bool) -> None:
        """Prepare values that it has replaced, unless it stops, to be added once more, after a rank has refused.

        Args:
            keep: one rank keeps what those that did not refuse have added, the others give zeros.
        """


@dataclass(frozen=True)
class Promise:
    """A collective that a rank is going to make.

    Args:
        numbers: those of the collective.
        promised: how it is made.
        seconds: in which its values have moved, the least so far.
    """

    numbers: tuple[int, int]
    promised: Promised
    seconds: float


@dataclass(frozen=True)
class _Followed:
    """What has followed a collective, its number in a header, and whether it was so twice in succession."""

    promises: tuple[Promise, ...]
    number: int
    again: bool


class History:
    """Which collectives that need no header follow which one that does.

    Args:
        number_of: returns the number of a text for a header.
    """

    def __init__(self, number_of: Callable[[str], int]) -> None:
        self._number_of = number_of
        self._followed: dict[int, _Followed] = {}
        self._after: int | None = None  # the collective that they follow
        self._made: list[Promise] = []
        self._promised: deque[Promise] = deque()

    def forget(self) -> None:
        """Forget all, as the communicators may be gone."""
        self._followed, self._after, self._made = {}, None, []
        self._promised.clear()

    def begin(self, number: int) -> None:
        """Note that a collective is made which needs a header.

        Args:
            number: the first one of the collective.
        """
        if self._after is not None:
            before = self._followed.get(self._after)
            found = (
                self._number_of(repr([(each.numbers, str(each.promised)) for each in self._made])) if self._made else 0
            )
            again = before is not None and before.number == found
            if len(self._followed) == _MOST_LISTS:
                self._followed.clear()
            self._followed[self._after] = _Followed(tuple(self._made), found, again)
        self._after, self._made = number, []

    def add(self, promise: Promise) -> None:
        """Note that a collective has been made which needs none the next time."""
        self._made.append(promise)

    def break_off(self) -> None:
        """Note that the ranks have made one in different layouts: nothing is promised of what comes now."""
        self._after, self._made = None, []

    def promised_after(self, number: int) -> int:
        """Return what stands in a header for the collectives that this rank promises; 0: it promises none."""
        found = self._followed.get(number)
        return found.number if found is not None and found.again else 0

    def promise(self, number: int, agreed: Sequence[tuple[int, int]]) -> None:
        """Note that all ranks make what has followed a collective.

        Args:
            number: of the collective.
            agreed: the numbers of those after it on which the header has agreed anyway.
        """
        promises = self._followed[number].promises
        if tuple(each.numbers for each in promises[: len(agreed)]) == tuple(agreed):
            self._promised.extend(promises[len(agreed) :])

    @property
    def promises(self) -> bool:
        """Whether the next collective is one that all ranks have promised."""
        return bool(self._promised)

    def next(self) -> Promise:
        """Return it."""
        return self._promised.popleft()

    def end_promises(self) -> None:
        """A rank does something else."""
        self._promised.clear()


def is_kept(promise: Promise, numbers: tuple[int, int], votes: Votes | None) -> bool:
    """Whether a collective is the promised one."""
    return (
        votes is not None
        and promise.numbers == numbers
        and votes.promised.communicator is promise.promised.communicator
    )
