"""Lifetimes of values, and packers that let values share memory if they are not needed at the same time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Generic, TypeVar

import numpy as np

from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Lifetime", "Slot", "lifetimes", "live_bytes", "load_of", "pack_into_arena", "pack_into_slots"]

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class Lifetime(Generic[Key]):
    """The steps from the first to the last that reads or writes a value, both included.

    Args:
        key: identifies the value, for example the name of a blob.
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
        """Whether this value's last step comes before the other's first step, in the same place."""
        return self.end < other.start and self.place == other.place and self.place is not None


Slot = list[Lifetime[Key]]
"""Values that share one piece of memory, in the order in which they use it."""


def lifetimes(steps: Iterable[tuple[Hashable, Iterable[Key]]]) -> dict[Key, Lifetime[Key]]:
    """Return the lifetime of each value, in the order of first use.

    Args:
        steps: for each step the place where it runs and the values that it reads and writes.

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
    """Assign each value to the free slot of least cost, or to a new slot if none is free; return the slots.

    A slot is as large as its largest value. This packer is for named memory (blobs), which can only be shared as a
    whole.

    Args:
        values: in the order in which they are assigned.
        cost: cost of placing a value in a slot; of slots of equal cost the first is used.
        given: existing slots; unchanged.
    """
    slots = [list(slot) for slot in given]
    for life in values:
        free = [slot for slot in slots if slot[-1].precedes(life)]
        if free:
            min(free, key=lambda slot: cost(slot, life)).append(life)
        else:
            slots.append([life])
    return slots


def live_bytes(values: Sequence[Lifetime[Any]], *, alignment: int = 64) -> int:
    """Return the bytes of the values that are needed at the same time, at most: no block of memory can be smaller."""
    return int(load_of(values, alignment).max(initial=0))


def load_of(values: Sequence[Lifetime[Any]], alignment: int, steps: int = 0) -> np.ndarray[Any, Any]:
    """Return for each step, of at least so many, the bytes of the values that it needs."""
    return _load(_extents(values, alignment), steps)


_Extent = tuple[int, int, int]
"""The first and the last step that needs a value, and its bytes, with alignment."""


def _extents(values: Sequence[Lifetime[Any]], alignment: int) -> tuple[_Extent, ...]:
    return tuple((life.start, life.end, -(-life.nbytes // alignment) * alignment) for life in values)


def _load(lives: Sequence[_Extent], steps: int = 0) -> np.ndarray[Any, Any]:
    change = np.zeros(max([steps - 1, *(end for _, end, _ in lives)]) + 2, np.int64)
    for start, end, nbytes in lives:
        change[start] += nbytes
        change[end + 1] -= nbytes
    return np.cumsum(change)


_NEAR = 1.005  # times the bytes that are needed at the same time: then no other order of placement is tried
_ROUNDS, _PLACEMENTS = 16, 2000  # of further orders, at most, and of values in all of them


def pack_into_arena(values: Sequence[Lifetime[Any]], *, alignment: int = 64) -> tuple[list[int], int]:
    """Return the offset of each value in one block of memory, and the size of that block, in bytes.

    Values that are needed at the same time do not overlap. The largest are placed first, of these the ones that are
    needed longest, each into the smallest gap that holds it among those that are needed when it is, or after them.
    Where that leaves gaps, two other orders are tried: by the bytes that are needed at the same time as the value, and
    those at the peak first; then, of few values, the best of the three with those first that were placed too high.

    Args:
        values: of one place, with sizes.
        alignment: offsets are multiples of it.

    Source: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020, arXiv:2001.03288,
    "Greedy by Size for Offset Calculation".
    """
    lives = _extents(values, alignment)
    offsets, nbytes = (_pack if len(lives) <= _PLACEMENTS else _pack.__wrapped__)(lives)
    return list(offsets), nbytes


# Values are packed to see whether they fit, and again when they get their memory.
@lru_cache(maxsize=16)
def _pack(lives: tuple[_Extent, ...]) -> tuple[Sequence[int], int]:
    load = _load(lives)
    peak = int(load.argmax())
    orders: list[Callable[[_Extent], Any]] = [
        lambda life: (-life[2], life[0] - life[1]),
        lambda life: (-int(load[life[0] : life[1] + 1].max()), -life[2]),
        lambda life: (not life[0] <= peak <= life[1], life[0] - life[1]),
    ]
    best: tuple[Sequence[int], int] | None = None
    order: list[int] = []
    enough = _NEAR * load[peak]
    for key in orders:
        tried = sorted(range(len(lives)), key=lambda i: key(lives[i]))
        found = _place(lives, tried)
        if best is None or found[1] < best[1]:
            best, order = found, tried
        if best[1] <= enough:
            return best
    assert best is not None
    offsets = best[0]
    for _ in range(min(_ROUNDS, _PLACEMENTS // max(len(lives), 1))):
        above = {i for i in order if offsets[i] + lives[i][2] > enough}
        order = [i for i in order if i in above] + [i for i in order if i not in above]
        offsets, nbytes = _place(lives, order)
        if nbytes < best[1]:
            best = offsets, nbytes
        if best[1] <= enough:
            break
    return best


def _place(lives: Sequence[_Extent], order: Sequence[int]) -> tuple[list[int], int]:
    """Return the offsets of values that are placed in this order, and the size of the block."""
    offsets = [0] * len(lives)
    table = np.zeros((4, len(lives)), np.int64)  # of the values placed so far, by offset: start, end, offset, limit
    for count, index in enumerate(order):
        first, last, need = lives[index]
        start, end, begin, limit = table[:, :count]
        at_that_time = (start <= last) & (end >= first)
        offset = _smallest_gap(begin[at_that_time], limit[at_that_time], need)
        row = begin.searchsorted(offset, "right")
        table[:, row + 1 : count + 1] = table[:, row:count].copy()
        table[:, row] = first, last, offset, offset + need
        offsets[index] = offset
    return offsets, int(table[3].max(initial=0))


def _smallest_gap(begin: np.ndarray[Any, Any], limit: np.ndarray[Any, Any], need: int) -> int:
    """Return the start of the smallest gap of at least ``need`` bytes between extents, or the end of the extents.

    Args:
        begin, limit: the extents, ordered by ``begin``.
        need: bytes.
    """
    ends = np.zeros(len(limit) + 1, np.int64)
    np.maximum.accumulate(limit, out=ends[1:])
    gaps = begin - ends[:-1]
    (fitting,) = (gaps >= need).nonzero()  # methods: functions would take twice as long
    return int(ends[fitting[gaps[fitting].argmin()]] if fitting.size else ends[-1])
