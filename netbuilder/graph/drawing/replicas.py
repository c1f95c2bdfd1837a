"""Operators of a net that compute the same on several devices."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

__all__ = ["first_copies"]

_LEAST = 0.5  # share of a device's operators that must have a counterpart, for the device to be a replica


def first_copies(lanes: Sequence[int], kinds: Sequence[Hashable], sources: Sequence[Sequence[int]]) -> list[int]:
    """Return for each operator the one that computes the same on an earlier device, or itself.

    Replicas are built alike, so the n-th operator of a kind on one device is the n-th of this kind on the other; kinds
    of which one device has more, as the sums of gradients, are left as they are. Devices of which one computes with the
    results of the other, as in a pipeline, are no replicas: joined operators would depend on themselves.

    Args:
        lanes: the device of each operator, by its index.
        kinds: equal values for operators that could be copies of one another.
        sources: the operators that write what an operator reads.

    >>> first_copies([0, 0, 1, 1, 0], ["Conv", "Relu", "Conv", "Relu", "Sum"], [[], [0], [], [2], [1, 3]])
    [0, 1, 0, 1, 4]
    """
    first = list(range(len(lanes)))
    by_lane: dict[int, dict[Hashable, list[int]]] = {}
    for index, (lane, kind) in enumerate(zip(lanes, kinds)):
        by_lane.setdefault(lane, {}).setdefault(kind, []).append(index)
    leaders: list[dict[Hashable, list[int]]] = []  # the devices that are no replica of another
    for own in by_lane.values():
        count = sum(map(len, own.values()))
        for leader in leaders:
            alike = ((mine, leader.get(kind, ())) for kind, mine in own.items())
            pairs = [pair for mine, others in alike if len(mine) == len(others) for pair in zip(mine, others)]
            joined = list(first)
            for index, other in pairs:
                joined[index] = other
            if len(pairs) >= _LEAST * count and _is_acyclic(joined, sources):
                first = joined
                break
        else:
            leaders.append(own)
    return first


def _is_acyclic(joined: Sequence[int], sources: Sequence[Sequence[int]]) -> bool:
    """Whether no operator depends on itself if each is the one that ``joined`` has for it."""
    edges = {(joined[source], joined[index]) for index, read in enumerate(sources) for source in read}
    readers: dict[int, list[int]] = {}
    waits = dict.fromkeys(joined, 0)
    for source, reader in edges:
        readers.setdefault(source, []).append(reader)
        waits[reader] += 1
    ready = [index for index, count in waits.items() if not count]
    done = 0
    while ready:
        done += 1
        for reader in readers.get(ready.pop(), ()):
            waits[reader] -= 1
            if not waits[reader]:
                ready.append(reader)
    return done == len(waits)
