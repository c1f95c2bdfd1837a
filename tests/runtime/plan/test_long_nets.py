"""Nets of very many operators are created, planned and run without recursion."""

import numpy as np
import pytest

from netbuilder.graph import Net
from netbuilder.runtime import Workspace

COUNT = 2_000  # twice the depth that Python's own recursion has


@pytest.mark.one_in(2)
@pytest.mark.parametrize("net_type", ["simple", "dag"])
def test_a_long_chain_runs_forward_and_backward(net_type):
    net = Net("chain")
    x = net.AddExternalInput("x")
    for i in range(COUNT):
        x = net.Scale(x, f"b{i}", scale=1.0)
    net.AddGradientOperators([net.AveragedLoss(x, "loss")])
    net.set_type(net_type, 2)
    workspace = Workspace(threads=2)
    workspace.feed("x", np.ones(4, np.float32))
    workspace.create_net(net)
    workspace.run_net(net.Name(), 2)
    assert workspace.fetch("loss") == 1
    np.testing.assert_array_equal(workspace.fetch("x_grad"), np.full(4, 0.25, np.float32))
