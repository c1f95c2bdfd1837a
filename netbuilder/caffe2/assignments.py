"""Assignments of memonger: which blobs share memory, as lists of (name, LiveRange)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from netbuilder.graph.lifetimes import Lifetime, Slot, pack_into_slots
from netbuilder.ops.core.renaming import rename_arguments, rename_blobs, subgraphs
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
    """How blobs are assigned: each to the best-fitting free memory, or so that the total memory is smallest."""

    GREEDY = 0
    DYNAMIC_PROGRAMMING = 1


class LiveRange(NamedTuple):
    """Index of the first and last operator that needs a blob, and its size in bytes; None: unknown."""

    defined: int | None = None
    used: int | None = None
    size: int | None = None


_Range = tuple[str, LiveRange]
Assignment = list[_Range]
"""Blobs that share memory, in the order in which they use it."""


def is_compatible(candidate_range: LiveRange, assignment: Assignment, static_blobs: Collection[Any]) -> bool:
    """Whether a blob can use the memory of others after them: the last one is not static, and no longer needed."""
    name, last = assignment[-1]
    if name in static_blobs or candidate_range.defined is None or last.used is None:
        return False
    return candidate_range.defined > last.used


def get_updated_ranges(ranges: Iterable[tuple[str, LiveRange]], max_live: int | None = None) -> Assignment:
    """Return ranges without None: defined before all operators, used until ``max_live``, of one byte.

    Args:
        ranges: pairs of a name and a range.
        max_live: index of an operator; None: one more than the largest in ``ranges``.
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
    """Return assignments of blobs, each to the best-fitting free memory.

    Args:
        ranges_sorted: names and ranges without None.
        init_assignments: existing memory with its blobs; unchanged.
    """
    groups = [_slot(group) for group in init_assignments or ()]
    return _assignments(pack_into_slots(_slot(ranges_sorted), _difference, groups))


def _difference(slot: Slot[_Range], life: Lifetime[_Range]) -> int:
    return abs(max(other.nbytes for other in slot) - life.nbytes)


def compute_assignments_dp(
    ranges_sorted: Sequence[tuple[str, LiveRange]], init_assignment: Sequence[Assignment] | None, counter: Any = None
) -> list[Assignment]:
    """Return assignments of blobs that need the least memory in total.

    Args:
        ranges_sorted: names and ranges without None.
        init_assignment: existing memory with its blobs; unchanged.
        counter: ignored; Caffe2 counts its steps with it.
    """
    return _assignments(least_memory(_slot(ranges_sorted), [_slot(group) for group in init_assignment or ()]))


def _slot(ranges: Iterable[_Range]) -> Slot[_Range]:
    """Return lifetimes whose keys are (name, range)."""
    return [
        Lifetime((name, live), updated.defined or 0, updated.used or 0, (0, 0), updated.size or 1)
        for name, live in ranges
        for _, updated in get_updated_ranges([(name, live)])
    ]


def _assignments(slots: Iterable[Slot[_Range]]) -> list[Assignment]:
    return [[life.key for life in slot] for slot in slots]


_MOST_CANDIDATES = 256  # partial assignments that the search keeps


class _Candidate(NamedTuple):
    """A partial assignment: total bytes; for each slot its last use and its bytes; the slots' values."""

    nbytes: int
    ends: tuple[tuple[int, int], ...]
    slots: tuple[tuple[Lifetime[Any], ...], ...]


def least_memory(
    values: Iterable[Lifetime[Any]], given: Iterable[Sequence[Lifetime[Any]]] = ()
) -> list[list[Lifetime[Any]]]:
    """Assign values to slots, each as large as its largest value, so that the total size is small.

    A beam search goes through the values in the order in which they are made; of two candidates whose slots have the
    same ends and sizes it keeps the smaller one. The result is optimal if the beam is wide enough. Values of unknown
    size count as one byte.

    Args:
        values: see ``live_blobs``.
        given: existing slots, each with values of one place; ``values`` come after theirs.
    """
    found: list[list[Lifetime[Any]]] = []
    rest = sorted(values, key=lambda life: life.start)
    before = [tuple(slot) for slot in given]
    for place in dict.fromkeys(life.place for life in (*(life for slot in before for life in slot), *rest)):
        candidates = [_start([slot for slot in before if slot[0].place == place])]
        for life in (life for life in rest if life.place == place):
            best: dict[tuple[tuple[int, int], ...], _Candidate] = {}
            for candidate in candidates:
                for more in _extended(candidate, life):
                    key = tuple(sorted(more.ends))
                    if key not in best or more.nbytes < best[key].nbytes:
                        best[key] = more
            candidates = sorted(best.values(), key=lambda candidate: candidate.nbytes)[:_MOST_CANDIDATES]
        found += [list(slot) for slot in candidates[0].slots]
    return found


def _start(slots: Sequence[tuple[Lifetime[Any], ...]]) -> _Candidate:
    ends = tuple((slot[-1].end, max(max(life.nbytes, 1) for life in slot)) for slot in slots)
    return _Candidate(sum(size for _, size in ends), ends, tuple(slots))


def _extended(candidate: _Candidate, life: Lifetime[Any]) -> Iterable[_Candidate]:
    """Yield the candidate with one more value, in each free slot of a different size, and in a new slot."""
    size, seen = max(life.nbytes, 1), set()
    for index, (end, nbytes) in enumerate(candidate.ends):
        if end >= life.start or nbytes in seen:
            continue
        seen.add(nbytes)
        larger = max(nbytes, size)
        ends = (*candidate.ends[:index], (life.end, larger), *candidate.ends[index + 1 :])
        slots = (*candidate.slots[:index], (*candidate.slots[index], life), *candidate.slots[index + 1 :])
        yield _Candidate(candidate.nbytes + larger - nbytes, ends, slots)
    yield _Candidate(candidate.nbytes + size, (*candidate.ends, (life.end, size)), (*candidate.slots, (life,)))


def compute_assignments(
    ranges: Mapping[str, LiveRange], static_blobs: Collection[Any], algo: AssignmentAlgorithm
) -> list[Assignment]:
    """Return assignments of blobs; static ones share no memory.

    Args:
        ranges: by name, see ``compute_ranges``.
        static_blobs: names.
        algo: how blobs are assigned.

    Raises:
        ArgumentError: ``algo`` is not an AssignmentAlgorithm.
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
                raise NetError(
                    f"blobs {first!r} ({a}) and {second!r} ({b}) share memory but are needed at the same time"
                )


def compute_blob_assignments(assignments: Iterable[Assignment]) -> dict[str, str]:
    """Return the new name of each blob that shares memory, which is the name of the last blob of its group."""
    return {name: group[-1][0] for group in assignments if len(group) > 1 for name, _ in group}


def apply_assignments(net: NetDef, blob_assignments: Mapping[str, str]) -> None:
    """Rename the blobs of a net and its subgraphs, in place.

    Args:
        net: the net.
        blob_assignments: old name -> new name.
    """
    rename_blobs(net, blob_assignments)


def apply_recurrent_blob_assignments(
    op: OperatorDef, blob_assignments: Mapping[str, str], canonical_name: Callable[[str], str]
) -> None:
    """Rename the blobs in the step nets of a recurrent operator, and in its arguments, in place.

    Args:
        op: the operator; its inputs and outputs keep their names.
        blob_assignments: old name -> new name.
        canonical_name: function from any name to the new one.
    """
    for net in subgraphs(op):
        rename_blobs(net, canonical_name)
    rename_arguments(op, blob_assignments)
