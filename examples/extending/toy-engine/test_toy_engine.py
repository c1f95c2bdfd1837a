"""The toy engine computes Softsign, and Softsign with Relu."""

import numpy as np
import pytest

from netbuilder.graph import Net
from netbuilder.runtime import Workspace
from netbuilder.runtime.profile.profiling import profile

X = np.float32([-3, -0.5, 0, 1, 4])
FUSED, APART = ["toy:softsign_relu"], ["toy:softsign", "plain"]


@pytest.mark.parametrize(
    ("options", "kernels"),
    [
        ({"observable": ["y"]}, FUSED),
        ({}, APART),  # a user may fetch the value between them
        ({"observable": ["y"], "without": "fusion"}, APART),
    ],
)
def test_kernels_and_values(options, kernels):
    net = Net("softsign")
    net.Softsign("x", "s")
    net.Relu("s", "y")
    workspace = Workspace(engines=("TOY",))
    workspace.feed("x", X)
    workspace.create_net(net, **options)
    calls = profile(workspace, net.Name(), runs=1, warmup=1, limits={}).calls
    assert [call.kernel for call in calls] == kernels
    np.testing.assert_allclose(workspace.fetch("y"), np.maximum(X, 0) / (1 + np.maximum(X, 0)), rtol=1e-6)


@pytest.mark.parametrize(("engines", "serves"), [(None, True), ((), False)])
def test_engines_that_a_workspace_allows(engines, serves):
    net = Net("softsign")
    net.Softsign("x", "y")
    workspace = Workspace(engines=engines)
    workspace.feed("x", X)
    workspace.create_net(net)
    [call] = profile(workspace, net.Name(), runs=1, warmup=1, limits={}).calls
    assert ("toy" in call.kernel) == serves
