"""Workspaces inside others; steps with workspaces of their own, copies of steps, steps that run by the clock."""

import time

import numpy as np
import pytest

from netbuilder import Workspace
from netbuilder.ops.control.python_op import python_arguments
from netbuilder.proto import BlobError, ExecutionStep, NetDef, PlanDef
from netbuilder.proto.arguments import make_op
from waiting import wait_until


def net(name, *ops):
    made = NetDef(name=name)
    made.op.extend(ops)
    return made


def add_one(blob):
    return make_op("Add", [blob, "one"], [blob])


def run(ws, step, *nets):
    ws.run_plan(PlanDef(name="plan", network=nets, execution_step=[step]))


@pytest.fixture
def ws():
    ws = Workspace()
    ws.feed("one", np.float32([1]))
    ws.feed("seen", np.float32([0]))
    return ws


def test_a_workspace_sees_and_writes_its_parents_blobs(ws):
    child = Workspace(parent=ws)
    child.feed("own", np.float32([5]))
    child.run_net_once(net("n", make_op("Sum", ["seen", "own", "one"], ["seen"])))
    assert (
        ws.fetch("seen").tolist() == [6] and child.blobs() == ["one", "own", "seen"] and ws.blobs() == ["one", "seen"]
    )
    with pytest.raises(BlobError, match="no blob 'own'"):
        ws.fetch("own")
    with pytest.raises(BlobError, match="'seen' is the parent workspace's; remove it there"):
        child.remove("seen")


def test_a_plan_of_a_child_notices_what_happens_to_the_parent(ws):
    child = Workspace(parent=ws)
    child.create_net(net("n", make_op("Relu", ["seen"], ["y"])))
    for value in ([1, -1], [[3, -2, 4]], [7]):
        ws.feed("seen", np.float32(value))
        child.run_net("n")
        assert child.fetch("y").tolist() == np.maximum(value, 0).tolist()


def test_a_step_with_a_workspace_of_its_own(ws):
    own = net("own", make_op("ConstantFill", [], ["x"], shape=[1], value=2.0), add_one("seen"))
    run(ws, ExecutionStep(name="s", network=["own"], create_workspace=True, num_iter=3), own)
    assert ws.fetch("seen").tolist() == [3] and not ws.has("x") and ws.nets() == []


def test_copies_of_a_step_count_each_by_itself(ws):
    ws.run_operator_once(make_op("CreateCounter", [], ["counter"]))
    begin = net("begin", make_op("ConstantFill", [], ["x"], shape=[1], value=0.0))
    count = net("count", add_one("x"), make_op("CountUp", ["counter"], ["before"]))
    body = ExecutionStep(name="body", network=["count"], num_iter=5)
    one = ExecutionStep(name="one", create_workspace=True, substep=[ExecutionStep(name="i", network=["begin"]), body])
    run(ws, ExecutionStep(name="all", substep=[one], num_concurrent_instances=4), begin, count)
    ws.run_operator_once(make_op("RetrieveCount", ["counter"], ["n"]))
    assert ws.fetch("n") == 20 and not ws.has("x")


def test_a_step_by_the_clock_runs_during_the_others_and_once_more(ws):
    twice = python_arguments(lambda inputs, outputs: wait_until(lambda: ws.fetch("seen")[0] >= 2), None, None, False)
    wait = net("wait", make_op("Python", [], [], **twice))
    began = time.monotonic()
    clock = ExecutionStep(name="clock", network=["tick"], run_every_ms=50)
    run(
        ws,
        ExecutionStep(name="s", substep=[clock, ExecutionStep(network=["wait"])]),
        net("tick", add_one("seen")),
        wait,
    )
    assert 3 <= ws.fetch("seen") <= 2 + (time.monotonic() - began) / 0.05


def test_with_a_stop_blob_only_once_is_one_iteration(ws):
    ws.feed("stop", np.array(False))
    inner = ExecutionStep(name="if", network=["n"], should_stop_blob="stop", only_once=True)
    run(ws, ExecutionStep(name="outer", substep=[inner], num_iter=3), net("n", add_one("seen")))
    assert ws.fetch("seen").tolist() == [3]
