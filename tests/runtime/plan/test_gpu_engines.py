"""Engines for GPUs: a plan asks the engines of the device that an operator runs on."""

import numpy as np
import pytest

from checks import interpret
from netbuilder.engines.engine import Engine, find_engine, library_engines
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, NetDef
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from on_gpu import gpus
from switches import single

pytestmark = pytest.mark.emulated

CPU, GPU = make_device_option(PROTO_CPU, 0), make_device_option(PROTO_CUDA, 0)
RNG = np.random.default_rng(0)


def run(ops, feeds, engines, device=GPU, **options):
    """Run a net three times; return the workspace, and how many kernels a run has."""
    net = NetDef(name="net", op=ops)
    net.device_option.CopyFrom(device)
    workspace = Workspace(engines=engines)
    for name, value in feeds.items():
        workspace.feed(name, value, device)
    workspace.create_net(net, **options)
    workspace.run_net("net", 3)
    (plan,) = workspace.net("net").plans
    return workspace, sum(not step.moves for step in plan.steps)


def test_engines_serve_the_devices_that_they_name():
    assert Engine.device_types == (PROTO_CPU,)
    with gpus(1):
        cuda = find_engine("CUDA")
        assert cuda in library_engines(lambda name: True, PROTO_CUDA)
        assert cuda in library_engines(lambda name: True)
        assert cuda not in library_engines(lambda name: True, PROTO_CPU)
        assert cuda not in library_engines(lambda name: name != "CUDA", PROTO_CUDA)


@pytest.mark.parametrize(("engine", "device", "kernels"), [("CUDA", GPU, 1), ("ONEDNN", GPU, 2), ("CUDA", CPU, 2)])
def test_a_fusion_is_for_the_devices_of_its_engine(engine, device, kernels):
    ops = [make_op("FC", ["x", "w", "b"], ["y"]), make_op("Relu", ["y"], ["y"])]
    feeds = {
        name: RNG.normal(size=shape).astype(np.float32) for name, shape in {"x": (2, 3), "w": (4, 3), "b": 4}.items()
    }
    with gpus(1):
        workspace, count = run(ops, feeds, (engine,), device)
        assert count == kernels
        np.testing.assert_allclose(workspace.fetch("y"), interpret(ops, feeds)["y"], rtol=1e-6)


@pytest.mark.parametrize(("engines", "without", "kernels"), [
    (("CUDA",), [], 1),
    (("CUDA",), single("joined_updates", "elementwise_chains"), 3),
    ((), [], 3),
])  # fmt: skip
@pytest.mark.parametrize("observable", ["all", "outputs"])
def test_updates_of_a_gpu_are_joined_by_its_engine(engines, without, kernels, observable):
    shapes = {"p": (3, 4), "q": (5,), "r": (2, 2, 2)}
    ops = [
        make_op("MomentumSGDUpdate", [f"{n}_g", f"{n}_m", "lr", n], [f"{n}_g", f"{n}_m", n], momentum=0.9)
        for n in shapes
    ]
    feeds = {n + end: RNG.normal(size=shapes[n]).astype(np.float32) for n in shapes for end in ("", "_g", "_m")}
    feeds["lr"] = np.float32([0.1])
    with gpus(1):
        workspace, count = run(ops, feeds, engines, without=without, observable=observable)
        assert count == kernels
        for name, value in interpret(3 * ops, feeds).items():
            np.testing.assert_allclose(workspace.fetch(name), value, rtol=1e-5, atol=1e-6)
