"""Accumulate."""

from __future__ import annotations

import numpy as np

from netbuilder.ops.math.accumulate import Accumulate
from netbuilder.proto import NetDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, floats, i32, refusal


class TestAccumulate(OperatorSuite):
    operator = Accumulate
    wrt = ()
    no_gradient = "it has none: it counts over runs"
    refusals = (refusal(Accumulate(), [i32(3)], "one floating type"),)

    def draw(self, data):
        return Accumulate(gamma=0.5), [data.draw(floats((1, 3), (1, 3)))]

    def reference(self, op, x):
        return [x]  # the first run


def test_runs_add_up():
    net = NetDef(name="sums")
    net.op.extend([make_op("Relu", ["x"], ["y"]), make_op("Accumulate", ["y"], ["total"], gamma=0.5)])
    workspace = Workspace()
    workspace.feed("x", np.float32([1, 2]))
    workspace.create_net(net)
    for want in ([1, 2], [1.5, 3], [1.75, 3.5]):
        workspace.run_net("sums")
        assert workspace.fetch("total").tolist() == want
    workspace.feed("x", np.float32([1, 2, 3]))
    workspace.run_net("sums")
    assert workspace.fetch("total").tolist() == [1, 2, 3]


def test_a_sum_of_another_shape_is_read_in_order():
    """As in Caffe2, as long as it has as many elements."""
    workspace = Workspace()
    workspace.feed("x", np.float32([[1, 2]]))
    workspace.feed("total", np.float32([10, 20]))
    workspace.run_operator_once(make_op("Accumulate", ["x"], ["total"]))
    assert workspace.fetch("total").tolist() == [[11, 22]]
