"""TF32 in products on GPUs: where it is allowed, where not, and what it costs."""

import numpy as np
import pytest

import emulated_gpu
from netbuilder import parallel
from netbuilder.engines import tf32
from netbuilder.engines.cuda import cublas
from netbuilder.engines.tf32 import has_tf32
from netbuilder.graph import Net
from netbuilder.model import ModelHelper
from netbuilder.proto import PROTO_CUDA, NetDef, NetError
from netbuilder.proto.arguments import arguments, make_device_option, make_op
from netbuilder.runtime import Workspace
from parallel_models import OPTIMIZERS, no_input
from toy_models import mlp

GPU = make_device_option(PROTO_CUDA, 0)
ONE, ROUNDED = 1 + 2.0**-12, 1.0
"""A number, and what it is in TF32."""


@pytest.fixture
def of_cupy(monkeypatch):
    """How CuPy's products are computed: what is set, in order."""
    routines, during = pytest.importorskip("cupy")._core._routines_linalg, []
    set_type = routines.set_compute_type

    def noted(dtype, kind):
        during.append(kind)
        set_type(dtype, kind)

    monkeypatch.setattr(routines, "set_compute_type", noted)
    before = routines.get_compute_type("f")
    yield during
    assert routines.get_compute_type("f") == before


def product(**options):
    """A product of numbers that TF32 rounds, with ones."""
    net = NetDef(name="net", external_input=["a", "b"])
    net.op.append(make_op("MatMul", ["a", "b"], ["c"], device_option=GPU))
    workspace = Workspace()
    for name, value in (("a", ONE), ("b", 1)):
        workspace.feed(name, np.full((2, 2), value, np.float32), GPU)
    workspace.create_net(net, **options)
    workspace.run_net("net")
    return workspace.fetch("c").tolist()


@pytest.mark.emulated
@pytest.mark.parametrize("allowed", [True, False, None])
def test_products_use_tf32_only_where_it_is_allowed(of_cupy, allowed):
    assert product(allow_tf32=allowed) == [[2 * (ROUNDED if allowed else ONE)] * 2] * 2
    assert of_cupy == []  # which other threads use


@pytest.mark.emulated
@pytest.mark.parametrize("allowed", [True, False, None])
def test_products_that_cupy_computes(of_cupy, allowed, monkeypatch):
    monkeypatch.setattr(cublas, "library_of", lambda xp: None)
    assert product(allow_tf32=allowed) == [[2 * (ROUNDED if allowed else ONE)] * 2] * 2
    assert of_cupy[:1] == ([tf32.TF32] if allowed else [])


@pytest.mark.emulated
def test_an_error_resets_it(of_cupy):
    workspace = Workspace()
    net = NetDef(name="net", external_input=["a"])
    net.op.append(make_op("EnforceFinite", ["a"], [], device_option=GPU))
    workspace.feed("a", np.full((2, 2), np.nan, np.float32), GPU)
    workspace.create_net(net, allow_tf32=True)
    with pytest.raises(NetError, match="are infinite or NaN"):
        workspace.run_net("net")
    assert of_cupy[0] == tf32.TF32


@pytest.mark.emulated
def test_a_gpu_without_it(monkeypatch):
    monkeypatch.setattr(tf32, "FIRST", 91)
    assert not has_tf32(0)
    assert product(allow_tf32=True) == [[2 * ONE] * 2] * 2


def test_nets_and_models_say_it():
    net = Net("net")
    assert "allow_tf32" not in arguments(net.Proto())
    net.set_allow_tf32(True)
    assert arguments(net.Proto())["allow_tf32"] == 1
    for wrong in ("yes", 2, 1.0, None):
        with pytest.raises(NetError, match="allow(_tf32)? must be True or False, got"):
            net.set_allow_tf32(wrong)
    update, options = OPTIMIZERS["sgd"], {"devices": [0], "allow_tf32": True}
    blocks, model = ModelHelper("blocks"), ModelHelper("model")
    parallel.Parallelize_CPU_BMUF(blocks, no_input, mlp, update, **options)
    parallel.Parallelize_CPU(model, no_input, mlp, optimizer_builder_fun=update, **options)
    assert arguments(blocks.net.Proto())["allow_tf32"] == arguments(model.net.Proto())["allow_tf32"] == 1
    workspace = Workspace()
    with pytest.raises(NetError, match="net 'model': allow_tf32 must be True or False, got 'no'"):
        workspace.create_net(model.net, allow_tf32="no")


@pytest.mark.gpu
def test_what_it_costs_on_a_gpu():
    """Factors have 10 bits after the point instead of 23: products of n terms are off by about 2**-11 sqrt(n)."""
    if emulated_gpu.active() or not has_tf32(0):
        pytest.skip("needs a real GPU with TF32 (Ampere or later)")
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 512, 512)).astype(np.float32)
    exact, errors = a.astype(np.float64) @ b.astype(np.float64), []
    for allowed in (False, True):
        workspace = Workspace()
        net = NetDef(name="net", external_input=["a", "b"])
        net.op.append(make_op("MatMul", ["a", "b"], ["c"], device_option=GPU))
        workspace.feed("a", a, GPU)
        workspace.feed("b", b, GPU)
        workspace.create_net(net, allow_tf32=allowed)
        workspace.run_net("net")
        errors.append(float(np.abs(workspace.fetch("c") - exact).max()))
    assert errors[0] < 1e-3 < errors[1] < 0.1, errors
