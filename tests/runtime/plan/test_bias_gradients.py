"""The gradient of a bias before a SpatialBN: zero, against float64 and the sum that it replaces."""

from contextlib import nullcontext

import numpy as np
import pytest

from checks import interpret
from kernel_cases import normalization, random
from netbuilder.proto import PROTO_CUDA, NetDef
from netbuilder.proto.arguments import make_argument, make_device_option, make_op
from netbuilder.runtime import Workspace
from on_gpu import with_cudnn
from switches import single

GPU = make_device_option(PROTO_CUDA, 0)
WITHOUT = single("zero_bias_gradients")
GRADIENTS = ["dw", "dcb", "dx", "ds", "db"]


def operators(conv="Conv", between=(), **given):
    """A convolution and a SpatialBN, and their gradients.

    Args:
        between: operators before the gradient of the convolution.
        given: arguments of the gradient of the SpatialBN.
    """
    windows = {"kernel": 3, "pad": 1, "no_bias": 0}
    normalized = ["a", "s", "dy", "mean", "inverse"]
    return [
        make_op(conv, ["x", "w", "cb"], ["a"], **windows),
        make_op("SpatialBN", ["a", "s", "b", "rm", "rv"], ["y", "rm", "rv", "mean", "inverse"]),
        make_op("SpatialBNGradient", normalized, ["da", "ds", "db"], **given),
        *between,
        make_op(f"{conv}Gradient", ["x", "w", "da"], ["dw", "dcb", "dx"], **windows),
    ]


def arrays():
    found = {**normalization((3, 8, 6, 5), 8), "w": random(8, 8, 3, 3, seed=4) / 8, "cb": random(8, seed=5)}
    return {**found, "dy": random(3, 8, 6, 5, seed=6)}


def run(ops, feeds, *, without=(), device=GPU, precision="float32"):
    """Return whether the sum is left out, and values."""
    net = NetDef(name="net", external_output=GRADIENTS)
    net.op.extend(ops)
    net.device_option.CopyFrom(device)
    net.arg.extend([make_argument("activation_dtype", precision)])
    with nullcontext() if device is not GPU else with_cudnn():
        workspace = Workspace(without=without)
        for name, value in feeds.items():
            workspace.feed(name, value)
        workspace.create_net(net)
        workspace.run_net("net", 3)
        parts = [part for step in workspace.net("net").plans[-1].steps for part in step.node.parts]
        kinds = {part.op.no_bias for part in parts if "Conv" in part.op_def.type and "Gradient" in part.op_def.type}
        assert len(kinds) == 1, "the net has one gradient of a convolution"
        return kinds.pop(), {name: np.asarray(workspace.fetch(name), np.float64) for name in GRADIENTS}


@pytest.mark.gpu
@pytest.mark.parametrize("precision, tolerance", [("float32", 1e-5), ("bfloat16", 3e-2)])
@pytest.mark.parametrize("conv", ["Conv", "ConvTranspose"])
def test_it_is_zero_as_the_sum_is(conv, precision, tolerance):
    ops, feeds = operators(conv), arrays()
    want = interpret(ops, {name: value.astype(np.float64) for name, value in feeds.items()})
    left_out, found = run(ops, feeds, precision=precision)
    summed, others = run(ops, feeds, without=WITHOUT, precision=precision)
    assert left_out and not summed
    np.testing.assert_array_equal(found["dcb"], 0)
    magnitude = np.abs(want["da"]).sum(axis=(0, 2, 3))
    for each in (others["dcb"], want["dcb"]):  # what is summed is rounding
        assert (np.abs(each) <= tolerance * magnitude).all()
    for name in GRADIENTS:
        scale = magnitude.max() if name == "dcb" else np.abs(want[name]).max()
        np.testing.assert_allclose(found[name], want[name], rtol=0, atol=tolerance * scale)


@pytest.mark.gpu
def test_what_is_not_finite_stays_so():
    feeds = arrays()
    feeds["dy"][0, 2, 1, 1] = np.inf
    left_out, found = run(operators(), feeds)
    assert left_out
    np.testing.assert_array_equal(np.isnan(found["dcb"]), np.arange(8) == 2)


SUMMED = {
    "another gradient is added": operators(between=[make_op("Sum", ["da", "dy"], ["da"])]),
    "it is changed": operators(between=[make_op("Scale", ["da"], ["da"], scale=2.0)]),
    "the gradient of the other bias is overwritten": operators(between=[make_op("Scale", ["db"], ["db"], scale=2.0)]),
    "in test mode": operators(is_test=1),
}


@pytest.mark.gpu
@pytest.mark.parametrize("case", SUMMED)
def test_other_gradients_are_summed(case):
    ops, feeds = SUMMED[case], {**arrays(), "mean": random(8, seed=8), "inverse": random(8, seed=9, low=0.5)}
    if case == "in test mode":
        del ops[1]  # the statistics are given
    want = interpret(ops, {name: value.astype(np.float64) for name, value in feeds.items()})
    left_out, found = run(ops, feeds)
    assert not left_out
    for name in GRADIENTS:
        np.testing.assert_allclose(found[name], want[name], rtol=1e-4, atol=1e-4 * np.abs(want["da"]).sum())


def test_on_a_cpu_it_is_summed():
    left_out, _ = run(operators(), arrays(), device=make_device_option())
    assert not left_out
