"""Which blobs share memory, as lists of (name, LiveRange), in Caffe2's terms: memonger's assignments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from netbuilder.graph.lifetimes import Lifetime, Slot, pack_into_slots
from netbuilder.graph.rename import rename_arguments, rename_blobs, subgraphs
from netbuilder.proto import ArgumentError, NetDef, NetError, OperatorDef

__all__ = [
    "Assignment",
    "AssignmentAlgorithm",
    "LiveRange",
    "apply_assignments",
    "apply_recurrent_blob_assignments",
    "compute_assignments",
    "compute_assignments_dp",
    "compute_assignments_greedy",
    "compute_blob_assignments",
    "get_updated_ranges",
    "is_compatible",
    "least_memory",
    "verify_assignments",
]


class AssignmentAlgorithm(Enum):
    """How blobs are assigned: each to the free memory that fits best, or so that all memory together is smallest."""

    GREEDY = 0
    DYNAMIC_PROGRAMMING = 1


class LiveRange(NamedTuple):
    """From which operator to which a blob is needed, both by their numbers, and its bytes; None: not known."""

    defined: int | None = None
    used: int | None = None
    size: int | None = None


_Range = tuple[str, LiveRange]
Assignment = list[_Range]
"""Blobs that share memory, in the order in which they have it."""


def is_compatible(candidate_range: LiveRange, assignment: Assignment, static_blobs: Collection[Any]) -> bool:
    """Whether a blob can have the memory of others after them: the last of these is not static, and not needed then."""
    name, last = assignment[-1]
    if name in static_blobs or candidate_range.defined is None or last.used is None:
        return False
    return candidate_range.defined > last.used


def get_updated_ranges(ranges: Iterable[tuple[str, LiveRange]], max_live: int | None = None) -> Assignment:
    """Return ranges without None: defined before all operators, used until ``max_live``, of one byte.

    Args:
        ranges: pairs of a name and a range.
        max_live: number of an operator; None: one more than the greatest in ``ranges``.
    """
    given = list(ranges)
    end = max((live.used or 0 for _, live in given), default=0) + 1 if max_live is None else max_live
    return [
        (
            name,
            LiveRange(
                -1 if live.defined is None else live.defined,
                end if live.used is None else live.used,
                1 if live.size is None else live.size,
            ),
        )
        for name, live in given
    ]


def compute_assignments_greedy(
    ranges_sorted: Sequence[tuple[str, LiveRange]], init_assignments: Sequence[Assignment] | None = None
) -> list[Assignment]:
    """Return assignments of blobs, each given the free memory that fits best.

    Args:
        ranges_sorted: names and ranges without None.
        init_assignments: memory that there is already, with the blobs that have it; unchanged.
    """
    groups = [_slot(group) for group in init_assignments or ()]
    return _assignments(pack_into_slots(_slot(ranges_sorted), _difference, groups))


def _difference(slot: Slot[_Range], life: Lifetime[_Range]) -> int:
    return abs(max(other.nbytes for other in slot) - life.nbytes)


def compute_assignments_dp(
    ranges_sorted: Sequence[tuple[str, LiveRange]], init_assignment: Sequence[Assignment] | None, counter: Any = None
) -> list[Assignment]:
    """Return assignments of blobs that take the fewest bytes altogether.

    Args:
        ranges_sorted: names and ranges without None.
        init_assignment: memory that there is already, with the blobs that have it; unchanged.
        counter: ignored; Caffe2 counts its steps in it.
    """
    return _assignments(least_memory(_slot(ranges_sorted), [_slot(group) for group in init_assignment or ()]))


def _slot(ranges: Iterable[_Range]) -> Slot[_Range]:
    """Return lifetimes, each with its name and range for a key."""
    return [
        Lifetime((name, live), updated.defined or 0, updated.used or 0, (0, 0), updated.size or 1)
        for name, live in ranges
        for _, updated in get_updated_ranges([(name, live)])
    ]


def _assignments(slots: Iterable[Slot[_Range]]) -> list[Assignment]:
    return [[life.key for life in slot] for slot in slots]


_KEPT = 256  # ways that are followed at a time


class _Way(NamedTuple):
    """Values assigned so far: for each slot the last step that touches it and its bytes; the slots' values."""

    nbytes: int
    ends: tuple[tuple[int, int], ...]
    slots: tuple[tuple[Lifetime[Any], ...], ...]


