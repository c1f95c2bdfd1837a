"""Iter, AtomicIter, CreateMutex."""

import threading

import numpy as np
import pytest
from hypothesis import strategies as st

from netbuilder.ops.core.operator import STRING, TensorSpec, decode
from netbuilder.ops.updates.iteration import AtomicIter, CreateMutex, Iter
from netbuilder.proto import NetDef, NetError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, i64, refusal

MUTEX = TensorSpec((), STRING)


class TestIter(OperatorSuite):
    operator = Iter
    no_gradient = "a counter"
    refusals = (
        refusal(Iter(), [f32(1)], "iter must have elements of type int32 or int64, got float32", n_out=1),
        refusal(Iter(), [i64(2)], r"got shape \(2,\)", n_out=1),
    )

    def draw(self, data):
        count = data.draw(st.none() | st.integers(0, 2**40))
        return Iter(), [] if count is None else [np.int64([count])]

    def reference(self, op, *counter):
        return [counter[0] + 1 if counter else np.int64([1])]


class TestAtomicIter(OperatorSuite):
    operator = AtomicIter
    no_gradient = "a counter"
    refusals = (
        refusal(AtomicIter(), [MUTEX, f32(1)], "iter must have elements of type int32 or int64, got float32", n_out=1),
    )

    def draw(self, data):
        return AtomicIter(), [threading.Lock(), np.int64([data.draw(st.integers(0, 2**40))])]

    def reference(self, op, mutex, counter):
        return [counter + 1]


class TestCreateMutex(OperatorSuite):
    operator = CreateMutex
    no_gradient = "makes an object"
    refuses_nothing = "it takes no input and no argument"

    def draw(self, data):
        return CreateMutex(), []

    def test_forward(self):
        workspace = Workspace()
        workspace.run_operator_once(make_op("CreateMutex", [], ["mutex"]))
        mutex = workspace.fetch("mutex")
        assert mutex.acquire(blocking=False)
        assert not mutex.acquire(blocking=False)
        mutex.release()


def test_a_counter_is_changed_in_place_only():
    with pytest.raises(NetError, match="output 0 must overwrite input 0 \\('it'\\), got 'other'"):
        decode(Iter, make_op("Iter", ["it"], ["other"]))
    with pytest.raises(NetError, match="output 0 must overwrite input 1"):
        decode(AtomicIter, make_op("AtomicIter", ["mutex", "it"], ["other"]))


def test_a_counter_without_input_starts_at_one_and_goes_on():
    workspace = Workspace()
    net = NetDef(name="count", op=[make_op("Iter", [], ["it"])])
    workspace.create_net(net)
    workspace.run_net("count")
    np.testing.assert_array_equal(workspace.fetch("it"), [1])
    workspace.run_net("count", 3)
    np.testing.assert_array_equal(workspace.fetch("it"), [4])


def test_a_net_counts_its_runs_under_a_mutex():
    workspace = Workspace()
    workspace.run_operator_once(make_op("CreateMutex", [], ["mutex"]))
    workspace.feed("it", np.int64([0]))
    workspace.create_net(NetDef(name="count", op=[make_op("AtomicIter", ["mutex", "it"], ["it"])]))
    workspace.run_net("count", 5)
    np.testing.assert_array_equal(workspace.fetch("it"), [5])


def test_the_statistics_of_the_process_count_the_runs():
    workspace = Workspace()
    workspace.feed("counted", np.int64([7]))
    workspace.run_operator_once(make_op("CreateMutex", [], ["mutex"]))
    count = NetDef(name="count", op=[make_op("AtomicIter", ["mutex", "counted"], ["counted"])])
    workspace.create_net(count)
    workspace.run_net("count", 5)
    workspace.run_net_once(count)
    workspace.run_operator_once(make_op("StatRegistryExport", [], ["names", "numbers", "times"]))
    found = dict(zip(workspace.fetch("names").tolist(), workspace.fetch("numbers").tolist()))
    assert found[b"atomic_iter/stats/counted/num_iter"] == 6
