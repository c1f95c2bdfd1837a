"""Branches and loops as Caffe2's Control_Ops tutorial builds them: local blobs stay local, gradients are right."""

import numpy as np
import pytest

from netbuilder.caffe2.python import brew, core, workspace
from netbuilder.caffe2.python.core import Plan, to_execution_step
from netbuilder.caffe2.python.model_helper import ModelHelper
from netbuilder.caffe2.python.net_builder import NetBuilder, ops


def run(builder):
    plan = Plan("control_flow")
    plan.AddStep(to_execution_step(builder))
    space = workspace.C.Workspace()
    space.run(plan)
    return space


def run_gradient(builder, blob):
    """Return the space in which the builder's one net ran with its backward pass, and the gradients."""
    (net,) = builder.get()
    gradients = net.AddGradientOperators([blob])
    space = workspace.C.Workspace()
    space.run(net)
    return space, gradients


@pytest.mark.parametrize("x, want", [(0.5, 6.0), (-0.5, 8.0)])
def test_what_a_branch_makes_for_itself_stays_in_it(x, want):
    with NetBuilder() as builder:
        ops.Const(0.0, blob_out="zero")
        ops.Const(x, blob_out="x")
        ops.Const(1.0, blob_out="a")
        with ops.IfNet(ops.GT(["x", "zero"])):
            ops.Const(5.0, blob_out="local")
            ops.Add(["a", "local"], "a")
        with ops.Else():
            ops.Const(7.0, blob_out="local")
            ops.Add(["a", "local"], "a")
    space = run(builder)
    assert space.blobs["a"].fetch() == want
    assert "local" not in space.blobs


def test_a_condition_that_is_no_bool_is_refused():
    with NetBuilder() as builder:
        ops.Const(0.5, blob_out="x")
        with ops.IfNet("x"):
            ops.Const(1.0, blob_out="a")
    with pytest.raises(ValueError, match="If: the condition must be of type bool, got float32"):
        run(builder)
    with NetBuilder() as builder:
        ops.Const(1.0, blob_out="x")
        with ops.WhileNet():
            with ops.Condition():
                ops.Copy(["x"], ["y"])
            ops.Copy(["x"], ["z"])
    with pytest.raises(ValueError, match="While: the condition '.*' must be of type bool, got float32"):
        run(builder)


def test_what_a_loop_makes_for_itself_stays_in_it():
    with NetBuilder() as builder:
        for name, value in {"i": 0, "one": 1, "stop": 7, "sum": 0}.items():
            ops.Const(value, blob_out=name)
        with ops.WhileNet():
            with ops.Condition():
                ops.Add(["i", "one"], ["i"])
                ops.LE(["i", "stop"])
            ops.Add(["i", "one"], ["local"])
            ops.Add(["sum", "local"], ["sum"])
    space = run(builder)
    assert space.blobs["sum"].fetch() == sum(range(2, 9))
    assert "local" not in space.blobs


@pytest.mark.parametrize("x, value, slope", [(0.5, 16.0, 8.0), (-0.5, 4.0, 1.0)])
def test_gradient_through_a_branch(x, value, slope):
    with NetBuilder(_use_control_ops=True) as builder:
        for name, constant in {"zero": 0.0, "one": 1.0, "y": 4.0, "z": 0.0, "x": x}.items():
            ops.Const(constant, blob_out=name)
        with ops.IfNet(ops.GT(["x", "zero"])):
            ops.Mul(["y", "y"], "z")
        with ops.Else():
            ops.Mul(["y", "one"], "z")
    space, gradients = run_gradient(builder, "z")
    assert space.blobs["z"].fetch() == value
    assert space.blobs[str(gradients["y"])].fetch() == slope


def test_gradient_through_a_loop_with_a_branch_in_it():
    """Two rounds: x to the 4th, y squared in the first and z to the 3rd in the second."""
    with NetBuilder(_use_control_ops=True) as builder:
        for name, constant in {"i": 0, "one": 1, "two": 2, "x": 2.0, "y": 3.0, "z": 2.0}.items():
            ops.Copy(ops.Const(constant), name)
        with ops.WhileNet():
            with ops.Condition():
                ops.Add(["i", "one"], ["i"])
                ops.LE(["i", "two"])
            ops.Pow("x", "x", exponent=2.0)
            with ops.IfNet(ops.LT(["i", "two"])):
                ops.Pow("y", "y", exponent=2.0)
            with ops.Else():
                ops.Pow("z", "z", exponent=3.0)
        ops.Add(["x", "y"], "x_plus_y")
        ops.Add(["x_plus_y", "z"], "sum")
    space, gradients = run_gradient(builder, "sum")
    assert space.blobs["sum"].fetch() == 2**4 + 3**2 + 2**3
    slopes = [float(space.blobs[str(gradients[name])].fetch()) for name in "xyz"]
    np.testing.assert_allclose(slopes, [4 * 2**3, 2 * 3, 3 * 2**2])


@pytest.mark.parametrize("holds", [True, False])
def test_brew_layers_in_branches_are_trained(holds):
    workspace.ResetWorkspace()
    x = np.float32([[1, 2, 3], [-4, 5, -6]])
    workspace.FeedBlob("data", x)
    workspace.FeedBlob("holds", np.array([holds]))
    then, other, model = ModelHelper("then"), ModelHelper("else"), ModelHelper("model")
    for branch, name in ((then, "first"), (other, "second")):
        brew.fc(branch, "data", name, 3, 2, weight_init=("ConstantFill", {"value": 0.5}))
        branch.net.Scale(name, "out", scale=2.0)
        workspace.RunNetOnce(branch.param_init_net)
    weights = ["first_w", "first_b", "second_w", "second_b"]
    workspace.FeedBlob("out", np.zeros((2, 2), np.float32))
    brew.cond(model, core.BlobReference("holds"), ["data", "out", *weights], then, other)
    model.net.SumElements("out", "loss")
    gradients = model.net.AddGradientOperators(["loss"])
    workspace.RunNetOnce(model.net)
    assert workspace.FetchBlob("loss") == 2 * x.sum()  # two outputs, each twice half the sum of the inputs
    used, unused = ("first_w", "second_w") if holds else ("second_w", "first_w")
    np.testing.assert_allclose(workspace.FetchBlob(str(gradients[used])), np.tile(2 * x.sum(axis=0), (2, 1)))
    np.testing.assert_array_equal(workspace.FetchBlob(str(gradients[unused])), 0)
    assert not workspace.HasBlob("first") and not workspace.HasBlob("second")
