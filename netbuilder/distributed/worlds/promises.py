"""Sums that ranks make without a header: what they have done in the same order twice, they promise to do again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np

from netbuilder.distributed.transport.communicator import Communicator
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["History", "Promise", "Sums", "Votes", "is_kept"]

_MOST_LISTS = 256


@dataclass(frozen=True)
class Sums:
    """The sums of arrays of which an operator consists, one after the other.

    Args:
        communicator: carries them.
        kinds: type and number of elements of each.
        place: of the one whose first element is NaN where a rank refuses.
        deterministic: see ``Communicator.allreduce``.
    """

    communicator: Communicator
    kinds: tuple[tuple[str, int], ...]
    place: int
    deterministic: bool

    def __str__(self) -> str:
        return f"sums {self.kinds}, {self.place}, {self.deterministic}"

    @contextmanager
    def unasked(self) -> Iterator[None]:
        """In the block, the ranks have not found out whether all are there."""
        self.communicator.unasked = True
        try:
            yield
        finally:
            self.communicator.unasked = False

    def refuse(self) -> None:
        """Take part with zeros, and with one NaN, by which all ranks see that this one does something else."""
        with self.unasked():
            for number, (kind, size) in enumerate(self.kinds):
                array = np.zeros(size, kind)
                if number == self.place:
                    array[0] = np.nan
                self.communicator.allreduce(array, deterministic=self.deterministic)


class Votes(Protocol):
    """An operator that consists of sums: how it finds out that another rank has refused, and begins anew."""

    @property
    def sums(self) -> Sums: ...

    @property
    def doubtful(self) -> bool:
        """Whether the element of the last sum that a refusal makes NaN is NaN."""

    def restore(self, keep: bool) -> None:
        """Prepare the operator's values to be added once more, after a rank has refused.

        Args:
            keep: one rank keeps what those that did not refuse have added, the others give zeros.
        """


@dataclass(frozen=True)
class Promise:
    """A collective that a rank is going to make.

    Args:
        numbers: those of the collective.
        sums: how it is made.
        seconds: in which its values have moved, the least so far.
    """

    numbers: tuple[int, int]
    sums: Sums
    seconds: float


@dataclass(frozen=True)
class _Followed:
    """The sums that have followed a collective, their number in a header, and whether it was so twice in succession."""

    promises: tuple[Promise, ...]
    number: int
    again: bool


class History:
    """Which sums follow which collective.

    Args:
        number_of: returns the number of a text for a header.
    """

    def __init__(self, number_of: Callable[[str], int]) -> None:
        self._number_of = number_of
        self._followed: dict[int, _Followed] = {}
        self._after: int | None = None  # the collective whose sums are noted
        self._made: list[Promise] = []
        self._promised: deque[Promise] = deque()

    def forget(self) -> None:
        """Forget all, as the communicators of the sums may be gone."""
        self._followed, self._after, self._made = {}, None, []
        self._promised.clear()

    def begin(self, number: int) -> None:
        """Note that a collective is made which is no sum of this kind.

        Args:
            number: the first one of the collective.
        """
        if self._after is not None:
            before = self._followed.get(self._after)
            found = self._number_of(repr([(each.numbers, str(each.sums)) for each in self._made])) if self._made else 0
            again = before is not None and before.number == found
            if len(self._followed) == _MOST_LISTS:
                self._followed.clear()
            self._followed[self._after] = _Followed(tuple(self._made), found, again)
        self._after, self._made = number, []

    def add(self, promise: Promise) -> None:
        """Note that a sum has been made."""
        self._made.append(promise)

    def break_off(self) -> None:
        """Note that the ranks have made a sum in different layouts: nothing is promised of what comes now."""
        self._after, self._made = None, []

    def promised_after(self, number: int) -> int:
        """Return what stands in a header for the sums that this rank is going to make; 0: it promises none."""
        found = self._followed.get(number)
        return found.number if found is not None and found.again else 0

    def promise(self, number: int, agreed: Sequence[tuple[int, int]]) -> None:
        """Note that all ranks make the sums which have followed a collective.

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
    return votes is not None and promise.numbers == numbers and votes.sums.communicator is promise.sums.communicator
