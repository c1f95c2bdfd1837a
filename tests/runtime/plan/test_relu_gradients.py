"""ReluGradient before the gradient of MaxPool and Concat: the same to the bit, and what the Relu wrote is not kept."""

from __future__ import annotations

import numpy as np
import pytest

from netbuilder.engines import onednn
from netbuilder.model import ModelHelper, brew
from netbuilder.runtime import Workspace
from switches import single
from toy_models import softmax_loss

RNG = np.random.default_rng(0)
WITHOUT = single("early_relu_gradients")
X = RNG.normal(size=(2, 16, 14, 14)).astype(np.float32)
LABEL = RNG.integers(0, 5, 2).astype(np.int32)


def pooled(model, **args):
    """Conv, Relu, MaxPool."""
    conv = brew.conv(model, "x", "conv", 16, 32, kernel=3, pad=1)
    relu = brew.relu(model, conv, args.pop("relu", "conv"))
    return brew.max_pool(model, relu, "pool", **args)


def joined(model):
    """Two Convs with Relu, Concat."""
    parts = [brew.conv(model, "x", f"conv{i}", 16, 16, kernel=3, pad=1) for i in range(2)]
    return brew.concat(model, [brew.relu(model, part, part) for part in parts], "joined")


def also_summed(model):
    """What is pooled is read by another operator, too, so its gradient is a sum."""
    pool = pooled(model, kernel=1)
    return model.net.Sum([pool, "conv"], "sum")


def joined_with_another(model):
    conv = [brew.conv(model, "x", f"conv{i}", 16, 16, kernel=3, pad=1) for i in range(2)]
    return brew.concat(model, [brew.relu(model, conv[0], conv[0]), model.net.Sigmoid(conv[1], "other")], "joined")


def joined_and_overwritten(model):
    return model.net.Scale(joined(model), "joined", scale=2.0)


MOVED = {
    "windows side by side": lambda model: pooled(model, kernel=2, stride=2),
    "overlapping windows": lambda model: pooled(model, kernel=3, stride=2, pad=1),
    "Relu not in place": lambda model: pooled(model, kernel=3, stride=2, relu="relu"),
    "Concat": joined,
}
KEPT = {
    "read by another": also_summed,
    "Concat with another": joined_with_another,
    "Concat overwritten": joined_and_overwritten,
}


def model_of(build):
    model = ModelHelper("net", arg_scope={"order": "NCHW"})
    y = brew.conv(model, build(model), "last", 32, 4, kernel=3, pad=1)
    y = brew.average_pool(model, y, "mean", global_pooling=1, kernel=1)
    gradients = model.AddGradientOperators([softmax_loss(model, brew.fc(model, y, "scores", 4, 5))])
    return model, [str(gradients[str(p)]) for p in model.params]


def run(build, *blobs, **options):
    """Return the steps that are operators, and the values of the parameters' gradients and of more blobs."""
    model, gradients = model_of(build)
    workspace = Workspace(threads=1, seed=3, engines=options.pop("engines", None))
    workspace.run_net_once(model.param_init_net)
    workspace.feed("x", X)
    workspace.feed("label", LABEL)
    options.setdefault("observable", gradients)
    options["without"] = [*options.get("without", ()), *single("elementwise_chains")]
    net = workspace.create_net(model.net, **options)
    workspace.run_net(net, 2)
    (plan,) = workspace.net(net).plans
    steps = [step for step in plan.steps if not step.moves]
    return steps, {name: workspace.fetch(name) for name in (*gradients, *blobs)}


def order(steps):
    """Return in which order the gradients of Relu and of what follows it run."""
    types = [step.node.first.op_def.type for step in steps]
    return [each for each in types if each in ("ReluGradient", "MaxPoolGradient", "Split")]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("engines", [None, ()])
@pytest.mark.parametrize("name", [*MOVED, *KEPT])
def test_same_to_the_bit(name, engines):
    if engines is None and not onednn.available():
        pytest.skip("needs oneDNN")
    build = {**MOVED, **KEPT}[name]
    on, got = run(build, engines=engines)
    off, want = run(build, engines=engines, without=WITHOUT)
    assert order(off)[-1] == "ReluGradient"
    assert (order(on) != order(off)) == (name in MOVED)
    if name in MOVED:
        assert order(on)[0] == "ReluGradient" and len(order(on)) == 2
    for blob, value in want.items():
        np.testing.assert_array_equal(got[blob], value, err_msg=blob)


@pytest.mark.parametrize("name", [name for name in MOVED if name != "Relu not in place"])
def test_every_blob_can_be_fetched(name):
    """The gradient of what was pooled or joined is that before the Relu's: it is not overwritten."""
    blob = "joined_grad" if name == "Concat" else "pool_grad"
    steps, got = run(MOVED[name], blob, observable="all")
    _, want = run(MOVED[name], blob, observable="all", without=WITHOUT)
    assert order(steps)[0] == "ReluGradient"
    assert (want[blob] != 0).mean() > 0.9
    for each, value in want.items():
        np.testing.assert_array_equal(got[each], value, err_msg=each)


def test_a_gradient_that_can_be_fetched_stays():
    steps, got = run(MOVED["Relu not in place"], "relu_grad", observable="all")
    _, want = run(MOVED["Relu not in place"], "relu_grad", observable="all", without=WITHOUT)
    assert order(steps) == ["MaxPoolGradient", "ReluGradient"]
    np.testing.assert_array_equal(got["relu_grad"], want["relu_grad"])


@pytest.mark.one_in(2)
@pytest.mark.skipif(not onednn.available(), reason="needs oneDNN")
@pytest.mark.parametrize("name", MOVED)
def test_what_the_relu_wrote_is_not_kept(name):
    names = {"conv0", "conv1"} if name == "Concat" else {"relu"} if name == "Relu not in place" else {"conv"}
    for without, kept in (((), set()), (WITHOUT, names)):
        backward = [step for step in run(MOVED[name], without=without)[0] if step.node.first.op_def.is_gradient_op]
        assert {value.name for step in backward for value in step.inputs if value is not None} & names == kept
