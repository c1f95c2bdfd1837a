"""Arrays divided among ranks: equal parts in order, with each rule for the remainder."""

import numpy as np
import pytest

from netbuilder.data import data_partition
from netbuilder.proto import NetError, ShapeError


def parts(count, world, **options):
    x, y = np.arange(3 * count).reshape(count, 3), np.arange(count) + 100
    found = [data_partition(x, y, rank, world, **options) for rank in range(world)]
    for rows, labels in found:
        np.testing.assert_array_equal(rows[:, 0] // 3 + 100, labels)
    return [labels.tolist() for _, labels in found], all(np.shares_memory(rows, x) for rows, _ in found)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 7])
def test_parts_are_even_and_in_order(world):
    count = 17
    found, same_memory = parts(count, world)
    assert {len(part) for part in found} == {count // world} and same_memory
    assert sum(found, []) == [100 + k for k in range(count // world * world)]
    repeated, _ = parts(count, world, remainder="repeat")
    each = -(-count // world)
    assert sum(repeated, []) == [100 + k % count for k in range(each * world)]


def test_strict_takes_only_what_parts_evenly():
    assert parts(6, 3, remainder="strict")[0] == parts(6, 3)[0] == [[100, 101], [102, 103], [104, 105]]
    with pytest.raises(NetError, match="cannot be split evenly over 3 ranks, 1 are left over; give remainder="):
        parts(7, 3, remainder="strict")


def test_more_ranks_than_samples():
    assert parts(2, 5, remainder="repeat")[0] == [[100], [101], [100], [101], [100]]
    for rule in ("drop", "strict"):
        with pytest.raises(NetError, match="2 samples are too few for 5 ranks; use fewer ranks, or remainder="):
            parts(2, 5, remainder=rule)
    with pytest.raises(NetError, match="0 samples are too few for 1 ranks; use fewer ranks$"):
        parts(0, 1, remainder="repeat")


@pytest.mark.parametrize(("rank", "world"), [(2, 2), (-1, 2), (0, 0), (5, 3)])
def test_rank_out_of_range(rank, world):
    with pytest.raises(ValueError, match=rf"rank must be in \[0, world_size\), got {rank} of {world}"):
        data_partition(np.zeros(9), np.zeros(9), rank, world)


def test_what_does_not_fit():
    with pytest.raises(ShapeError, match="the same number of samples, got 3 and 4"):
        data_partition(np.zeros(3), np.zeros(4), 0, 2)
    with pytest.raises(NetError, match=r"one of \['drop', 'strict', 'repeat'\], got 'pad'"):
        data_partition(np.zeros(3), np.zeros(3), 0, 2, remainder="pad")
    with pytest.raises(TypeError):
        data_partition(np.zeros(3), np.zeros(3), 0.5, 2)
