"""Sums through shared memory, on ranks that are threads; tests/mpi_program.py has them between processes."""

import gc
import mmap
import os
import platform
import random
import time

import numpy as np
import pytest

from netbuilder.distributed.transport import shared_memory
from netbuilder.distributed.transport.reductions import narrow, sum_rows
from netbuilder.distributed.transport.shared_memory import SharedSums, share_memory
from thread_ranks import on_ranks, thread_worlds

TYPES = ["float32", "float64", "float16", "bfloat16", "int8", "int64", "uint16"]
pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create") or platform.machine() != shared_memory.PROCESSOR,
    reason="ranks share memory only on Linux on x86",
)


@pytest.fixture
def small_pieces(monkeypatch):
    """Let small arrays have many pieces, and parts of more than one step."""
    monkeypatch.setattr(shared_memory, "_AT_ONCE", 1000)
    monkeypatch.setattr(shared_memory, "_IN_CACHE", 128)


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


def waiting(rank, pauses):
    rng = random.Random(rank)

    def wait(is_done, begun):
        while not is_done():
            time.sleep(0)
        if pauses:
            time.sleep(rng.choice([0, 0, 2e-4, 2e-3]))

    return wait


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("pauses", [False, True])
def test_sums_are_those_of_the_ranks_in_order(size, pauses):
    """Of calls of one piece and of many, also where a rank is late at any stage: its memory is not overwritten."""
    calls = [(dtype, count) for dtype in TYPES for count in (1, 7, 64, 250, 1001, 5003)]
    random.Random(size).shuffle(calls)
    memory = mmap.mmap(-1, SharedSums.bytes_for(size))

    def run(rank):
        sums, found = SharedSums(memory, rank, size), []
        for call, (dtype, count) in enumerate(calls):
            array = given(dtype, count, rank, call)
            sums.add(array, waiting(rank, pauses), bfloat16=dtype == "bfloat16")
            found.append(array)
        return found

    results = on_ranks(size, run)
    for call, (dtype, count) in enumerate(calls):
        want = in_order([given(dtype, count, rank, call) for rank in range(size)], dtype).tobytes()
        assert [found[call].tobytes() == want for found in results] == [True] * size, (dtype, count)


def test_a_wait_knows_whether_all_have_begun():
    begun, memory = [], mmap.mmap(-1, SharedSums.bytes_for(2))

    def run(rank):
        sums = SharedSums(memory, rank, 2)

        def wait(is_done, others_have):
            begun.append(others_have)
            waiting(rank, False)(is_done, others_have)

        sums.add(np.ones(5_000_000, np.float32), wait)  # five pieces

    on_ranks(2, run)
    assert sorted(begun) == [False] * 2 + [True] * 10


def shared(size=3):
    worlds = thread_worlds(size)
    return on_ranks(size, lambda rank: share_memory(worlds[rank].communicator))


def test_ranks_of_a_host_share_memory_and_leave_no_file_open():
    def sums():
        found = shared()
        arrays = [np.full(10, rank + 1, np.float32) for rank in range(3)]
        on_ranks(3, lambda rank: found[rank].add(arrays[rank], waiting(rank, False)))
        return arrays

    before = len(os.listdir("/proc/self/fd"))
    assert np.array_equal(sums(), np.full((3, 10), 6))
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def refused(*_):
    raise OSError("refused")


@pytest.mark.parametrize(
    ("module", "name", "replacement"),
    [
        (os, "memfd_create", refused),
        (os, "readlink", lambda path: "/memfd:netbuilder-00 (deleted)"),  # another host's process of this number
        (os, "open", refused),
        (mmap, "mmap", refused),
        (platform, "machine", lambda: "aarch64"),
    ],
    ids=["no file", "another file", "not opened", "not mapped", "another processor"],
)
def test_where_one_rank_cannot_no_rank_does(module, name, replacement, monkeypatch):
    monkeypatch.setattr(module, name, replacement)
    assert shared() == [None] * 3


def test_processes_of_different_networks_are_as_on_different_hosts(monkeypatch):
    monkeypatch.setattr(shared_memory, "_network", lambda process: f"that of {process}")
    assert shared() == [None] * 3


def test_the_others_do_not_share_what_one_cannot_map(monkeypatch):
    opened = shared_memory._opened
    results = iter([None])
    monkeypatch.setattr(shared_memory, "_opened", lambda place: None if next(results, 0) is None else opened(place))
    assert shared() == [None] * 3
