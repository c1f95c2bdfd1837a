"""Which blobs share memory, as lists of (name, LiveRange), in Caffe2's terms: memonger's assignments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from netbuilder.graph.rename import held_nets, rename_arguments, rename_blobs
from netbuilder.passes.pools import least_memory
from netbuilder.passes.share_memory import LiveBlob
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
    "verify_assignments",
]


class AssignmentAlgorithm(Enum):
    """How blobs are dealt out: each to the free memory that fits best, or so that all memory together is smallest."""

    GREEDY = 0
    DYNAMIC_PROGRAMMING = 1


class LiveRange(NamedTuple):
    """From which operator to which a blob is needed, both by their numbers, and its bytes; None: not known."""

    defined: int | None = None
    used: int | None = None
    size: int | None = None


Assignment = list[tuple[str, LiveRange]]
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
    groups = [list(group) for group in init_assignments or ()]
    for name, live in ranges_sorted:
        free = [group for group in groups if is_compatible(live, group, ())]
        best = min(free, key=lambda group: abs(_size(group) - (live.size or 1)), default=None)
        if best is None:
            groups.append([(name, live)])
        else:
            best.append((name, live))
    return groups


def _size(group: Assignment) -> int:
    return max(live.size or 1 for _, live in group)


def compute_assignments_dp(
    ranges_sorted: Sequence[tuple[str, LiveRange]], init_assignment: Sequence[Assignment] | None, counter: Any = None
) -> list[Assignment]:
    """Return assignments of blobs that take the fewest bytes altogether.

    Args:
        ranges_sorted: names and ranges without None.
        init_assignment: memory that there is already, with the blobs that have it; unchanged.
        counter: ignored; Caffe2 counts its steps in it.
    """
    known = dict([*(pair for group in init_assignment or () for pair in group), *ranges_sorted])
    given = [list(map(_live_blob, group)) for group in init_assignment or ()]
    pools = least_memory(map(_live_blob, ranges_sorted), given)
    return [[(blob.name, known[blob.name]) for blob in pool] for pool in pools]


def _live_blob(pair: tuple[str, LiveRange]) -> LiveBlob:
    name, live = get_updated_ranges([pair])[0]
    return LiveBlob(name, live.defined or 0, live.used or 0, (0, 0), live.size or 1)


def compute_assignments(
    ranges: Mapping[str, LiveRange], static_blobs: Collection[Any], algo: AssignmentAlgorithm
) -> list[Assignment]:
    """Return assignments of blobs; the static ones have memory of their own.

    Args:
        ranges: by name, as of ``compute_ranges``.
        static_blobs: names.
        algo: how blobs are dealt out.

    Raises:
        ArgumentError: there is no such algorithm.
    """
    if not isinstance(algo, AssignmentAlgorithm):
        raise ArgumentError(f"compute_assignments: algo must be an AssignmentAlgorithm, got {algo!r}")
    static = set(map(str, static_blobs))
    updated = get_updated_ranges(sorted(ranges.items(), key=lambda pair: (pair[1].used is None, pair[1].used or 0)))
    deal = compute_assignments_greedy if algo is AssignmentAlgorithm.GREEDY else compute_assignments_dp
    return [
        *deal([pair for pair in updated if pair[0] not in static], []),
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
    for net in held_nets(op):
        rename_blobs(net, canonical_name)
    rename_arguments(op, blob_assignments)
