"""Operators on stores: what one process stores, another reads; waits and errors."""

import sys
import threading

import numpy as np
import pytest

from collective_runs import OBJECT
from netbuilder.distributed.stores import MemoryStore
from netbuilder.ops.collectives.stores import (
    FileStoreHandlerCreate,
    RedisStoreHandlerCreate,
    StoreAdd,
    StoreGet,
    StoreHandler,
    StoreSet,
    StoreWait,
)
from netbuilder.proto import ArgumentError, DeviceError, NetError, OperatorError, StoreTimeoutError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, refusal


class _OnStore(OperatorSuite):
    no_gradient = "it works on a store"
    left_out = {"test_forward": "it works on a store; see below"}


class TestFileStoreHandlerCreate(_OnStore):
    operator = FileStoreHandlerCreate
    refusals = (refusal(FileStoreHandlerCreate(), [], "path must name a folder, got ''", ArgumentError),)


class TestRedisStoreHandlerCreate(_OnStore):
    operator = RedisStoreHandlerCreate
    refusals = (
        refusal(RedisStoreHandlerCreate(), [], "host must name a server", ArgumentError),
        refusal(RedisStoreHandlerCreate(host="a", port=0), [], r"port lie in \[1, 65535\]", ArgumentError),
    )


class TestStoreSet(_OnStore):
    operator = StoreSet
    refusals = (refusal(StoreSet(), [f32(2), f32(2)], "input 0 must be a store, got a tensor of type float32"),)


class TestStoreGet(_OnStore):
    operator = StoreGet
    refusals = (refusal(StoreGet(), [f32(2)], "input 0 must be a store"),)


class TestStoreAdd(_OnStore):
    operator = StoreAdd
    refusals = (
        refusal(StoreAdd(), [OBJECT], "blob_name must be the key of the number, got ''", ArgumentError),
        refusal(StoreAdd(blob_name="n"), [f32(2)], "input 0 must be a store"),
    )


class TestStoreWait(_OnStore):
    operator = StoreWait
    refusals = (
        refusal(StoreWait(), [OBJECT], "give the keys either by blob_name or by an input", ArgumentError),
        refusal(StoreWait(blob_name=("a",)), [OBJECT, OBJECT], "and 1 such inputs", ArgumentError),
        refusal(StoreWait(), [OBJECT, f32(2)], "names must be strings, got a tensor of type float32"),
    )


def run(workspace, op_type, inputs, outputs, **arguments):
    workspace.run_operator_once(make_op(op_type, inputs, outputs, **arguments))


@pytest.fixture
def processes(tmp_path):
    """Two workspaces with stores in one folder, as two processes have them."""
    found = [Workspace(), Workspace()]
    for workspace in found:
        run(workspace, "FileStoreHandlerCreate", [], ["store"], path=str(tmp_path), prefix="run7")
    return found


@pytest.mark.parametrize(
    "value",
    [*(np.arange(6).reshape(2, 3).astype(t) for t in "f2 f4 f8 i1 u1 i2 u2 i4 i8 ?".split()), np.zeros((0, 4), "f4")],
    ids=lambda value: str(value.dtype),
)
def test_what_one_process_sets_another_gets(processes, value):
    one, other = processes
    one.feed("x", value)
    run(one, "StoreSet", ["store", "x"], [])
    run(other, "StoreGet", ["store"], ["x"])
    run(other, "StoreGet", ["store"], ["y"], blob_name="x")
    for name in ("x", "y"):
        assert other.fetch(name).dtype == value.dtype
        np.testing.assert_array_equal(other.fetch(name), value)


def test_strings_and_other_keys(processes):
    one, other = processes
    one.feed("x", np.array([b"a", b"\0bc"], object))
    one.feed("text", b"one string")
    run(one, "StoreSet", ["store", "x"], [], blob_name="a/key with ü")
    run(one, "StoreSet", ["store", "text"], [])
    run(other, "StoreGet", ["store"], ["y"], blob_name="a/key with ü")
    run(other, "StoreGet", ["store"], ["text"])
    assert other.fetch("y").tolist() == [b"a", b"\0bc"]
    assert np.asarray(other.fetch("text")).item() == b"one string"


def test_a_counter(processes):
    for turn, workspace in enumerate([*processes, *processes], start=1):
        run(workspace, "StoreAdd", ["store"], ["n"], blob_name="count", add_value=3)
        n = workspace.fetch("n")
        assert (n.dtype, n.tolist()) == (np.int64, [3 * turn])


def test_get_and_wait_wait(processes):
    one, other = processes
    one.feed("x", np.float32([1]))
    other.feed("names", np.array([b"x", b"also"], object))
    for delay, name in ((0.1, "x"), (0.2, "also")):
        threading.Timer(delay, run, (one, "StoreSet", ["store", "x"], []), {"blob_name": name}).start()
    run(other, "StoreGet", ["store"], ["x"], timeout_secs=20.0)
    run(other, "StoreWait", ["store", "names"], [], timeout_secs=20.0)
    run(other, "StoreWait", ["store"], [], blob_name=["x", "also"], timeout_secs=0.0)
    assert other.fetch("x").tolist() == [1]


def test_a_key_that_never_comes(processes):
    for op in (
        make_op("StoreGet", ["store"], ["x"], timeout_secs=0.1),
        make_op("StoreWait", ["store"], [], blob_name=["x"], timeout_secs=0.1),
    ):
        with pytest.raises(StoreTimeoutError, match=r"operator 0: Store(Get|Wait).*x' did not appear") as error:
            processes[0].run_operator_once(op)
        assert isinstance(error.value, OperatorError) and isinstance(error.value.__cause__, StoreTimeoutError)


def test_what_is_no_record_of_a_blob():
    workspace, store = Workspace(), MemoryStore()
    workspace.feed("store", StoreHandler(store))
    store.set("x", b"\xff\xff")
    with pytest.raises((NetError, OperatorError), match="key 'x' of "):
        run(workspace, "StoreGet", ["store"], ["x"])


def test_something_else_than_a_store():
    workspace = Workspace()
    run(workspace, "CreateMutex", [], ["mutex"])
    with pytest.raises(NetError, match="StoreGet: input 0 must be what FileStoreHandlerCreate makes"):
        run(workspace, "StoreGet", ["mutex"], ["x"])


def test_redis_needs_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(DeviceError, match=r"netbuilder-nn\[redis\]"):
        run(Workspace(), "RedisStoreHandlerCreate", [], ["store"], host="localhost")


def test_a_common_world_takes_a_store_as_in_caffe2(processes):
    run(processes[0], "CreateCommonWorld", ["store"], ["cw"], size=1, rank=0)
    assert processes[0].fetch("cw").size == 1
