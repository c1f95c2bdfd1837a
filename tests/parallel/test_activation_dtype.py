"""Models with bfloat16 requested: by the net, by the model, by Parallelize."""

import numpy as np
import pytest

from netbuilder import parallel
from netbuilder.engines import onednn
from netbuilder.graph import Net
from netbuilder.model import ModelHelper
from netbuilder.proto import NetError
from netbuilder.proto.arguments import arguments
from netbuilder.runtime import Workspace
from parallel_models import OPTIMIZERS, no_input
from toy_models import convnet


def asked(net):
    return arguments(net.Proto()).get("activation_dtype")


def build(model=None, **options):
    model = model or ModelHelper("net")
    record = parallel.Parallelize_CPU(
        model, no_input, convnet, optimizer_builder_fun=OPTIMIZERS["momentum"], devices=[0, 1], **options
    )
    return model, record


def test_a_net_says_how_its_activations_are_kept():
    net = Net("said")
    assert asked(net) is None
    for dtype in ("bfloat16", "float32"):
        net.set_activation_dtype(dtype)
        assert asked(net) == dtype.encode()
    assert len(net.Proto().arg) == 1
    assert asked(net.Clone("copy")) == b"float32"
    with pytest.raises(NetError, match="must be stored as one of float32, bfloat16, float16; got 'float64'"):
        net.set_activation_dtype("float64")


def test_a_model_says_it_for_its_main_net():
    model = ModelHelper("model", dtype="bfloat16")
    assert asked(model.net) == b"bfloat16"
    assert asked(model.param_init_net) is None
    assert asked(ModelHelper("other").net) is None


@pytest.mark.parametrize("how", ["model", "call"])
def test_a_parallel_net_says_it(how):
    model, _ = build(ModelHelper("net", dtype="bfloat16")) if how == "model" else build(dtype="bfloat16")
    assert asked(model.net) == b"bfloat16"
    assert "replica_prefixes" in arguments(model.net.Proto())


def test_a_type_that_is_none_leaves_the_model_as_it_was():
    model = ModelHelper("net")
    before = model.net.Proto().SerializeToString()
    with pytest.raises(NetError, match="one of float32, bfloat16, float16"):
        build(model, dtype="int8")
    assert model.net.Proto().SerializeToString() == before


@pytest.mark.skipif(not onednn.available(), reason="needs oneDNN")
def test_replicas_stay_equal_and_near_those_in_float32():
    found = {}
    for dtype in ("float32", "bfloat16"):
        model, record = build(dtype=dtype)
        workspace = Workspace(threads=2)
        rng = np.random.default_rng(1)
        for scope in record.devices.scopes:
            workspace.feed(scope + "data", rng.normal(size=(4, 3, 8, 8)).astype(np.float32))
            workspace.feed(scope + "label", rng.integers(0, 4, 4).astype(np.int32))
        parallel.RunInitNet(model, workspace=workspace)
        parallel.RunNet(model, 4, workspace=workspace)
        for name in record.parameters:
            first, second = (workspace.fetch(blob) for blob in record.blobs(name))
            np.testing.assert_array_equal(first, second)
            found[dtype, name] = first
    for name in record.parameters:
        want = found["float32", name]
        assert np.linalg.norm(found["bfloat16", name] - want) < 0.03 * np.linalg.norm(want), name
