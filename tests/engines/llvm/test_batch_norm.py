"""Batch normalization whose result is not stored: against float64, in layouts, by threads; memory; what is visible."""

import numpy as np
import pytest

from netbuilder.engines import onednn
from netbuilder.engines.llvm import machine
from netbuilder.graph import Net
from netbuilder.runtime import Workspace
from netbuilder.runtime.plan.optimizations import OPTIMIZATIONS

pytestmark = pytest.mark.skipif(not (machine.available() and onednn.available()), reason="needs llvmlite and oneDNN")

FROM_INPUT = ["Swish", "Mish", "Gelu"]
FROM_OUTPUT = {"LeakyRelu": {"alpha": 0.2}, "ReluN": {"n": 1.5}}
SHARED = {"conv": False, "twice": False, "order": "NCHW", "size": 5, "samples": 3}


def net_and_feeds(activation, channels, *, seed=0, **changed):
    """Return a net with a normalization, an activation, and the gradients of both; and what it reads, in float64.

    With ``conv``, convolutions are around them, or one "after" them, so that images are in blocks of channels, or their
    gradients alone. With ``twice``, the
    activation is read twice, so that its gradient is a Sum.
    """
    case = {**SHARED, **changed}
    rng = np.random.default_rng(seed)
    shape = [case["samples"], case["size"], case["size"] + 1]
    shape.insert(1 if case["order"] == "NCHW" else 3, channels)
    feeds = {
        "x": rng.normal(3, 2, shape),
        "dz": rng.normal(0, 1, shape),
        "scale": rng.uniform(0.5, 2, channels),
        "bias": rng.normal(0, 1, channels),
        "mean": rng.normal(0, 1, channels),
        "variance": rng.uniform(0.5, 2, channels),
    }
    net = Net("net")
    source, arguments = "x", {"order": case["order"]}
    if case["conv"]:
        filters = (channels, channels, 1, 1) if case["order"] == "NCHW" else (channels, 1, 1, channels)
        feeds |= {name: rng.normal(0, channels**-0.5, filters) for name in ("w", "v")}
        if case["conv"] != "after":
            source = net.Conv(["x", "w"], "c", kernel=1, no_bias=1, **arguments)
    statistics = ["mean", "variance", "batch_mean", "batch_inverse"]
    net.SpatialBN([source, "scale", "bias", "mean", "variance"], ["a", *statistics], **arguments)
    result = getattr(net, activation)("a", "y", **FROM_OUTPUT.get(activation, {}))
    if case["conv"]:
        result = net.Conv([result, "v"], "d", kernel=1, no_bias=1, **arguments)
    z = net.Add([result, "y"], "z") if case["twice"] else net.Copy(result, "z")
    gradients = net.AddGradientOperators({str(z): "dz"})
    net.AddExternalOutput(z, *statistics, *(str(gradients[name]) for name in ("x", "scale", "bias")))
    return net, feeds


def run(net, feeds, dtype=np.float32, threads=1, **options):
    workspace = Workspace(threads=threads)
    for name, value in feeds.items():
        workspace.feed(name, value.astype(dtype))
    workspace.create_net(net, **{"observable": "outputs", **options})
    workspace.run_net(net)
    return workspace


def exact(net, feeds, **options):
    """Return a run in float64 by the plain kernels, one operator at a time."""
    return run(net, feeds, np.float64, without=[*OPTIMIZATIONS.values()], **options)


def outputs(workspace, net):
    return {str(name): workspace.fetch(str(name)) for name in net.external_outputs}


def kernels(workspace, net):
    return [step.prepared.name for step in workspace.net(net.Name()).plans[-1].steps]


def arena(workspace, net):
    return sum(plan.memory.nbytes for plan in workspace.net(net.Name()).plans)


def check(net, feeds, **options):
    workspace = run(net, feeds, **options)
    wanted = outputs(exact(net, feeds), net)
    for name, got in outputs(workspace, net).items():
        want = wanted[name]
        np.testing.assert_allclose(got, want, rtol=0, atol=3e-5 * max(1, np.abs(want).max()), err_msg=name)
    return workspace


