"""Pools of blobs that share memory, against all ways to deal them out."""

import numpy as np

from netbuilder.passes.pools import least_memory
from netbuilder.passes.share_memory import LiveBlob, best_fit

PLACE = (0, 0)


def bytes_of(pools):
    return sum(max(blob.size for blob in pool) for pool in pools)


def smallest(blobs, pools=()):
    """The least bytes over all ways, tried one by one."""
    if not blobs:
        return bytes_of(pools)
    first, rest = blobs[0], blobs[1:]
    ways = [smallest(rest, (*pools, (first,)))]
    for index, pool in enumerate(pools):
        if pool[-1].used < first.defined:
            ways.append(smallest(rest, (*pools[:index], (*pool, first), *pools[index + 1 :])))
    return min(ways)


def test_less_than_the_best_fit():
    """The third blob fits the second one's memory best; but then the fourth, as large as that, needs new one."""
    sizes = {"a": (0, 1, 10), "b": (0, 1, 100), "c": (2, 5, 60), "d": (3, 5, 100)}
    blobs = [LiveBlob(name, first, last, PLACE, size) for name, (first, last, size) in sizes.items()]
    assert bytes_of(best_fit(blobs)) == 200
    pools = least_memory(blobs)
    assert bytes_of(pools) == 160
    assert sorted(sorted(blob.name for blob in pool) for pool in pools) == [["a", "c"], ["b", "d"]]


def test_the_least_there_is():
    rng = np.random.default_rng(0)
    for _ in range(20):
        blobs = []
        for number in range(7):
            defined = int(rng.integers(0, 8))
            blobs.append(
                LiveBlob(str(number), defined, defined + int(rng.integers(1, 4)), PLACE, int(rng.integers(1, 9)))
            )
        blobs.sort(key=lambda blob: blob.defined)
        pools = least_memory(blobs)
        assert sorted(blob.name for pool in pools for blob in pool) == sorted(blob.name for blob in blobs)
        assert all(one.used < other.defined for pool in pools for one, other in zip(pool, pool[1:]))
        assert bytes_of(pools) == smallest(blobs) <= bytes_of(best_fit(blobs))


def test_devices_do_not_share():
    blobs = [LiveBlob("a", 0, 1, PLACE), LiveBlob("b", 2, 3, (1, 0)), LiveBlob("c", 4, 5, PLACE)]
    assert [[blob.name for blob in pool] for pool in least_memory(blobs)] == [["a", "c"], ["b"]]
    assert least_memory([]) == []


def test_many_blobs_take_little_time():
    blobs = [LiveBlob(str(k), k, k + 3 + k % 5, PLACE, 1 + k % 11) for k in range(60)]
    assert bytes_of(least_memory(blobs)) <= bytes_of(best_fit(blobs))
