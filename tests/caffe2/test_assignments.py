"""Blobs in slots that share memory, against all ways to assign them."""

import numpy as np

from netbuilder.caffe2.assignments import least_memory
from netbuilder.graph.lifetimes import Lifetime
from netbuilder.passes.share_memory import best_fit

PLACE = (0, 0)


def bytes_of(pools):
    return sum(max(blob.nbytes for blob in pool) for pool in pools)


def smallest(blobs, pools=()):
    """The least bytes over all ways, tried one by one."""
    if not blobs:
        return bytes_of(pools)
    first, rest = blobs[0], blobs[1:]
    ways = [smallest(rest, (*pools, (first,)))]
    for index, pool in enumerate(pools):
        if pool[-1].end < first.start:
            ways.append(smallest(rest, (*pools[:index], (*pool, first), *pools[index + 1 :])))
    return min(ways)


def test_less_than_the_best_fit():
    """The third blob fits the second one's memory best; but then the fourth, as large as that, needs new one."""
    sizes = {"a": (0, 1, 10), "b": (0, 1, 100), "c": (2, 5, 60), "d": (3, 5, 100)}
    blobs = [Lifetime(name, first, last, PLACE, size) for name, (first, last, size) in sizes.items()]
    assert bytes_of(best_fit(blobs)) == 200
    pools = least_memory(blobs)
    assert bytes_of(pools) == 160
    assert sorted(sorted(blob.key for blob in pool) for pool in pools) == [["a", "c"], ["b", "d"]]


def test_the_least_there_is():
    rng = np.random.default_rng(0)
    for _ in range(20):
        blobs = []
        for number in range(7):
            defined = int(rng.integers(0, 8))
            blobs.append(
                Lifetime(str(number), defined, defined + int(rng.integers(1, 4)), PLACE, int(rng.integers(1, 9)))
            )
        blobs.sort(key=lambda blob: blob.start)
        pools = least_memory(blobs)
        assert sorted(blob.key for pool in pools for blob in pool) == sorted(blob.key for blob in blobs)
        assert all(one.end < other.start for pool in pools for one, other in zip(pool, pool[1:]))
        assert bytes_of(pools) == smallest(blobs) <= bytes_of(best_fit(blobs))


def test_devices_do_not_share():
    blobs = [Lifetime("a", 0, 1, PLACE), Lifetime("b", 2, 3, (1, 0)), Lifetime("c", 4, 5, PLACE)]
    assert [[blob.key for blob in pool] for pool in least_memory(blobs)] == [["a", "c"], ["b"]]
    assert least_memory([]) == []


def test_many_blobs_take_little_time():
    blobs = [Lifetime(str(k), k, k + 3 + k % 5, PLACE, 1 + k % 11) for k in range(60)]
    assert bytes_of(least_memory(blobs)) <= bytes_of(best_fit(blobs))
