"""What communicators do with the primitives of an engine, on ranks that are threads; and a world of one rank."""

import numpy as np
import pytest

from netbuilder.distributed.transport import communicator
from netbuilder.distributed.transport.communicator import OneRank
from netbuilder.distributed.transport.reductions import narrow, widen
from netbuilder.proto import NetError
from thread_ranks import on_ranks, thread_worlds

SIZE = 3
TYPES = [np.float32, np.float64, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16]


def results(function):
    """Return what a function of a communicator returns on each rank."""
    worlds = thread_worlds(SIZE)
    found = on_ranks(SIZE, lambda rank: function(worlds[rank].communicator))
    for each in found:
        if isinstance(each, Exception):
            raise each
    return found


def given(rank, dtype=np.float32, size=11):
    return np.arange(size).astype(dtype) + np.array(rank + 1, dtype)


@pytest.mark.parametrize("dtype", [*TYPES, np.float16])
@pytest.mark.parametrize("deterministic", [False, True])
def test_allreduce(dtype, deterministic):
    def run(comm):
        x = given(comm.rank, dtype).reshape(1, 11)
        comm.allreduce(x, deterministic=deterministic)
        return x, comm.calls

    expected = sum(given(rank, np.float64) for rank in range(SIZE)).reshape(1, 11)
    for x, calls in results(run):
        np.testing.assert_array_equal(x, expected)
        ordered = deterministic or dtype == np.float16
        assert calls == (["alltoall", "allgather"] if ordered else ["allreduce"])


def test_sums_in_the_order_of_ranks_are_made_piece_by_piece(monkeypatch):
    monkeypatch.setattr(communicator, "MOST_AT_ONCE", 4)

    def run(comm):
        x = given(comm.rank)
        comm.allreduce(x, deterministic=True)
        return x, len(comm.calls)

    for x, calls in results(run):
        np.testing.assert_array_equal(x, 3 * np.arange(11) + 6)
        assert calls == 2 * 3


def test_deterministic_sums_are_those_of_the_ranks_in_order():
    terms = np.float32([1e8, 1, -1e8])  # 0 or 1, by the order

    def run(comm):
        x = np.repeat(terms[comm.rank], 5)
        comm.allreduce(x, deterministic=True)
        return x

    for x in results(run):
        assert x.tolist() == [(terms[0] + terms[1]) + terms[2]] * 5


def test_bfloat16_is_rounded_once():
    def run(comm):
        bits, total = np.empty(4, np.uint16), np.empty(4, np.float32)
        narrow(np.float32([256, 1, 2, 3]) if comm.rank == 0 else np.ones(4, np.float32), bits)
        comm.allreduce(bits, bfloat16=True)
        widen(bits, total)
        return total.tolist()

    assert results(run) == [[258, 3, 4, 5]] * SIZE


def test_the_largest():
    def run(comm):
        x = np.int64([comm.rank, -comm.rank])
        comm.allreduce(x, maximum=True)
        return x.tolist()

    assert results(run) == [[SIZE - 1, 0]] * SIZE


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32])
@pytest.mark.parametrize("deterministic", [False, True])
def test_reduce(dtype, deterministic):
    def run(comm):
        x = given(comm.rank, dtype)
        comm.reduce(x, 1, deterministic=deterministic)
        return x

    found = results(run)
    np.testing.assert_array_equal(found[1], sum(given(rank, dtype) for rank in range(SIZE)))
    for rank in (0, 2):
        np.testing.assert_array_equal(found[rank], given(rank, dtype))


@pytest.mark.parametrize("dtype", [*TYPES, np.float16, np.bool_])
def test_broadcast_and_allgather_copy_every_type(dtype):
    def run(comm):
        x = given(comm.rank, dtype).reshape(11, 1)
        own = x[: comm.rank + 1]
        everything = comm.allgather(own, [1, 2, 3])
        same = comm.allgather(x)
        comm.broadcast(x, 2)
        return x, everything, same

    for x, everything, same in results(run):
        np.testing.assert_array_equal(x[:, 0], given(2, dtype))
        np.testing.assert_array_equal(everything, np.concatenate([given(r, dtype)[: r + 1] for r in range(SIZE)]))
        np.testing.assert_array_equal(same, np.concatenate([given(r, dtype) for r in range(SIZE)]))


def test_reduce_scatter_with_unequal_parts():
    counts = [5, 0, 6]
    found = results(lambda comm: comm.reduce_scatter(given(comm.rank), counts))
    np.testing.assert_array_equal(np.concatenate(found), 3 * np.arange(11) + 6)
    assert [part.size for part in found] == counts


def test_empty_arrays_need_no_call():
    def run(comm):
        empty = np.zeros(0, np.float32)
        comm.allreduce(empty)
        comm.reduce(empty, 0)
        comm.broadcast(empty, 0)
        assert comm.allgather(empty).size == comm.reduce_scatter(empty, [0] * SIZE).size == 0
        return comm.calls

    assert results(run) == [[]] * SIZE


def test_split_and_clone():
    def run(comm):
        part = comm.split(comm.rank % 2, -comm.rank)
        copy = comm.clone()
        return part.rank, part.size, copy.rank, copy.size

    assert results(run) == [(1, 2, 0, 3), (0, 1, 1, 3), (0, 2, 2, 3)]


def test_one_rank_keeps_its_values():
    comm, x = OneRank(), np.float32([1, 2])
    comm.allreduce(x, deterministic=True)
    comm.reduce(x, 0)
    comm.broadcast(x, 0)
    comm.barrier()
    assert comm.allgather(x).tolist() == comm.reduce_scatter(x, [2]).tolist() == x.tolist() == [1, 2]
    assert comm.allgather(x) is not x
    with pytest.raises(NetError, match="no other rank"):
        comm.send(x, 0)


@pytest.mark.parametrize("counts", [[1], [2, 0], [3, -1]])
def test_counts_must_fit(counts):
    with pytest.raises(NetError, match="counts must be 1 numbers of elements, 2 together"):
        OneRank().reduce_scatter(np.zeros(2, np.float32), counts)
    with pytest.raises(NetError, match="rank 0 gives 2 elements, and counts says"):
        OneRank().allgather(np.zeros(2, np.float32), [5])
