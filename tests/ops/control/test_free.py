"""Free."""

import numpy as np
import pytest
from hypothesis import strategies as st

from netbuilder.ops.control.free import Free
from netbuilder.ops.core.operator import decode
from netbuilder.proto import ArgumentError, BlobError, NetDef, NetError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, floats, refusal


class TestFree(OperatorSuite):
    operator = Free
    no_gradient = "it leaves nothing"
    refusals = (
        refusal(Free(), [f32(2), f32(2)], "got 2 inputs and 1 outputs", ArgumentError, n_out=1),
        refusal(Free(), [f32(2)], "got 1 inputs and 2 outputs", ArgumentError, n_out=2),
    )

    def draw(self, data):
        count = data.draw(st.integers(1, 3))
        return Free().with_arity(count, count), [data.draw(floats((0, 3), (1, 2))) for _ in range(count)]

    def reference(self, op, *xs):
        return [np.zeros((0,))] * len(xs)


def test_the_outputs_are_the_inputs():
    for outputs in (["b"], ["y"]):
        with pytest.raises(NetError, match="output 0 must overwrite input 0"):
            decode(Free, make_op("Free", ["a"], outputs))


def test_a_freed_blob_is_made_again_in_the_next_run():
    workspace = Workspace()
    workspace.feed("x", np.float32([1, 2]))
    ops = [make_op("Negative", ["x"], ["h"]), make_op("Exp", ["h"], ["y"]), make_op("Free", ["h"], ["h"])]
    workspace.create_net(NetDef(name="net", op=ops))
    for x in (np.float32([1, 2]), np.float32([3])):
        workspace.feed("x", x)
        workspace.run_net("net")
        workspace.run_net("net")
        np.testing.assert_allclose(workspace.fetch("y"), np.exp(-x), rtol=1e-6)
        assert workspace.fetch("h").size == 0


def test_an_object_is_let_go():
    workspace = Workspace()
    workspace.run_operator_once(make_op("CreateMutex", [], ["mutex"]))
    workspace.run_operator_once(make_op("Free", ["mutex"], ["mutex"]))
    with pytest.raises(BlobError, match="holds no value"):
        workspace.fetch("mutex")
