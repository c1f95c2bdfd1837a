"""Processes that have different numbers of batches: an error on all, or the result of all samples in one process."""

import numpy as np
import pytest

from netbuilder.graph.devices import Devices
from netbuilder.graph.replicas import Replicas, World
from netbuilder.parallel import ProcessBatch, process_batches
from netbuilder.parallel.distributed import ProcessGroup
from netbuilder.parallel.shares import SHARE_WEIGHT, own_samples, split_batch
from netbuilder.proto import PROTO_CPU, DistributedError, NetError, ShapeError
from thread_ranks import on_ranks, thread_worlds


def batches(rank, sizes):
    return [{"x": np.full((size, 2), 10 * rank + step)} for step, size in enumerate(sizes)]


def read(sizes, **options):
    """Return for each rank the batches that it gets, or its error."""
    worlds = thread_worlds(len(sizes))

    def run(rank):
        return list(process_batches(batches(rank, sizes[rank]), ProcessGroup.over(worlds[rank]), **options))

    return on_ranks(len(sizes), run)


def test_numbers_of_samples_are_added():
    found = read([[3, 2], [1, 4], [2, 2]])
    assert [[(batch.samples, batch.samples_of_all) for batch in each] for each in found] == [
        [(3, 6), (2, 8)],
        [(1, 6), (4, 8)],
        [(2, 6), (2, 8)],
    ]


def test_an_error_on_all_processes_at_once():
    text = "ranks 0, 2 of the processes have no batch after 1 steps, and others have"
    for error in read([[3], [1, 4], [2]]):
        assert isinstance(error, DistributedError) and str(error).startswith(text)
    for error in read([[3], []], join=True):
        assert isinstance(error, DistributedError) and "rank 1 of the processes have no batch at all" in str(error)


def test_an_error_of_a_source_reaches_the_others():
    worlds = thread_worlds(2)

    def failing(rank):
        yield from batches(rank, [2])
        if rank == 1:
            raise OSError("no more images")
        yield from batches(rank, [2])

    first, second = on_ranks(2, lambda rank: list(process_batches(failing(rank), ProcessGroup.over(worlds[rank]))))
    assert isinstance(second, OSError)
    assert isinstance(first, DistributedError) and "rank 1 of 2 has failed (OSError: no more images)" in str(first)


def test_those_that_have_ended_take_part_with_weight_0():
    found = read([[3], [1, 4, 5], [2, 2]], join=True)
    assert [len(each) for each in found] == [3, 3, 3]
    for step, total in enumerate((6, 6, 5)):
        assert all(each[step].samples_of_all == total for each in found)
        weights = []
        for rank, each in enumerate(found):
            record = Replicas(Devices(PROTO_CPU, (0, 1)), losses=(("a",), ("b",)), world=World(6, 2 * rank, rank))
            (share,) = split_batch(each[step], ["x"], record)
            assert len(share["x"]) == max(share.samples, 2) or share.samples == 1
            weights.append(share[SHARE_WEIGHT])
            if not each[step].samples:
                assert (share["x"] == each[step]["x"][0]).all() and share["x"][0, 0] // 10 == rank
                assert not share[SHARE_WEIGHT].any() and not len(share.given["x"])
        np.testing.assert_allclose(np.concatenate(weights).sum(), 6, rtol=1e-6)


@pytest.mark.parametrize("steps", (1, 2, 3))
@pytest.mark.parametrize("samples", (1, 2, 5, 7, 12))
def test_own_samples_are_split_as_those_of_the_whole_batch(samples, steps):
    whole = {"x": np.arange(samples)}
    for rank in range(3):
        record = Replicas(
            Devices(PROTO_CPU, (0, 1)), losses=(("a",), ("b",)), accumulate_steps=steps, world=World(6, 2 * rank, rank)
        )
        own = own_samples(samples, record)
        given = own if len(own) else np.arange(1)
        parts = split_batch(ProcessBatch({"x": given}, samples, empty=not len(own)), ["x"], record)
        for part, want in zip(parts, split_batch(whole, ["x"], record), strict=True):
            np.testing.assert_array_equal(part.given["x"], want.given["x"])
            np.testing.assert_array_equal(part[SHARE_WEIGHT], want[SHARE_WEIGHT])
            assert part["x"].shape == want["x"].shape


def test_bad_batches():
    with pytest.raises(NetError, match="samples_of_all must be the number of samples of all processes, got 2"):
        ProcessBatch({"x": np.zeros(3)}, 2)
    with pytest.raises(ShapeError, match="at least one sample"):
        ProcessBatch({"x": np.zeros((0, 2))}, 2)
    with pytest.raises(ShapeError, match="at least one sample"):
        list(process_batches([{"x": np.zeros((0, 2))}], ProcessGroup()))
