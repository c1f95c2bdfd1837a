"""Constant parameters: reordered once, and again when they change."""

import numpy as np
import pytest

from checks import interpret
from kernel_checks import has_instructions, needs_bfloat16
from layouts_of_filters import SHAPE, stored_layouts
from netbuilder.engines import onednn
from netbuilder.engines.llvm import machine
from netbuilder.proto import PROTO_CUDA, BlobError, NetDef, NetError
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace

RNG = np.random.default_rng(0)


def random(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def conv_net(name="net"):
    net = NetDef(name=name, external_input=["x", "w"], external_output=["y"])
    net.op.append(make_op("Conv", ["x", "w"], ["y"], kernel=3, pad=1))
    return net


@pytest.fixture
def workspace():
    workspace = Workspace(threads=1)
    workspace.feed("x", random(2, 16, 8, 8))
    workspace.feed("w", random(32, 16, 3, 3))
    workspace.create_net(conv_net(), constants=["w"])
    workspace.run_net("net")
    return workspace


def check(workspace, net=None):
    """Compare the output with that of a new net, equal to the bit, and with the exact one."""
    net = net or conv_net()
    other = Workspace(threads=1)
    for name in net.external_input:
        other.feed(name, workspace.fetch(name))
    other.create_net(net, constants=["w"])
    other.run_net(net.name)
    got = workspace.fetch("y")
    assert np.array_equal(got, other.fetch("y"))
    exact = interpret(net.op, {name: workspace.fetch(name).astype(np.float64) for name in net.external_input})["y"]
    np.testing.assert_allclose(got, exact, rtol=0, atol=1e-5 * max(1, np.abs(exact).max()))


def reorders(workspace):
    net = workspace.net("net")
    return [step.inputs[0].name for step in net.plans[-1].steps if step.what == "reorder"]


def test_weights_are_put_in_order_once(workspace):
    check(workspace)
    assert "w" not in reorders(workspace)
    if onednn.available():
        workspace.create_net(conv_net(), overwrite=True)
        workspace.run_net("net")
        assert "w" in reorders(workspace)


def test_new_weights_count(workspace):
    for _ in range(3):
        workspace.feed("w", random(32, 16, 3, 3))
        workspace.run_net("net")
        check(workspace)


def test_new_inputs_count(workspace):
    for _ in range(2):
        workspace.feed("x", random(2, 16, 8, 8))
        workspace.run_net("net")
        check(workspace)


def test_weights_of_another_shape_and_back(workspace):
    first = workspace.fetch("w")
    for w in (random(8, 16, 3, 3), first, random(8, 16, 3, 3), random(32, 16, 3, 3)):
        workspace.feed("w", w)
        workspace.run_net("net")
        check(workspace)


def test_batches_in_turn(workspace):
    for batch in (2, 5, 2, 5):
        workspace.feed("x", random(batch, 16, 8, 8))
        workspace.feed("w", random(32, 16, 3, 3))
        workspace.run_net("net")
        check(workspace)


def test_weights_that_another_net_updates(workspace):
    update = NetDef(name="update", op=[make_op("Add", ["w", "w"], ["w"])])
    workspace.create_net(update)
    for _ in range(3):
        workspace.run_net("update")
        workspace.run_net("net")
        check(workspace)
    workspace.run_operator_once(make_op("Negative", ["w"], ["w"]))
    workspace.run_net("net")
    check(workspace)


def test_weights_that_another_net_wants_in_its_own_order(workspace):
    other = NetDef(name="trains")
    other.op.append(make_op("ConvGradient", ["x", "w", "y"], ["dw", "dx"], kernel=3, pad=1, no_bias=1))
    other.op.append(make_op("Sum", ["w", "dw"], ["w"]))
    workspace.create_net(other)
    for _ in range(3):
        workspace.run_net("trains")
        workspace.run_net("net")
        check(workspace)


READERS = {
    "Conv": ("Conv", (2, 16, 8, 8), {"kernel": 3, "pad": 1}),
    "Conv of groups": ("Conv", (2, 32, 8, 8), {"kernel": 3, "pad": 1, "group": 2}),
    "ConvTranspose": ("ConvTranspose", (2, 32, 8, 8), {"kernel": 3}),
    "FC": ("FC", (6, 144), {}),
    "FCTransposed": ("FCTransposed", (6, 32), {}),
}
LAYOUTS = [name for name in stored_layouts() if "rounded" not in name] if onednn.available() else ["plain"]


def feed(workspace, folder):
    workspace.feed("w", random(*SHAPE))


def update(workspace, folder):
    """What an optimizer does in a net that trains the weights."""
    workspace.feed("g", random(*SHAPE))
    workspace.feed("m", np.zeros(SHAPE, np.float32))
    workspace.feed("rate", np.array([0.5], np.float32))
    step = make_op("MomentumSGDUpdate", ["g", "m", "rate", "w"], ["g", "m", "w"], momentum=0.9)
    workspace.run_net_once(NetDef(name="optimizer", op=[step]))


def load(workspace, folder):
    saved = {"db": str(folder / "weights"), "db_type": "minidb", "absolute_path": 1}
    other = Workspace(threads=1)
    other.feed("w", random(*SHAPE))
    other.run_operator_once(make_op("Save", ["w"], [], **saved))
    workspace.run_operator_once(make_op("Load", [], ["w"], **saved))


def negate(workspace, folder):
    workspace.run_operator_once(make_op("Negative", ["w"], ["w"]))


@pytest.mark.parametrize("wide", [False, True] if machine.has_wide_registers() else [False])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("reader", READERS)
def test_weights_in_any_layout_that_change_in_any_way(monkeypatch, tmp_path, reader, layout, wide):
    """Two nets have copies of the weights, whose blob is left in the layout of a third one."""
    monkeypatch.setattr(machine, "has_wide_registers", lambda: wide)
    op_type, shape, arguments = READERS[reader]
    nets = []
    for name in ("first", "second"):
        net = NetDef(name=name, external_input=["x", "w", "b"], external_output=["y"])
        net.op.append(make_op(op_type, ["x", "w", "b"], ["y"], **arguments))
        nets.append(net)
    outputs = {"Conv": 32, "ConvTranspose": 16, "FC": 32, "FCTransposed": 144}[op_type]
    workspace = Workspace(threads=1)
    workspace.feed("x", random(*shape))
    workspace.feed("b", random(outputs))
    workspace.feed("w", random(*SHAPE))
    for net in nets:
        workspace.create_net(net, constants=["w"])
        workspace.run_net(net.name)
    workspace.find("w").relayout(stored_layouts()[layout] if onednn.available() else None)
    for change in (None, feed, update, load, negate):
        if change is not None:
            change(workspace, tmp_path)
        for net in nets:
            workspace.run_net(net.name)
            check(workspace, net)


def test_what_is_no_blob_of_the_net_is_refused():
    workspace = Workspace(threads=1)
    with pytest.raises(BlobError, match=r"net 'net' has no blob 'ww', so it cannot be constant; did you mean 'w'"):
        workspace.create_net(conv_net("net"), constants=["ww"])
    with pytest.raises(NetError, match="constants must be a list of blobs, got the single string 'w'"):
        workspace.create_net(conv_net("net"), constants="w")
    assert workspace.nets() == []


def test_what_the_net_writes_is_not_constant():
    net = conv_net("both")
    net.op.append(make_op("Scale", ["w"], ["w"], scale=0.5))
    workspace = Workspace(threads=1)
    workspace.feed("x", random(1, 16, 8, 8))
    workspace.feed("w", random(32, 16, 3, 3))
    workspace.create_net(net, constants=["x", "w"])
    assert workspace.net("both").options.constants == {"x"}
    workspace.run_net("both")
    first = workspace.fetch("y")
    workspace.run_net("both")
    np.testing.assert_allclose(workspace.fetch("y"), first / 2, rtol=1e-6)


@needs_bfloat16
def test_weights_that_are_rounded():
    x, w = random(2, 16, 8, 8), random(32, 16, 3, 3)
    results = []
    for constants in ((), ("w",)):
        workspace = Workspace(threads=1)
        workspace.feed("x", x)
        workspace.feed("w", w)
        workspace.create_net(conv_net(), dtype="bfloat16", constants=constants)
        workspace.run_net("net")
        workspace.feed("w", w[::-1])
        workspace.run_net("net")
        results.append(workspace.fetch("y"))
        assert ("w" in reorders(workspace)) is not bool(constants)
    assert np.array_equal(*results)


def test_parameters_of_a_gpu_cross_once(one_gpu):
    x, w, b = random(3, 4), random(5, 4), random(5)
    net = NetDef(name="gpu", external_input=["x", "w", "b"], external_output=["y"])
    net.device_option.CopyFrom(make_device_option(PROTO_CUDA, 0))
    net.op.extend([make_op("FC", ["x", "w", "b"], ["h"]), make_op("Relu", ["h"], ["y"])])
    workspace = Workspace(threads=1)
    for name, value in {"x": x, "w": w, "b": b}.items():
        workspace.feed(name, value)
    workspace.create_net(net, constants=["w", "b"], observable="outputs")
    for factor in (1, -2):
        workspace.feed("w", factor * w)
        for _ in range(2):
            workspace.run_net("gpu")
            np.testing.assert_allclose(workspace.fetch("y"), np.maximum(factor * x @ w.T + b, 0), rtol=1e-4, atol=1e-5)
    (plan,) = workspace.net("gpu").plans
    assert [value.name for step in plan.steps if step.what == "transfer" for value in step.inputs] == ["x"]


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("op_type", ["FC", "FCTransposed"])
@pytest.mark.parametrize("rows", [1, 8])
def test_constant_weights_of_an_fc(rows, op_type, relu):
    x, w, b = random(rows, 70), random(90, 70), random(90)
    net = NetDef(name="fc", external_input=["x", "w", "b"], external_output=["y"])
    net.op.extend([make_op(op_type, ["x", "w", "b"], ["y"]), *([make_op("Relu", ["y"], ["y"])] if relu else [])])
    workspace = Workspace(threads=1)
    workspace.feed("x", x)
    workspace.feed("b", b)
    workspace.feed("w", w if op_type == "FC" else w.T.copy())
    workspace.create_net(net, constants=["w", "b"], observable="outputs")
    for factor in (1, -2):
        workspace.feed("w", factor * (w if op_type == "FC" else w.T))
        for _ in range(2):
            workspace.run_net("fc")
            want = factor * x.astype(np.float64) @ w.T + b
            np.testing.assert_allclose(workspace.fetch("y"), np.maximum(want, 0) if relu else want, atol=1e-4)
    if onednn.available():
        (plan,) = workspace.net("fc").plans
        assert [value.name for step in plan.steps if step.what == "reorder" for value in step.inputs] == []
        if has_instructions("avx512"):
            assert [value.name for step in plan.steps for value in step.inputs if value.spec.layout] == ["w"]
