"""What NCCL and GPUs fail at outside of a call: in a wait, between collectives, before and while ranks connect."""

import os
import threading
import time

import numpy as np
import pytest

from netbuilder.distributed.stores import MemoryStore
from netbuilder.distributed.transport import time_limits
from netbuilder.distributed.transport.nccl_communicator import connect_by_nccl
from netbuilder.distributed.transport.start import meet
from netbuilder.distributed.transport.time_limits import TimeLimits
from netbuilder.distributed.worlds import world
from netbuilder.engines.gpu import gpu
from netbuilder.proto import DeviceError, DistributedError, StoreTimeoutError
from on_gpu import gpus
from thread_ranks import on_ranks


@pytest.fixture
def two_ranks():
    """The communicators of two ranks, which are threads with a GPU each."""
    with gpus(2):
        store = MemoryStore()
        yield on_ranks(2, lambda rank: connect_by_nccl(store, 2, rank, [rank], "run"))


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(time_limits, "given_limits", TimeLimits(0.2, 0.2, 0.2))


@pytest.mark.emulated
def test_a_gpu_that_fails_ends_the_wait_for_it(two_ranks, monkeypatch):
    """CuPy's ``Stream.done`` would be False for ever."""
    monkeypatch.setattr(gpu(0).xp.cuda.runtime, "streamQuery", lambda stream: 700)
    errors = on_ranks(2, lambda rank: two_ranks[rank].allreduce(np.ones(2, np.float32)))
    for rank, error in enumerate(errors):
        assert isinstance(error, DistributedError) and f"rank {rank} of 2: GPU {rank} has failed: " in str(error)


@pytest.mark.emulated
def test_errors_of_all_communicators_are_found(two_ranks):
    first, _ = two_ranks
    assert first.failure() == ""
    first._connected["another"] = first.own_ranks
    first.clone().own_ranks.group.communicators[0].abort()
    assert "rank 0 of 2: NCCL has failed on GPU 0: NCCL_ERROR_REMOTE_ERROR" in first.failure()


@pytest.mark.emulated
def test_a_process_ends_without_waiting_for_its_communicators(two_ranks, monkeypatch):
    statuses = []
    monkeypatch.setattr(os, "_exit", statuses.append)
    monkeypatch.setattr(type(two_ranks[0].raw_communicator), "abort", lambda raw: time.sleep(100))
    two_ranks[0].abort(3)
    assert statuses == [3]


@pytest.mark.emulated
def test_a_rank_without_its_gpu_is_an_error_of_all():
    store = MemoryStore()
    with gpus(1):
        for error in on_ranks(2, lambda rank: connect_by_nccl(store, 2, rank, [7 * rank], "run")):
            assert isinstance(error, DeviceError)
            assert "rank 1 of 2 cannot connect: there is no GPU 7" in str(error)


@pytest.mark.emulated
def test_a_rank_that_does_not_come_is_named_before_nccl_waits_for_it(short):
    with gpus(1), pytest.raises(StoreTimeoutError, match="rank 0 of 2 has waited .* s for rank 1, which has not begun"):
        connect_by_nccl(MemoryStore(), 2, 0, [0], "run")


def test_a_rank_that_has_ended_is_not_waited_for():
    store = MemoryStore()
    store.set("ended/2", b"")
    store.add("ended")
    meeting = [lambda rank=rank: meet(store, 3, rank) for rank in range(2)]
    for error in on_ranks(2, lambda rank: meeting[rank]()):
        assert isinstance(error, DistributedError) and "rank 2 of 3 has ended without one" in str(error)


def test_nccl_connects_no_longer_than_the_limit(short, monkeypatch):
    monkeypatch.setattr(world, "_process", world._Process())
    hangs = threading.Event()
    monkeypatch.setattr(world, "connect_by_nccl", lambda *args: hangs.wait(100))
    with pytest.raises(DistributedError, match="rank 0 of 2 has waited 0.4 s for NCCL to connect the ranks"):
        world.create_world("cw", 2, 0, store=MemoryStore(), gpus=(0,))
    hangs.set()
