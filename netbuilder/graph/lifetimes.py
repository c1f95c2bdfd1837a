"""Lifetimes of values, and packers that give memory to several values that are not needed at the same time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

__all__ = ["Lifetime", "Slot", "lifetimes", "pack_into_arena", "pack_into_slots"]

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class Lifetime(Generic[Key]):
    """The steps from the first that touches a value to the last, both included.

    Args:
        key: what the value is known by, as the name of a blob.
        start: number of the first step.
        end: number of the last step.
        place: the lane or device of all these steps; None: they run in several, so that their order is not fixed.
        nbytes: size of the value; 0: not known.
    """

    key: Key
    start: int
    end: int
    place: Hashable = None
    nbytes: int = 0

    def precedes(self, other: Lifetime[Any]) -> bool:
        """Whether the last step here comes before the other's first one, in the same place."""
        return self.end < other.start and self.place == other.place and self.place is not None


Slot = list[Lifetime[Key]]
"""Values that share memory, in the order in which they have it."""


def lifetimes(steps: Iterable[tuple[Hashable, Iterable[Key]]]) -> dict[Key, Lifetime[Key]]:
    """Return the lifetime of each value, in the order in which they are first touched.

    Args:
        steps: of each, the place where it runs and the values that it reads and writes.

    >>> lifetimes([("cpu", ["x", "a"]), ("cpu", ["a", "b"]), ("gpu", ["b"])])["b"]
    Lifetime(key='b', start=1, end=2, place=None, nbytes=0)
    """
    found: dict[Key, Lifetime[Key]] = {}
    for index, (place, touched) in enumerate(steps):
        for key in touched:
            life = found.get(key)
            if life is None:
                found[key] = Lifetime(key, index, index, place)
                continue
            life.end = index
            if life.place != place:
                life.place = None
    return found


def pack_into_slots(
    values: Iterable[Lifetime[Key]],
    cost: Callable[[Slot[Key], Lifetime[Key]], Any],
    given: Iterable[Sequence[Lifetime[Key]]] = (),
) -> list[Slot[Key]]:
    """Return values in slots: each in the free slot of the least cost, or in a new one if none is free.

    A slot is as large as its largest value. This is for memory that has a name, which is shared as a whole or not.

    Args:
        values: in the order in which they are assigned.
        cost: of a value in a slot; of two equal ones the earlier slot is taken.
        given: slots that there are already; unchanged.
    """
    slots = [list(slot) for slot in given]
    for life in values:
        free = [slot for slot in slots if slot[-1].precedes(life)]
        if free:
            min(free, key=lambda slot: cost(slot, life)).append(life)
        else:
            slots.append([life])
    return slots


def pack_into_arena(values: Sequence[Lifetime[Any]], *, alignment: int = 64) -> tuple[list[int], int]:
    """Return the offset of each value in one block of memory, and the size of that block, in bytes.

    Values that are needed at the same time do not overlap. The largest are placed first, each into the smallest gap
    that holds it among those that are needed when it is, or after them.

    Args:
        values: of one place, with sizes.
        alignment: offsets are multiples of it.

    Source: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020, arXiv:2001.03288,
    "Greedy by Size for Offset Calculation".
    """
    offsets = [0] * len(values)
    table = np.zeros((4, len(values)), np.int64)  # of the values placed so far, by offset: start, end, offset, limit
    for count, index in enumerate(sorted(range(len(values)), key=lambda i: (-values[i].nbytes, values[i].start))):
        life = values[index]
        need = -(-life.nbytes // alignment) * alignment
        start, end, begin, limit = table[:, :count]
        at_that_time = (start <= life.end) & (end >= life.start)
        offset = _smallest_gap(begin[at_that_time], limit[at_that_time], need)
        row = int(np.searchsorted(begin, offset, side="right"))
        table[:, row + 1 : count + 1] = table[:, row:count].copy()
        table[:, row] = life.start, life.end, offset, offset + need
        offsets[index] = offset
    return offsets, int(table[3].max(initial=0))


def _smallest_gap(begin: np.ndarray[Any, Any], limit: np.ndarray[Any, Any], need: int) -> int:
    """Return where the smallest gap of ``need`` bytes begins between extents ordered by ``begin``, or their end."""
    reached = np.maximum.accumulate(np.concatenate([[0], limit]))
    gaps = begin - reached[:-1]
    fitting = np.flatnonzero(gaps >= need)
    return int(reached[fitting[np.argmin(gaps[fitting])]] if fitting.size else reached[-1])
