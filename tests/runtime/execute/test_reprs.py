"""What nets, plans and optimizers look like when they are printed."""

import numpy as np

from netbuilder import optimizers
from netbuilder.graph import Net
from netbuilder.runtime import Workspace


def test_nets_and_plans_say_their_sizes():
    net = Net("small")
    net.Relu("x", "y")
    net.Softmax("y", "z")
    workspace = Workspace()
    workspace.feed("x", np.zeros((2, 1024), np.float32))
    made = workspace.net(workspace.create_net(net))
    assert repr(made) == "RuntimeNet('small', 2 operators, 0 plans)"
    workspace.run_net(net)
    assert repr(made) == "RuntimeNet('small', 2 operators, 1 plan)"
    assert repr(made.plans[0]).startswith("Plan(") and "on 1 lane, 0.0 MiB)" in repr(made.plans[0])


def test_optimizers_say_what_is_not_their_default():
    made = optimizers.SgdOptimizer(0.1, momentum=0.9, policy="step", stepsize=3, gamma=0.5)
    assert repr(made) == (
        "SgdOptimizer(base_learning_rate=0.1, policy='step', momentum=0.9, stepsize=3, gamma=0.5)"
    )  # fmt: skip
    assert repr(optimizers.AdamOptimizer()) == "AdamOptimizer()"
