"""Outputs that no operator reads: computed when they are fetched, or not at all, and with the same numbers."""

import numpy as np
import pytest

from netbuilder.engines import onednn
from netbuilder.graph import Net
from netbuilder.model import ModelHelper, brew
from netbuilder.optimizers import build_sgd
from netbuilder.runtime import Workspace
from switches import single
from toy_models import softmax_loss

pytestmark = pytest.mark.skipif(not onednn.available(), reason="needs oneDNN")

RNG = np.random.default_rng(0)
DATA = RNG.standard_normal((32, 3, 8, 8)).astype(np.float32)
LABEL = RNG.integers(0, 5, 32).astype(np.int32)


def training(first, order="NCHW", name="m"):
    model = ModelHelper(name=name, arg_scope={"order": order})
    blob = "data"
    if first == "Conv":
        blob = brew.conv(model, blob, "c", 3, 16, 3, pad=1)
    elif first == "ConvTranspose":
        blob = brew.conv_transpose(model, blob, "c", 3, 16, 3, pad=1)
    elif first == "LRN":
        blob = brew.relu(model, brew.conv(model, blob, "c", 3, 16, 3, pad=1), "c")
        blob = brew.lrn(model, blob, "n", size=5, alpha=0.1, beta=0.75, bias=2.0)
    size = 3 * 64 if first == "FC" else 16 * 64
    scores = brew.fc(model, blob, "f", size, 5)
    model.AddGradientOperators([softmax_loss(model, scores)])
    build_sgd(model, 0.1, momentum=0.9)
    return model


def created(model, order="NCHW", **options):
    workspace = Workspace(threads=1)
    workspace.feed("data", DATA if order == "NCHW" else np.ascontiguousarray(DATA.transpose(0, 2, 3, 1)))
    workspace.feed("label", LABEL)
    workspace.run_net_once(model.param_init_net)
    workspace.create_net(model.net, **options)
    return workspace


def left(workspace, blob):
    return workspace.find(blob).lazy is not None


def distance(got, want):
    return np.linalg.norm(got - want) / np.linalg.norm(want)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("first, blob", [("Conv", "data_grad"), ("ConvTranspose", "data_grad"), ("FC", "data_grad"),
                                         ("LRN", "data_grad"), ("LRN", "_n_scale")])  # fmt: skip
def test_computed_when_fetched(first, blob, order, dtype):
    model = training(first, order)
    one = created(model, order, dtype=dtype)
    other = created(model, order, dtype=dtype, without=single("unread_outputs"))
    for _ in range(3):
        one.run_net(model.net)
        other.run_net(model.net)
        want, tolerance = other.fetch(blob), 1e-5 if dtype == "float32" else 0.05
        assert left(one, blob) and not left(other, blob)
        assert distance(one.fetch(blob), want) <= tolerance
    for parameter in model.GetParams():
        want = other.fetch(parameter)
        assert distance(one.fetch(parameter), want) <= tolerance


@pytest.mark.parametrize("blob, read", [("data_grad", "c_grad"), ("_n_scale", "c")])
def test_computed_before_what_it_reads_is_fed(blob, read):
    model = training("LRN")
    workspace = created(model)
    workspace.run_net(model.net)
    want = workspace.fetch(blob)
    workspace.feed(read, np.ones_like(workspace.fetch(read)))
    assert not left(workspace, blob)
    assert np.array_equal(workspace.fetch(blob), want)
    workspace.run_net(model.net)
    assert left(workspace, blob) and not np.array_equal(workspace.fetch(blob), want)


def test_computed_before_another_net_overwrites_what_it_reads():
    model = training("LRN")
    workspace = created(model)
    other = Net("other")
    other.Scale("data", "big", scale=2.0)
    other.Conv(["big", "c_w", "c_b"], "c", kernel=3, pad=1)
    other.Relu("c", "c")
    workspace.create_net(other)
    for _ in range(3):
        workspace.run_net(model.net)
        want = workspace.fetch("_n_scale")
        assert left(workspace, "_n_scale")
        workspace.run_net(other)
        assert np.array_equal(workspace.fetch("_n_scale"), want)
        workspace.run_net(other)
        assert np.array_equal(workspace.fetch("_n_scale"), want)


def test_another_net_reads_it():
    model = training("Conv")
    workspace, plain = created(model), created(model, without=single("unread_outputs"))
    reader = Net("reader")
    reader.Scale("data_grad", "scaled", scale=2.0)
    for each in (workspace, plain):
        each.run_net(model.net)
        each.create_net(reader)
    for _ in range(2):
        results = []
        for each in (workspace, plain):
            each.run_net(model.net)
            each.run_net(reader)
            results.append(each.fetch("scaled"))
        assert np.allclose(*results, rtol=1e-4, atol=1e-6)


def test_not_computed_where_it_is_not_observable():
    model = training("LRN")
    workspace = created(model, observable=["loss"])
    workspace.run_net(model.net)
    (plan,) = workspace.net(model.net.Name()).plans
    gradient = next(step for step in plan.steps if step.node.first.op_def.type == "ConvGradient")
    assert gradient.outputs[-1] is None and "backward_data" not in gradient.prepared.name
    whole = created(model, without=single("unread_outputs"))
    whole.run_net(model.net)
    assert np.allclose(workspace.fetch("loss"), whole.fetch("loss"))
    assert np.allclose(workspace.fetch("c_w"), whole.fetch("c_w"), rtol=1e-4, atol=1e-6)


def test_what_the_net_reads_is_computed():
    net = Net("n")
    net.Conv(["x", "w"], "y", kernel=3)
    net.ConvGradient(["x", "w", "y"], ["dw", "dx"], kernel=3, no_bias=1)
    net.Scale("dx", "z", scale=1.0)
    workspace = Workspace(threads=1)
    workspace.feed("x", DATA)
    workspace.feed("w", RNG.standard_normal((4, 3, 3, 3)).astype(np.float32))
    workspace.run_net_once(net)
    workspace.create_net(net)
    workspace.run_net(net)
    assert not left(workspace, "dx")


def test_an_operator_outside_of_the_plan_reads_it():
    net = Net("n")
    net.Conv(["x", "w"], "y", kernel=3)
    net.ConvGradient(["x", "w", "y"], ["dw", "dx"], kernel=3, no_bias=1)
    net.Unique("labels", "found")  # how many there are depends on the data
    net.Scale("dx", "z", scale=1.0)
    workspace = Workspace(threads=1)
    workspace.feed("x", DATA)
    workspace.feed("labels", LABEL)
    workspace.feed("w", RNG.standard_normal((4, 3, 3, 3)).astype(np.float32))
    workspace.create_net(net)
    for _ in range(2):
        workspace.run_net(net)
        assert not left(workspace, "dx")
        assert np.array_equal(workspace.fetch("z"), workspace.fetch("dx"))
