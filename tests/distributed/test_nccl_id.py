"""NCCL's unique id through a store, with a double for NCCL."""

import sys
import types

import pytest

from netbuilder.distributed.stores import MemoryStore
from netbuilder.distributed.transport.nccl_id import shared_unique_id
from netbuilder.engines.nccl import nccl_available
from netbuilder.proto import DeviceError, DistributedError, StoreTimeoutError


@pytest.fixture
def nccl(monkeypatch):
    found = types.ModuleType("cupy.cuda.nccl")
    found.available = True
    found.get_unique_id = lambda: bytes(range(128))
    for name in ("cupy", "cupy.cuda"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", found)
    return found


def test_all_ranks_have_the_id_of_the_first(nccl):
    assert nccl_available()
    store = MemoryStore()
    first = shared_unique_id(store, 0, "world")
    assert first == bytes(range(128))
    assert shared_unique_id(store, 1, "world") == shared_unique_id(store, 2, "world") == first


def test_another_world_has_another_key(nccl):
    store = MemoryStore()
    shared_unique_id(store, 0, "world")
    shared_unique_id(store, 0, "second world")
    with pytest.raises(DistributedError, match="NCCL's id of common world 'world' is in the store in memory already"):
        shared_unique_id(store, 0, "world")
    with pytest.raises(StoreTimeoutError, match="key 'nccl/third' did not appear"):
        shared_unique_id(store, 1, "third", timeout=0.05)
    store.set("nccl/third", b"short")
    with pytest.raises(DistributedError, match="must hold NCCL's id of 128 bytes, got 5"):
        shared_unique_id(store, 1, "third")


def test_a_rank_without_nccl_tells_the_others(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", None)
    assert not nccl_available()
    store = MemoryStore()
    for rank in (0, 1):
        with pytest.raises(DeviceError, match="rank 0 has no NCCL; pip install 'nvidia-nccl-cu1[23]'"):
            shared_unique_id(store, rank, "world")
