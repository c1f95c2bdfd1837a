"""Values that are stored inside one another: parts of a Concat where its result has them, so that nothing is copied."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Group", "group"]

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True, eq=False)
class Group(Generic[Key]):
    """Storage in one piece of memory.

    Args:
        nbytes: of the piece.
        offsets: where each storage begins in it. Some are parts of others.
        composed: those that are nothing but their parts.
    """

    nbytes: int
    offsets: dict[Key, int]
    composed: set[Key]


def group(
    joins: Iterable[tuple[Key, Sequence[Key]]], size: Callable[[Key], int], alignment: int = 64
) -> list[Group[Key]]:
    """Return what can be stored inside one another; each join is possible as a whole, or it is left out.

    A later whole may have an earlier one among its parts, and an earlier whole may consist of parts that are next to
    each other in a later one, as where each layer reads the results of all those before it.

    Args:
        joins: a whole and its parts in order, in the order in which the wholes are made.
        size: returns the bytes of a storage.
        alignment: bytes of which each storage begins at a multiple.

    >>> (found,) = group([("ab", ["a", "b"]), ("abc", ["a", "b", "c"])], lambda name: 64 * len(name))
    >>> found.offsets
    {'abc': 0, 'a': 0, 'b': 64, 'c': 128, 'ab': 0}
    """
    groups: list[Group[Key]] = []
    inside: dict[Key, Group[Key]] = {}
    for whole, parts in reversed([*joins]):
        starts, end = [], 0
        for part in parts:
            starts.append(end)
            end += size(part)
        if end != size(whole) or any(start % alignment for start in starts) or len({whole, *parts}) <= len(parts):
            continue
        placed = [part for part in parts if part in inside]
        if whole in inside:
            if placed:
                continue  # a part is elsewhere
            found = inside[whole]
        elif not placed:
            found = Group(end, {whole: 0}, set())
            groups.append(found)
        else:
            found = inside[placed[0]]
            begin = found.offsets[parts[0]] if parts[0] in found.offsets else -1
            if begin < 0 or any(found.offsets.get(part) != begin + start for part, start in zip(parts, starts)):
                continue  # some are elsewhere, or not next to each other
            found.offsets[whole] = begin
        begin = found.offsets[whole]
        found.composed.add(whole)
        for part, start in zip(parts, starts):
            found.offsets.setdefault(part, begin + start)
        inside.update(dict.fromkeys((whole, *parts), found))
    return groups
