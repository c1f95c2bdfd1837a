"""TF32 in products on GPUs: where it is allowed, where not, and what it costs."""

from types import SimpleNamespace

import numpy as np
import pytest

import emulated_gpu
from cupy_double import CupyDouble, using
from netbuilder import parallel
from netbuilder.graph import Net
from netbuilder.model import ModelHelper
from netbuilder.ops.engines.cuda import cublas
from netbuilder.ops.engines.tf32 import has_tf32
from netbuilder.proto import PROTO_CUDA, NetDef, NetError
from netbuilder.proto.arguments import arguments, make_device_option, make_op
from netbuilder.runtime import Workspace
from parallel_models import OPTIMIZERS, mlp, no_input

GPU = make_device_option(PROTO_CUDA, 0)


IN_FLOAT32, IN_TF32 = 68, 77  # as cuBLAS numbers them


class Routines:
    """What of CuPy sets how its own products are computed."""

    def __init__(self):
        self.kind, self.during = 1, []

    def get_compute_type(self, dtype):
        assert dtype == "f"
        return self.kind

    def set_compute_type(self, dtype, kind):
        self.kind = kind
        self.during.append(kind)


@pytest.fixture
def ampere(monkeypatch):
    """A double of a GPU with TF32; yields CuPy's settings."""
    cupy = CupyDouble(1)
    cupy._core = SimpleNamespace(_routines_linalg=Routines())
    monkeypatch.setattr(type(cupy.cuda.Device(0)), "compute_capability", "80")
    with using(cupy):
        cupy._core._routines_linalg.cublas = cupy.cuda.cublas
        yield cupy._core._routines_linalg


def product(**options):
    net = NetDef(name="net", external_input=["a", "b"])
    net.op.append(make_op("MatMul", ["a", "b"], ["c"], device_option=GPU))
    workspace = Workspace()
    for name in "ab":
        workspace.feed(name, np.eye(2, dtype=np.float32), GPU)
    workspace.create_net(net, **options)
    workspace.run_net("net")
    return workspace.fetch("c")


@pytest.mark.parametrize("allowed", [True, False, None])
def test_products_use_tf32_only_where_it_is_allowed(ampere, allowed):
    assert product(allow_tf32=allowed).tolist() == [[1, 0], [0, 1]]
    assert [how for *_, how, _ in ampere.cublas.products] == [IN_TF32 if allowed else IN_FLOAT32]
    assert ampere.during == []  # of other threads


@pytest.mark.parametrize("allowed", [True, False, None])
def test_products_that_cupy_computes(ampere, allowed, monkeypatch):
    monkeypatch.setattr(cublas, "_library", lambda xp: None)
    assert product(allow_tf32=allowed).tolist() == [[1, 0], [0, 1]]
    assert ampere.during == ([7, 1] if allowed else []) and ampere.kind == 1


def test_an_error_resets_it(ampere):
    workspace = Workspace()
    net = NetDef(name="net", external_input=["a"])
    net.op.append(make_op("EnforceFinite", ["a"], [], device_option=GPU))
    workspace.feed("a", np.full((2, 2), np.nan, np.float32), GPU)
    workspace.create_net(net, allow_tf32=True)
    with pytest.raises(NetError, match="are infinite or NaN"):
        workspace.run_net("net")
    assert ampere.during == [7, 1]


def test_a_gpu_without_it():
    cupy = CupyDouble(1)
    with using(cupy):
        assert not has_tf32(0)
        assert product(allow_tf32=True).tolist() == [[1, 0], [0, 1]]
    assert [how for *_, how, _ in cupy.cuda.cublas.products] == [IN_FLOAT32]


def test_nets_and_models_say_it():
    net = Net("net")
    assert "allow_tf32" not in arguments(net.Proto())
    net.set_allow_tf32(True)
    assert arguments(net.Proto())["allow_tf32"] == 1
    for wrong in ("yes", 2, 1.0, None):
        with pytest.raises(NetError, match="net net.*: allow_tf32 must be True or False, got"):
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
