"""AsyncNetBarrier and UnsafeCoalesce: blobs as they are, and blobs that share memory."""

import numpy as np
import pytest

from netbuilder.ops.arrange.coalesce import AsyncNetBarrier, UnsafeCoalesce
from netbuilder.proto import NetDef, NetError, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, floats, refusal


class TestAsyncNetBarrier(OperatorSuite):
    operator = AsyncNetBarrier
    no_gradient = "it orders operators"
    refusals = (
        refusal(AsyncNetBarrier(), [f32(2)], "output i is input i, up to 1000; got 1 inputs", NetError, n_out=2),
    )

    def draw(self, data):
        return AsyncNetBarrier().with_arity(2, 2), [data.draw(floats((0, 3), 2)), data.draw(floats(2))]

    def reference(self, op, *xs):
        return list(xs)


class TestUnsafeCoalesce(OperatorSuite):
    operator = UnsafeCoalesce
    no_gradient = "as in Caffe2"
    refusals = (
        refusal(UnsafeCoalesce(), [f32(2)], "one output per input, and one more for the vector", NetError, n_out=1),
    )

    def draw(self, data):
        return UnsafeCoalesce().with_arity(2, 3), [data.draw(floats((0, 3), 2)), data.draw(floats((0, 4)))]

    def reference(self, op, *xs):
        return [*xs, np.concatenate([x.reshape(-1) for x in xs])]


def coalesced():
    """A workspace with x and y of two elements in one vector, and the net that made them so."""
    workspace = Workspace()
    workspace.feed("x", np.float32([[1, 2]]))
    workspace.feed("y", np.float32([3, 4]))
    workspace.create_net(NetDef(name="join", op=[make_op("UnsafeCoalesce", ["x", "y"], ["x", "y", "all"])]))
    workspace.run_net("join")
    return workspace


def run(workspace, name, *args, **more):
    workspace.create_net(NetDef(name=name, op=[make_op(*args, **more)]))
    workspace.run_net(name)


def test_what_is_written_into_one_shows_in_the_others():
    workspace = coalesced()
    workspace.feed("all", np.float32([5, 6, 7, 8]))
    assert workspace.fetch("x").tolist() == [[5, 6]] and workspace.fetch("y").tolist() == [7, 8]
    workspace.feed("y", np.float32([0, 1]))
    assert workspace.fetch("all").tolist() == [5, 6, 0, 1]
    run(workspace, "twice", "Scale", ["all"], ["all"], scale=2.0)
    assert workspace.fetch("x").tolist() == [[10, 12]]
    run(workspace, "filled", "ConstantFill", [], ["x"], shape=[1, 2], value=9.0)
    assert workspace.fetch("all").tolist() == [9, 9, 0, 2]


def test_another_run_leaves_memory_and_plans_as_they_are():
    workspace = coalesced()
    run(workspace, "twice", "Scale", ["all"], ["all"], scale=2.0)
    before, memory = workspace.generation.number, workspace.get("all").buffer
    for _ in range(3):
        workspace.run_net("join")
        workspace.run_net("twice")
    assert workspace.generation.number == before and workspace.get("all").buffer is memory
    assert workspace.fetch("y").tolist() == [3 * 2**4, 4 * 2**4]


def test_a_feed_of_another_shape_leaves_the_memory_and_the_next_run_joins_again():
    workspace = coalesced()
    workspace.feed("y", np.float32([7]))
    assert workspace.fetch("all").tolist() == [1, 2, 3, 4]
    workspace.run_net("join")
    assert workspace.fetch("all").tolist() == [1, 2, 7]
    workspace.feed("all", np.float32([0, 0, 0]))
    assert workspace.fetch("y").tolist() == [0]


def test_types_differ():
    workspace = Workspace()
    workspace.feed("x", np.zeros(2, np.float32))
    workspace.feed("y", np.zeros(2))
    with pytest.raises(ShapeError, match=r"must be numeric tensors of the same type, got .'float32', 'float64'."):
        workspace.run_operator_once(make_op("UnsafeCoalesce", ["x", "y"], ["x", "y", "all"]))


@pytest.mark.parametrize("names", [["x"], ["x", "y"]])
def test_a_barrier_overwrites_what_it_reads(names):
    with pytest.raises(NetError, match="must overwrite input 0"):
        Workspace().create_net(NetDef(name="n", op=[make_op("AsyncNetBarrier", names, [n + "_" for n in names])]))
