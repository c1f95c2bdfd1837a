"""Common worlds as blobs: made, cloned, destroyed; and the barrier."""

import threading

import numpy as np
import pytest

from collective_runs import OBJECT, alone
from netbuilder.distributed.worlds.world import CommonWorld
from netbuilder.ops.collectives.worlds import Barrier, CloneCommonWorld, CreateCommonWorld, DestroyCommonWorld
from netbuilder.proto import ArgumentError, DistributedError, NetError, OperatorError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, i32, refusal
from thread_ranks import on_ranks, thread_worlds


class _World(OperatorSuite):
    no_gradient = "it follows the backward pass"
    left_out = {"test_forward": "it makes or changes an object; see below"}


class TestCreateCommonWorld(_World):
    operator = CreateCommonWorld
    refusals = (
        refusal(
            CreateCommonWorld(size=2, rank=2),
            [],
            r"rank must lie in \[0, size\), got rank=2, size=2; leave out both",
            ArgumentError,
        ),
        refusal(CreateCommonWorld(size=2, rank=-1), [], "got rank=-1, size=2", ArgumentError),
        refusal(CreateCommonWorld(size=1, timeout_ms=0), [], "timeout_ms must be a positive number", ArgumentError),
        refusal(CreateCommonWorld(size=1), [f32(2)], "input 0 must be a kv_handler, got a tensor of type float32"),
    )


class TestCloneCommonWorld(_World):
    operator = CloneCommonWorld
    refusals = (refusal(CloneCommonWorld(), [f32(1)], "must be a common world, got a tensor of type float32"),)


class TestDestroyCommonWorld(_World):
    operator = DestroyCommonWorld
    refusals = (refusal(DestroyCommonWorld(), [f32(1)], "must be a common world"),)


class TestBarrier(_World):
    operator = Barrier
    refusals = (refusal(Barrier(), [i32(1)], "must be a common world, got a tensor of type int32"),)


def run(workspace, op_type, inputs, outputs, **arguments):
    engine = arguments.pop("engine", "")
    op = make_op(op_type, inputs, outputs, **arguments)
    op.engine = engine
    workspace.run_operator_once(op)


@pytest.mark.parametrize("engine", ["", "MPI", "GLOO"])
def test_one_rank_needs_no_library(engine, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mpi4py", None)
    workspace = Workspace()
    run(workspace, "CreateCommonWorld", [], ["cw"], size=1, rank=0, engine=engine)
    run(workspace, "CloneCommonWorld", ["cw"], ["cw2"])
    world, clone = workspace.fetch("cw"), workspace.fetch("cw2")
    assert isinstance(world, CommonWorld) and (world.rank, world.size) == (0, 1) and clone is not world
    run(workspace, "Barrier", ["cw2"], [])
    run(workspace, "DestroyCommonWorld", ["cw"], ["cw"])
    run(workspace, "DestroyCommonWorld", ["cw"], ["cw"])
    with pytest.raises(OperatorError, match="common world 'cw' was destroyed by DestroyCommonWorld"):
        run(workspace, "Barrier", ["cw"], [])


def test_a_kv_handler_is_accepted_as_in_caffe2():
    workspace = Workspace()
    workspace.feed("store", alone())  # any object
    run(workspace, "CreateCommonWorld", ["store"], ["cw"], size=1, rank=0, sync=True, transport="tcp", interface="eth0")
    assert workspace.fetch("cw").size == 1


def test_unknown_engines_are_refused():
    with pytest.raises(ArgumentError, match="engine 'IBVERBS' is not in this version; use 'MPI' or 'NCCL'"):
        run(Workspace(), "CreateCommonWorld", [], ["cw"], size=1, rank=0, engine="IBVERBS")


def test_something_else_than_a_world():
    workspace = Workspace()
    run(workspace, "CreateMutex", [], ["mutex"])
    with pytest.raises(NetError, match="input 0 must be what CreateCommonWorld makes"):
        run(workspace, "Barrier", ["mutex"], [])


def test_nobody_leaves_a_barrier_before_all_have_come():
    worlds, arrived = thread_worlds(3), []
    lock = threading.Lock()

    def work(rank):
        workspace = Workspace()
        workspace.feed("cw", worlds[rank])
        for turn in range(3):
            threading.Event().wait(0.01 * rank)
            with lock:
                arrived.append(turn)
            run(workspace, "Barrier", ["cw"], [])
            assert arrived.count(turn) == 3
        return True

    assert on_ranks(3, work) == [True] * 3


def test_a_clone_has_the_same_ranks_and_other_messages():
    worlds = thread_worlds(2)

    def work(rank):
        workspace = Workspace()
        workspace.feed("cw", worlds[rank])
        workspace.feed("x", np.float32([rank]))
        run(workspace, "CloneCommonWorld", ["cw"], ["cw2"])
        clone = workspace.fetch("cw2")
        run(workspace, "Allreduce", ["cw2", "x"], ["x"])
        run(workspace, "DestroyCommonWorld", ["cw"], ["cw"])
        run(workspace, "Allreduce", ["cw2", "x"], ["x"])
        return clone.rank, clone.size, clone.name, workspace.fetch("x").item()

    assert on_ranks(2, work) == [(0, 2, "cw2", 2), (1, 2, "cw2", 2)]


def test_one_rank_destroys_what_others_still_use():
    worlds = thread_worlds(3)

    def work(rank):
        workspace = Workspace()
        workspace.feed("cw", worlds[rank])
        if rank == 1:
            run(workspace, "DestroyCommonWorld", ["cw"], ["cw"])
        else:
            run(workspace, "Barrier", ["cw"], [])

    for error in on_ranks(3, work):
        assert isinstance(error, DistributedError)
        assert "ranks 0, 2: Barrier (over 'cw'); rank 1: DestroyCommonWorld of 'cw'" in str(error)


def test_specs_without_a_world():
    assert Barrier().infer(OBJECT) == () and CreateCommonWorld(size=1).infer() == (OBJECT,)