@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("channels", [1, 7, 16, 40])
@pytest.mark.parametrize("activation", [*FROM_INPUT, *FROM_OUTPUT])
def test_numbers(activation, channels, twice, order):
    net, feeds = net_and_feeds(activation, channels, twice=twice, order=order)
    made = kernels(check(net, feeds), net)
    assert "llvm batch_statistics" in made
    assert (f"llvm spatial_bn_{activation.lower()}_gradient" in made) == (activation in FROM_INPUT)


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("channels, serves", [(16, True), (48, True), (20, False)])
@pytest.mark.parametrize("activation", ["Swish", "LeakyRelu"])
def test_blocks_of_channels(activation, channels, serves, twice):
    """Where the last block has padding, the result is stored."""
    net, feeds = net_and_feeds(activation, channels, conv=True, twice=twice)
    made = kernels(check(net, feeds), net)
    assert ("llvm batch_statistics" in made) == serves


@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("channels", [16, 20, 64])
@pytest.mark.parametrize("activation", [*FROM_INPUT, "ReluN"])
def test_gradients_in_another_layout(activation, channels, twice, order):
    """Images are plain, what a convolution reads and makes is not."""
    net, feeds = net_and_feeds(activation, channels, conv="after", twice=twice, order=order, size=12)
    assert "llvm batch_statistics" in kernels(check(net, feeds), net)


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("activation", FROM_INPUT)
def test_threads_change_no_bit(activation, twice):
    net, feeds = net_and_feeds(activation, 64, conv=True, twice=twice, size=30)
    one, three = (outputs(run(net, feeds, threads=threads), net) for threads in (1, 3))
    for name, value in one.items():
        np.testing.assert_array_equal(value, three[name], err_msg=name)


def test_a_step_takes_the_memory_of_one_image_less():
    net, feeds = net_and_feeds("Swish", 64, conv=True, size=40)
    found = []
    for without in ([], [OPTIMIZATIONS["unstored_activations"]]):
        found.append(arena(run(net, feeds, without=without), net))
    assert found[1] - found[0] > 0.9 * feeds["x"].size * 4


def test_what_can_be_fetched_is_stored():
    net, feeds = net_and_feeds("Swish", 16, conv=True)
    workspace = check(net, feeds, observable="all")
    assert "llvm batch_statistics" not in kernels(workspace, net)
    wanted = exact(net, feeds, observable="all").fetch("a")
    np.testing.assert_allclose(workspace.fetch("a"), wanted, rtol=0, atol=1e-5)


def test_what_others_read_is_stored():
    net, feeds = net_and_feeds("Swish", 16)
    net.Sqr("a", "read")
    net.AddExternalOutput("read")
    assert "llvm batch_statistics" not in kernels(check(net, feeds), net)


def test_the_running_statistics_follow():
    net, feeds = net_and_feeds("Swish", 16, conv=True)
    workspace, wanted = run(net, feeds), exact(net, feeds)
    for each in (workspace, wanted):
        for _ in range(3):
            each.run_net(net)
    for name in ("mean", "variance"):
        np.testing.assert_allclose(workspace.fetch(name), wanted.fetch(name), rtol=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_channel(value):
    net, feeds = net_and_feeds("Swish", 16)
    feeds["x"][0, 3, 0, 0] = value
    found = outputs(run(net, feeds), net)
    assert np.isnan(found["z"][:, 3]).any()
    assert np.isfinite(np.delete(found["z"], 3, axis=1)).all()


def test_far_from_zero_the_variance_keeps_its_digits():
    net, feeds = net_and_feeds("Swish", 16, size=40)
    feeds["x"] += 1000
    found, wanted = run(net, feeds), exact(net, feeds)
    np.testing.assert_allclose(found.fetch("batch_inverse"), wanted.fetch("batch_inverse"), rtol=1e-4)


def test_a_budget_is_met():
    """The activation is computed again from the images and the statistics."""
    net, feeds = net_and_feeds("Swish", 64, conv=True, size=30)
    plain = run(net, feeds)
    within = run(net, feeds, memory_budget=0.8)
    assert arena(within, net) < arena(plain, net)
    for name, value in outputs(plain, net).items():
        np.testing.assert_array_equal(value, within.fetch(name), err_msg=name)
