"""Convolutions over bfloat16 that multiply in float32: the numbers of float32 kernels, rounded once."""

import numpy as np
import pytest

from netbuilder.engines.onednn import widened
from netbuilder.engines.onednn.library import available
from netbuilder.model import ModelHelper, brew
from netbuilder.optimizers import build_sgd
from netbuilder.runtime import Workspace
from switches import single
from toy_models import softmax_loss

pytestmark = pytest.mark.skipif(not available(), reason="needs oneDNN")

IMAGES = np.random.default_rng(2).normal(size=(3, 16, 9, 9)).astype(np.float32)


@pytest.fixture
def always(monkeypatch):
    monkeypatch.setattr(widened, "LARGE_FLOPS", 0)
    monkeypatch.setattr(widened, "fastest", lambda key, candidates, n, **cost: "float32")


def net_of(order="NCHW", layer="conv", **options):
    def build(model):
        x = brew.spatial_bn(model, "data", "bn0", 16, order=order, is_test=0)
        if layer == "conv":
            x = brew.conv(model, x, "c1", 16, 32, kernel=3, pad=1, order=order, **options)
            x = brew.relu(model, brew.spatial_bn(model, x, "bn1", 32, order=order, is_test=0), "r1")
            x = brew.conv(model, x, "c2", 32, 16, kernel=1, stride=2, order=order)
        else:
            x = brew.conv_transpose(model, x, "c1", 16, 8, kernel=2, stride=2, order=order)
        return brew.average_pool(model, x, "pool", global_pooling=1, order=order)

    return build


def trained(build, order, dtype, **options):
    model = ModelHelper("wide")
    x = build(model)
    channels = 16 if "c2_w" in map(str, model.GetParams()) else 8
    model.AddGradientOperators([softmax_loss(model, brew.fc(model, x, "fc", channels, 5))])
    build_sgd(model, 0.1)
    workspace = Workspace(threads=1, seed=4)
    workspace.feed("data", IMAGES if order == "NCHW" else np.ascontiguousarray(IMAGES.transpose(0, 2, 3, 1)))
    workspace.feed("label", np.int32([0, 3, 4]))
    workspace.run_net_once(model.param_init_net)
    before = {str(p): workspace.fetch(str(p)) for p in model.GetParams()}
    name = workspace.create_net(model.net, dtype=dtype, **options)
    workspace.run_net(name, 2)
    plans = workspace.net(name).plans
    wide = [step for step in plans[-1].steps if "in float32" in step.prepared.name]
    values = {blob: workspace.fetch(blob) for blob in ("c1", "data_grad", "loss")}
    return {p: workspace.fetch(p) - before[p] for p in before} | values, wide


@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    "options", [{}, {"no_bias": 1}, {"group": 2}, {"layer": "conv_transpose"}], ids=str
)  # fmt: skip
@pytest.mark.one_in(2)
def test_a_step_is_near_that_in_float32(options, order, always):
    build = net_of(order, **options)
    want, _ = trained(build, order, "float32")
    got, wide = trained(build, order, "bfloat16")
    assert wide and all(step.outputs[0] is None or step.inputs[0] is not None for step in wide)
    assert any(value is not None and value.spec.rounds for step in wide for value in step.outputs)
    for name, value in want.items():
        if name.endswith("_b"):
            continue  # sums in which large terms cancel; before a normalization they are 0
        assert np.linalg.norm(got[name] - value) <= 0.03 * np.linalg.norm(value), name


def test_outputs_take_half_the_memory(always):
    _, wide = trained(net_of(), "NCHW", "bfloat16")
    images = [value for step in wide for value in step.outputs if value is not None and value.spec.ndim == 4]
    assert any(value.spec.nbytes < value.spec.size * 4 for value in images)


def test_float32_and_small_operators_are_as_before(monkeypatch):
    def fail(*args):
        raise AssertionError("nothing is to be measured")

    monkeypatch.setattr(widened, "fastest", fail)
    assert not trained(net_of(), "NCHW", "bfloat16")[1]
    monkeypatch.setattr(widened, "LARGE_FLOPS", 0)
    assert not trained(net_of(), "NCHW", "float32")[1]
    assert not trained(net_of(), "NCHW", "bfloat16", without=single("wide_products"))[1]
