"""Gradients of activations with a kink, on both sides of it, also where Y does not tell the sign of X."""

import numpy as np
import pytest

from netbuilder.graph import Net
from netbuilder.proto import GradientError
from netbuilder.runtime import Workspace

X = np.float32([[-3, -0.5, 0.25, 2, 7]])
CASES = {
    "LeakyRelu": ({"alpha": 0.0}, [0, 0, 1, 1, 1]),
    "LeakyRelu, small": ({"alpha": 0.25}, [0.25, 0.25, 1, 1, 1]),
    "Elu": ({"alpha": 0.0}, [0, 0, 1, 1, 1]),
    "Elu, one": ({"alpha": 1.0}, [np.exp(-3), np.exp(-0.5), 1, 1, 1]),
    "Relu": ({}, [0, 0, 1, 1, 1]),
    "ReluN": ({"n": 6.0}, [0, 0, 1, 1, 0]),
    "Clip": ({"min": -1.0, "max": 6.0}, [0, 1, 1, 1, 0]),
}


@pytest.mark.parametrize("engines", [None, ()], ids=["engines", "numpy"])
@pytest.mark.parametrize("inplace", [False, True], ids=["apart", "in place"])
@pytest.mark.parametrize("case", CASES)
def test_slopes(case, inplace, engines):
    args, slopes = CASES[case]
    net = Net("kink")
    net.Scale("x", "h", scale=1.0)
    getattr(net, case.split(",")[0])("h", "h" if inplace else "y", **args)
    net.SumElements("h" if inplace else "y", "loss")
    gradients = net.AddGradientOperators(["loss"])
    workspace = Workspace(engines=engines)
    workspace.feed("x", X)
    workspace.create_net(net, observable="all")
    workspace.run_net(net.Name())
    np.testing.assert_allclose(workspace.fetch(str(gradients["x"])), [slopes], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("engines", [None, ()], ids=["engines", "numpy"])
def test_prelu_with_a_slope_of_0_or_below(engines):
    net = Net("prelu")
    net.SumElements(net.PRelu(["x", "slope"], "y"), "loss")
    gradients = net.AddGradientOperators(["loss"])
    for slope in (0, -0.5):
        workspace = Workspace(engines=engines)
        workspace.feed("x", X)
        workspace.feed("slope", np.float32([slope]))
        workspace.create_net(net, observable="all", overwrite=True)
        workspace.run_net(net.Name())
        np.testing.assert_allclose(workspace.fetch(str(gradients["x"])), [[slope, slope, 1, 1, 1]])
        np.testing.assert_allclose(workspace.fetch(str(gradients["slope"])), [-3.5])


@pytest.mark.parametrize("engines", [None, ()], ids=["engines", "numpy"])
def test_what_is_not_finite_in_a_leaky_relu_of_alpha_0(engines):
    workspace = Workspace(engines=engines)
    workspace.feed("x", np.float32([np.nan, -np.inf, np.inf, -1]))
    net = Net("leaky")
    net.LeakyRelu("x", "y", alpha=0.0)
    workspace.run_net_once(net)
    np.testing.assert_array_equal(workspace.fetch("y"), [np.nan, 0, np.inf, 0])


@pytest.mark.parametrize("kind", ["LeakyRelu", "Elu"])
def test_a_negative_alpha_has_no_gradient(kind):
    net = Net("negative")
    getattr(net, kind)("x", "y", alpha=-0.5)
    net.SumElements("y", "loss")
    with pytest.raises(GradientError, match=r"so alpha must be at least 0, got -0\.5; use PRelu"):
        net.AddGradientOperators(["loss"])
