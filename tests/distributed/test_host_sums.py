"""Sums over the processes of a host, on ranks that are threads; tests/mpi_program.py has them between processes."""

import gc
import mmap
import os
import platform
import random
import time

import numpy as np
import pytest

from netbuilder.distributed.transport import host_sums as module
from netbuilder.distributed.transport.host_sums import HostSums, host_sums
from netbuilder.distributed.transport.reductions import narrow, sum_rows
from thread_ranks import on_ranks, thread_worlds

TYPES = ["float32", "float64", "float16", "bfloat16", "int8", "int64", "uint16"]
pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create") or platform.machine() != module.PROCESSOR,
    reason="ranks read one another's memory only on Linux on x86",
)


@pytest.fixture
def small_pieces(monkeypatch):
    """Let small arrays have many pieces."""
    monkeypatch.setattr(module, "_IN_CACHE", 1024)
    monkeypatch.setattr(module, "_LEAST_PIECE", 256)


def given(dtype, size, rank, call):
    values = (10 * np.random.default_rng([rank, call]).normal(size=size)).astype(np.float32)
    if dtype != "bfloat16":
        return values.astype(dtype)
    bits = np.empty(size, np.uint16)
    narrow(values, bits)
    return bits


def in_order(rows, dtype):
    total = np.empty_like(rows[0])
    sum_rows(rows, total, bfloat16=dtype == "bfloat16")
    return total


def waiting(rank=0, pauses=False, begun=None):
    rng = random.Random(rank)

    def wait(is_done, others_have):
        if begun is not None:
            begun.append(others_have)
        while not is_done():
            time.sleep(0)
        if pauses:
            time.sleep(rng.choice([0, 0, 2e-4, 2e-3]))

    return wait


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("pauses", [False, True])
def test_sums_are_those_of_the_ranks_in_order(size, pauses):
    """Of arrays of many sizes, also where a rank is late at any stage: nothing is overwritten that it still reads."""
    calls = [(dtype, count) for dtype in TYPES for count in (1, 7, 64, 250, 1001, 5003)]
    random.Random(size).shuffle(calls)
    shared = mmap.mmap(-1, size * 64)

    def run(rank):
        sums, wait, found = HostSums(shared, rank, size), waiting(rank, pauses), []
        for call, (dtype, count) in enumerate(calls):
            array = given(dtype, count, rank, call)
            sums.add(array, wait, bfloat16=dtype == "bfloat16")
            found.append(array.tobytes())
            array.fill(0)  # as a net does with its gradients
        return found

    results = on_ranks(size, run)
    for call, (dtype, count) in enumerate(calls):
        want = in_order([given(dtype, count, rank, call) for rank in range(size)], dtype).tobytes()
        assert [found[call] == want for found in results] == [True] * size, (dtype, count)


def test_a_wait_knows_whether_all_have_begun():
    begun, shared = [], mmap.mmap(-1, 2 * 64)
    on_ranks(2, lambda rank: HostSums(shared, rank, 2).add(np.ones(9, np.float32), waiting(begun=begun)))
    assert sorted(begun) == [False] * 2 + [True] * 4


def test_a_rank_waits_for_one_that_has_ended_as_in_mpi():
    """What ends the job says who has ended; the others must not be the first to fail."""
    ended = os.fork()
    if not ended:
        os._exit(0)
    os.waitpid(ended, 0)
    shared, waits = mmap.mmap(-1, 2 * 64), []
    sums = HostSums(shared, 0, 2)
    shared[64:88] = np.int64([9, 4096, ended]).tobytes()  # stages, address, process
    with pytest.raises(ProcessLookupError, match="cannot read memory of rank 1: No such process"):
        sums.add(np.ones(9, np.float32), lambda is_done, begun: waits.append((is_done(), begun)))
    assert waits == [(True, False), (False, True)]


def of_threads(size=3):
    worlds = thread_worlds(size)
    return on_ranks(size, lambda rank: host_sums(worlds[rank].communicator))


def test_ranks_of_a_host_find_one_another_and_leave_no_file_open():
    def sums():
        found, arrays = of_threads(), [np.full(10, rank + 1, np.float32) for rank in range(3)]
        on_ranks(3, lambda rank: found[rank].add(arrays[rank], waiting()))
        return arrays

    before = len(os.listdir("/proc/self/fd"))
    assert np.array_equal(sums(), np.full((3, 10), 6))
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def refused(*_):
    raise OSError("refused")


@pytest.mark.parametrize(
    ("where", "name", "replacement"),
    [
        (os, "memfd_create", refused),
        (os, "readlink", lambda path: "/memfd:netbuilder-00 (deleted)"),  # another host's process of this number
        (os, "open", refused),
        (module, "_network", "that of {}".format),
        (platform, "machine", lambda: "aarch64"),
        (HostSums, "_copy_from", lambda *_: -1),  # as where the system does not let a process read another one
        (HostSums, "_copy_from", lambda self, process, address, to, nbytes: nbytes),  # another process has that number
    ],
    ids=["no file", "another file", "not opened", "another network", "another processor", "not read", "other values"],
)
def test_where_ranks_cannot_read_memory_there_are_no_sums(where, name, replacement, monkeypatch):
    monkeypatch.setattr(where, name, replacement)
    assert of_threads() == [None] * 3


def test_what_one_rank_cannot_no_rank_does(monkeypatch):
    opened, results = module._opened, iter([None])
    monkeypatch.setattr(module, "_opened", lambda place: None if next(results, 0) is None else opened(place))
    assert of_threads() == [None] * 3
