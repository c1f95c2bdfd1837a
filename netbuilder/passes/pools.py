"""Blobs put into pools that share memory so that all pools together are smallest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from netbuilder.passes.share_memory import LiveBlob

__all__ = ["least_memory"]

_KEPT = 256  # ways that are followed at a time


class _Way(NamedTuple):
    """Blobs dealt out so far: for each pool the last operator that touches it and its bytes; the pools' blobs."""

    bytes: int
    ends: tuple[tuple[int, int], ...]
    pools: tuple[tuple[LiveBlob, ...], ...]


def least_memory(blobs: Iterable[LiveBlob], given: Iterable[Sequence[LiveBlob]] = ()) -> list[list[LiveBlob]]:
    """Return blobs in pools whose bytes, each pool as large as its largest blob, are few in all.

    Goes through the blobs in the order in which they are made, and follows the best ways to deal them out; of two ways
    whose pools end alike, the smaller one. The result is the smallest there is unless there are more such ways than
    are followed. Blobs without a size count as one byte.

    Args:
        blobs: as of ``live_blobs``.
        given: pools that there are already, each of blobs of one device; those of ``blobs`` come after theirs.
    """
    found: list[list[LiveBlob]] = []
    rest = sorted(blobs, key=lambda blob: blob.defined)
    before = [tuple(pool) for pool in given]
    for place in dict.fromkeys(blob.place for blob in (*(blob for pool in before for blob in pool), *rest)):
        ways = [_start([pool for pool in before if pool[0].place == place])]
        for blob in (blob for blob in rest if blob.place == place):
            best: dict[tuple[tuple[int, int], ...], _Way] = {}
            for way in ways:
                for more in _with(way, blob):
                    key = tuple(sorted(more.ends))
                    if key not in best or more.bytes < best[key].bytes:
                        best[key] = more
            ways = sorted(best.values(), key=lambda way: way.bytes)[:_KEPT]
        found += [list(pool) for pool in ways[0].pools]
    return found


def _start(pools: Sequence[tuple[LiveBlob, ...]]) -> _Way:
    ends = tuple((pool[-1].used, max(max(blob.size, 1) for blob in pool)) for pool in pools)
    return _Way(sum(size for _, size in ends), ends, tuple(pools))


def _with(way: _Way, blob: LiveBlob) -> Iterable[_Way]:
    """Yield the ways with one more blob: in each pool that is free and of another kind, or in a new one."""
    size, seen = max(blob.size, 1), set()
    for index, (used, bytes_) in enumerate(way.ends):
        if used >= blob.defined or bytes_ in seen:
            continue
        seen.add(bytes_)
        larger = max(bytes_, size)
        ends = (*way.ends[:index], (blob.used, larger), *way.ends[index + 1 :])
        pools = (*way.pools[:index], (*way.pools[index], blob), *way.pools[index + 1 :])
        yield _Way(way.bytes + larger - bytes_, ends, pools)
    yield _Way(way.bytes + size, (*way.ends, (blob.used, size)), (*way.pools, (blob,)))
