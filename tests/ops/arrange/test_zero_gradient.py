"""ZeroGradient."""

import numpy as np

from netbuilder.graph import Net
from netbuilder.ops.arrange.zero_gradient import ZeroGradient
from netbuilder.runtime import Workspace
from suite import OperatorSuite, floats


class TestZeroGradient(OperatorSuite):
    operator = ZeroGradient
    no_gradient = "no output; the gradient is a constant, see below"
    refusals = ()
    refuses_nothing = "it reads nothing"

    def draw(self, data):
        return ZeroGradient(), [data.draw(floats((1, 3), (1, 3)))]

    def reference(self, op, x):
        return []


def test_the_gradient_is_zero():
    net = Net("net")
    total = net.SumElements("x", "total")
    net.ZeroGradient("y", [])
    net.AddExternalInput("z")
    joined = net.Add([total, net.SumElements("y", "sum_y")], "loss")
    found = net.AddGradientOperators([joined])
    workspace = Workspace(threads=1)
    for name in ("x", "y", "z"):
        workspace.feed(name, np.ones((2, 2), np.float32))
    workspace.run_net_once(net)
    np.testing.assert_array_equal(workspace.fetch(str(found["y"])), 1)


def test_what_nothing_else_reads_has_a_gradient():
    net = Net("net")
    net.ZeroGradient(net.Relu("x", "y"), [])
    found = net.AddGradientOperators([net.SumElements("w", "loss")])
    workspace = Workspace(threads=1)
    for name in ("x", "w"):
        workspace.feed(name, np.ones((2, 2), np.float32))
    workspace.run_net_once(net)
    np.testing.assert_array_equal(workspace.fetch(str(found["x"])), 0)
