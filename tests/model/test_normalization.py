"""Helpers that normalize, and elementwise_linear: the operators and parameters that Caffe2's add, and training."""

from __future__ import annotations

import numpy as np
import pytest

from netbuilder.model import ModelHelper, brew
from netbuilder.proto.arguments import arguments
from netbuilder.runtime import Workspace

# helper -> arguments, outputs of the operator, suffixes of parameters with their first values
CASES = {
    "instance_norm": ({}, ["y", "y_sm", "y_siv"], {"_s": 1.0, "_b": 0.0}),
    "spatial_gn": ({"group": 2, "init_scale": 2.0}, ["y", "y_mean", "y_std"], {"_s": 2.0, "_b": 0.0}),
    "layer_norm": ({"initial_bias": 3.0}, ["y", "y_mean", "y_std"], {"_scale": 1.0, "_bias": 3.0}),
    "elementwise_linear": ({}, ["y"], {"_w": 1.0, "_b": 0.0}),
}
TYPES = {
    "instance_norm": "InstanceNorm",
    "spatial_gn": "GroupNorm",
    "layer_norm": "LayerNorm",
    "elementwise_linear": "ElementwiseLinear",
}


def dim_of(helper):
    return 6 if helper in ("instance_norm", "spatial_gn") else 24


@pytest.mark.parametrize("helper", CASES)
def test_operators_and_parameters(helper):
    given, outputs, values = CASES[helper]
    model = ModelHelper("m")
    getattr(brew, helper)(model, "x", "y", dim_of(helper), **given)
    (op,) = model.net.Proto().op
    assert (op.type, list(op.input), list(op.output)) == (TYPES[helper], ["x", *("y" + s for s in values)], outputs)
    fills = [(f.output[0], arguments(f)["shape"], arguments(f)["value"]) for f in model.param_init_net.Proto().op]
    assert fills == [("y" + suffix, [dim_of(helper)], value) for suffix, value in values.items()]
    assert [str(p) for p in model.GetParams()] == ["y" + suffix for suffix in values]


@pytest.mark.parametrize("helper", CASES)
def test_they_learn(helper):
    """All parameters have gradients, and the loss falls along them."""
    model = ModelHelper("m")
    getattr(brew, helper)(model, "x", "y", dim_of(helper), **CASES[helper][0])
    model.net.SquaredL2Distance(["y", "target"], "apart")
    loss = model.net.AveragedLoss("apart", "loss")
    gradients = model.AddGradientOperators([loss])
    rate, one = (
        model.param_init_net.ConstantFill([], n, shape=[1], value=v) for n, v in (("rate", -0.01), ("one", 1.0))
    )
    for param in model.GetParams():
        model.net.WeightedSum([param, one, gradients[param], rate], param)
    workspace, rng = Workspace(), np.random.default_rng(0)
    for name in ("x", "target"):
        workspace.feed(name, rng.normal(size=(4, 6, 2, 2)).astype(np.float32))
    workspace.run_net_once(model.param_init_net)
    workspace.create_net(model.net)
    losses = []
    for _ in range(5):
        workspace.run_net(model.net)
        losses.append(float(workspace.fetch("loss")))
    assert all(later < before for before, later in zip(losses, losses[1:])), losses


def test_instance_norm_of_a_test_net_has_one_output():
    model = ModelHelper("m", arg_scope={"order": "NHWC"})
    brew.instance_norm(model, "x", "y", 3, is_test=1)
    (op,) = model.net.Proto().op
    assert list(op.output) == ["y"]
    assert arguments(op)["order"] in ("NHWC", b"NHWC")


def test_groups_of_images_with_channels_last():
    model = ModelHelper("m", arg_scope={"order": "NHWC"})
    brew.spatial_gn(model, "x", "y", 4, group=2)
    workspace, x = Workspace(), np.random.default_rng(0).normal(size=(2, 3, 3, 4)).astype(np.float32)
    workspace.feed("x", x)
    workspace.run_net_once(model.param_init_net)
    workspace.run_net_once(model.net)
    groups = workspace.fetch("y").reshape(2, 9, 2, 2)
    np.testing.assert_allclose(groups.mean(axis=(1, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(groups.std(axis=(1, 3)), 1, rtol=1e-3)


@pytest.mark.parametrize(("order", "axes"), [("NCHW", (0, 2, 3)), ("NHWC", (0, 1, 2))])
def test_moments_with_running_stats(order, axes):
    model = ModelHelper("m")
    mean, variance = brew.moments_with_running_stats(model, "x", "y", 3, order=order)
    assert [str(p) for p in model.GetComputedParams()] == ["y_rm", "y_riv"]
    shape = (2, 3, 4, 4) if order == "NCHW" else (2, 4, 4, 3)
    workspace, x = Workspace(), np.random.default_rng(0).normal(size=shape).astype(np.float32)
    workspace.feed("x", x)
    workspace.run_net_once(model.param_init_net)
    workspace.run_net_once(model.net)
    np.testing.assert_allclose(workspace.fetch(mean), x.mean(axis=axes), 1e-5, 1e-6)
    np.testing.assert_allclose(workspace.fetch(variance), x.var(axis=axes), 1e-5, 1e-6)
    assert workspace.fetch("y_riv").tolist() == [1, 1, 1]
