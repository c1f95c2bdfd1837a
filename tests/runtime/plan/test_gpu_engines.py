"""Engines for GPUs: a plan asks the engines of the device that an operator runs on."""

import numpy as np
import pytest

from cupy_double import gpus
from gpu_engine import installed
from netbuilder.ops.engines.engine import Engine, library_engines
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, NetDef
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace

GPU = make_device_option(PROTO_CUDA, 0)
X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


def net(*ops, device=GPU):
    made = NetDef(name="net", op=ops)
    made.device_option.CopyFrom(device)
    return made


def kernels_of(workspace):
    (plan,) = workspace.net("net")._plans[0]
    return [step.prepared.name for step in plan.steps if not step.moves]


class OfTheHost(Engine):
    name = "HOST_ONLY"


def test_engines_serve_the_devices_that_they_name(monkeypatch):
    assert OfTheHost.device_types == (PROTO_CPU,)
    with gpus(1), installed(monkeypatch) as fake:
        assert fake in library_engines(lambda name: True, PROTO_CUDA)
        assert fake in library_engines(lambda name: True)
        assert fake not in library_engines(lambda name: True, PROTO_CPU)
        assert fake not in library_engines(lambda name: name != "FAKE", PROTO_CUDA)


def test_a_fusion_is_for_the_devices_of_its_engine(monkeypatch):
    ops = [make_op("FC", ["x", "w", "b"], ["y"]), make_op("Relu", ["y"], ["y"])]
    fed = {"x": X, "w": np.ones((4, 3), np.float32), "b": np.full(4, -0.5, np.float32)}
    expected = np.maximum(X @ fed["w"].T + fed["b"], 0)
    with gpus(1), installed(monkeypatch):
        for engines, device, fused in (("FAKE", GPU, 1), ("ONEDNN", GPU, 0), ("FAKE", None, 0)):
            workspace = Workspace(engines=(engines,))
            for name, value in fed.items():
                workspace.feed(name, value)
            workspace.create_net(net(*ops, device=device or make_device_option(PROTO_CPU, 0)))
            workspace.run_net("net")
            assert kernels_of(workspace).count("fake fc + relu") == fused
            np.testing.assert_allclose(workspace.fetch("y"), expected, rtol=1e-6)


@pytest.mark.parametrize("observable", ["all", "outputs"])
def test_updates_of_a_gpu_are_joined_by_its_engine(monkeypatch, observable):
    shapes = {"p": (3, 4), "q": (5,), "r": (2, 2, 2)}
    ops = [
        make_op("MomentumSGDUpdate", [f"{n}_g", f"{n}_m", "lr", n], [f"{n}_g", f"{n}_m", n], momentum=0.9)
        for n in shapes
    ]
    rng = np.random.default_rng(0)
    fed = {name + end: rng.normal(size=shapes[name]).astype(np.float32) for name in shapes for end in ("", "_g", "_m")}
    found = {}
    with gpus(1), installed(monkeypatch) as fake:
        for without in ((), ("joined_updates",)):
            workspace = Workspace(engines=("FAKE",))
            workspace.feed("lr", np.float32([0.1]))
            for name, value in fed.items():
                workspace.feed(name, value, GPU)
            workspace.create_net(net(*ops), without=without, observable=observable)
            for _ in range(3):
                workspace.run_net("net")
            found[without] = {name: workspace.fetch(name) for name in fed}
            assert kernels_of(workspace) == (["plain"] * 3 if without else ["fake updates"])
        assert fake.joined == [3]
    for name in fed:
        np.testing.assert_array_equal(found[()][name], found["joined_updates",][name])
    with gpus(1), installed(monkeypatch):  # an engine that the workspace does not allow is not asked
        workspace = Workspace(engines=())
        workspace.feed("lr", np.float32([0.1]))
        for name, value in fed.items():
            workspace.feed(name, value, GPU)
        workspace.create_net(net(*ops))
        workspace.run_net("net")
        assert kernels_of(workspace) == ["plain"] * 3