def least_memory(
    values: Iterable[Lifetime[Any]], given: Iterable[Sequence[Lifetime[Any]]] = ()
) -> list[list[Lifetime[Any]]]:
    """Return values in slots whose bytes, each slot as large as its largest value, are few in all.

    Goes through the values in the order in which they are made, and follows the best ways to assign them; of two ways
    whose slots end alike, the smaller one. The result is the smallest there is unless there are more such ways than
    are followed. Values without a size count as one byte.

    Args:
        values: as of ``live_blobs``.
        given: slots that there are already, each of values of one place; those of ``values`` come after theirs.
    """
    found: list[list[Lifetime[Any]]] = []
    rest = sorted(values, key=lambda life: life.start)
    before = [tuple(slot) for slot in given]
    for place in dict.fromkeys(life.place for life in (*(life for slot in before for life in slot), *rest)):
        ways = [_start([slot for slot in before if slot[0].place == place])]
        for life in (life for life in rest if life.place == place):
            best: dict[tuple[tuple[int, int], ...], _Way] = {}
            for way in ways:
                for more in _with(way, life):
                    key = tuple(sorted(more.ends))
                    if key not in best or more.nbytes < best[key].nbytes:
                        best[key] = more
            ways = sorted(best.values(), key=lambda way: way.nbytes)[:_KEPT]
        found += [list(slot) for slot in ways[0].slots]
    return found


def _start(slots: Sequence[tuple[Lifetime[Any], ...]]) -> _Way:
    ends = tuple((slot[-1].end, max(max(life.nbytes, 1) for life in slot)) for slot in slots)
    return _Way(sum(size for _, size in ends), ends, tuple(slots))


def _with(way: _Way, life: Lifetime[Any]) -> Iterable[_Way]:
    """Yield the ways with one more value: in each slot that is free and of another kind, or in a new one."""
    size, seen = max(life.nbytes, 1), set()
    for index, (end, nbytes) in enumerate(way.ends):
        if end >= life.start or nbytes in seen:
            continue
        seen.add(nbytes)
        larger = max(nbytes, size)
        ends = (*way.ends[:index], (life.end, larger), *way.ends[index + 1 :])
        slots = (*way.slots[:index], (*way.slots[index], life), *way.slots[index + 1 :])
        yield _Way(way.nbytes + larger - nbytes, ends, slots)
    yield _Way(way.nbytes + size, (*way.ends, (life.end, size)), (*way.slots, (life,)))


def compute_assignments(
    ranges: Mapping[str, LiveRange], static_blobs: Collection[Any], algo: AssignmentAlgorithm
) -> list[Assignment]:
    """Return assignments of blobs; the static ones have memory of their own.

    Args:
        ranges: by name, as of ``compute_ranges``.
        static_blobs: names.
        algo: how blobs are assigned.

    Raises:
        ArgumentError: there is no such algorithm.
    """
    if not isinstance(algo, AssignmentAlgorithm):
        raise ArgumentError(f"compute_assignments: algo must be an AssignmentAlgorithm, got {algo!r}")
    static = set(map(str, static_blobs))
    updated = get_updated_ranges(sorted(ranges.items(), key=lambda pair: (pair[1].used is None, pair[1].used or 0)))
    assign = compute_assignments_greedy if algo is AssignmentAlgorithm.GREEDY else compute_assignments_dp
    return [
        *assign([pair for pair in updated if pair[0] not in static], []),
        *([pair] for pair in updated if pair[0] in static),
    ]


def verify_assignments(assignments: Iterable[Assignment]) -> None:
    """Check that blobs which share memory are not needed at the same time.

    Raises:
        NetError: two of them are.
    """
    for group in assignments:
        for (first, a), (second, b) in zip(group, group[1:]):
            if a.used is None or b.defined is None or a.used >= b.defined:
                raise NetError(f"blobs {first!r} ({a}) and {second!r} ({b}) share memory and are needed together")


def compute_blob_assignments(assignments: Iterable[Assignment]) -> dict[str, str]:
    """Return for each blob that shares the name that it gets, which is that of the last of its group."""
    return {name: group[-1][0] for group in assignments if len(group) > 1 for name, _ in group}


def apply_assignments(net: NetDef, blob_assignments: Mapping[str, str]) -> None:
    """Give the blobs of a net other names, in place, and in the nets that its operators hold too.

    Args:
        net: the net.
        blob_assignments: old names and new ones.
    """
    rename_blobs(net, blob_assignments)


def apply_recurrent_blob_assignments(
    op: OperatorDef, blob_assignments: Mapping[str, str], canonical_name: Callable[[str], str]
) -> None:
    """Give the blobs in the step nets of a recurrent operator other names, in place, and in arguments that name them.

    Args:
        op: the operator; what it reads and writes itself keeps its name.
        blob_assignments: old names and new ones.
        canonical_name: gives for any name the new one.
    """
    for net in subgraphs(op):
        rename_blobs(net, canonical_name)
    rename_arguments(op, blob_assignments)
