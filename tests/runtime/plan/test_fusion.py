"""Fusion: which operators are fused and which are not, with the same results."""

import numpy as np
import pytest

from netbuilder.engines import onednn
from netbuilder.model import ModelHelper, brew
from netbuilder.proto import NetDef
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from toy_models import softmax_loss

pytestmark = pytest.mark.skipif(not onednn.available(), reason="needs oneDNN")

RNG = np.random.default_rng(0)


def random(*shape):
    return RNG.normal(size=shape).astype(np.float32)


VALUES = {
    "x": random(2, 16, 9, 9),
    "a": random(2, 16, 9, 9),
    "w": random(16, 16, 3, 3) / 12,
    "b": random(16),
    "mean": random(16),
    "var": np.abs(random(16)) + 0.5,
    "scale": random(16),
    "fx": random(4, 6),
    "fw": random(5, 6),
    "fb": random(5),
}


def conv(x, y, w="w"):
    return make_op("Conv", [x, w, "b"], [y], kernel=3, pad=1)


def relu(x, y):
    return make_op("Relu", [x], [y])


def bn(x, y):
    return make_op("SpatialBN", [x, "scale", "b", "mean", "var"], [y], is_test=1)


def total(*names):
    return make_op("Sum", names[:-1], names[-1:])


def dropout(x, y, *mask, **args):
    return make_op("Dropout", [x], [y, *mask], is_test=1, **args)


def on(device, op):
    op.device_option.CopyFrom(make_device_option(0, device))
    return op


def net_of(ops, outputs):
    net = NetDef(name="net", external_input=VALUES, external_output=outputs)
    net.op.extend(ops)
    return net


def run(net, **options):
    workspace = Workspace(threads=1)
    for name, value in VALUES.items():
        workspace.feed(name, value)
    workspace.create_net(net, **options)
    for _ in range(2):
        workspace.run_net("net")
    (plan,) = workspace.net("net").plans
    steps = ["+".join(part.op_def.type for part in step.node.parts) for step in plan.steps if not step.moves]
    return steps, {name: workspace.fetch(name) for name in net.external_output}


CASES = {
    "Conv, Relu": ([conv("x", "y"), relu("y", "z")], "z", ["Conv+Relu"]),
    "Conv, Relu in place": ([conv("x", "y"), relu("y", "y")], "y", ["Conv+Relu"]),
    "FC, Relu": ([make_op("FC", ["fx", "fw", "fb"], ["y"]), relu("y", "z")], "z", ["FC+Relu"]),
    "SpatialBN, Relu": ([bn("x", "y"), relu("y", "z")], "z", ["SpatialBN+Relu"]),
    "Sum, Relu": ([total("x", "a", "y"), relu("y", "z")], "z", ["Sum+Relu"]),
    "residual": (
        [relu("x", "r"), conv("r", "c"), relu("c", "c"), conv("c", "d"), total("r", "d", "s"), relu("s", "s")],
        "s",
        ["Relu", "Conv+Relu", "Conv+Sum+Relu"],
    ),
    "Sum without Relu": ([relu("x", "r"), conv("r", "c"), total("c", "r", "s"), make_op("Exp", ["s"], ["e"])], "e",
                         ["Relu", "Conv", "Sum+Exp"]),  # the Conv reads what it would overwrite
    "Sum of two Convs": ([conv("x", "c"), conv("a", "d"), total("c", "d", "s")], "s", ["Conv", "Conv+Sum"]),
    "Add of two Convs": (
        [conv("x", "c"), conv("a", "d"), make_op("Add", ["c", "d"], ["s"]), relu("s", "t")],
        "t",
        ["Conv", "Conv+Add+Relu"],
    ),
    "Add that is broadcast": (
        [conv("x", "c"), make_op("ReduceMean", ["x"], ["m"], axes=[2, 3]), make_op("Add", ["c", "m"], ["s"])],
        "s",
        ["Conv", "ReduceMean", "Add"],
    ),
    "Sum in place of the Conv": ([conv("x", "c"), conv("a", "d"), total("d", "c", "d")], "d", ["Conv", "Conv+Sum"]),
    "Sum in place of the other": ([conv("x", "c"), conv("a", "d"), total("c", "d", "c")], "c", ["Conv", "Conv+Sum"]),
    "addend read later": (
        [conv("x", "c"), conv("a", "d"), total("c", "d", "s"), make_op("Exp", ["c"], ["e"])],
        "se",
        ["Conv", "Conv", "Sum", "Exp"],
    ),
    "addend from outside": ([conv("x", "c"), total("c", "a", "s")], "s", ["Conv", "Sum"]),
    "addend made later": ([conv("x", "c"), relu("a", "r"), total("c", "r", "s")], "s", ["Conv", "Relu+Sum"]),
    "three addends": ([conv("x", "c"), total("a", "x", "c", "s"), relu("s", "t")], "t", ["Conv", "Sum+Relu"]),
    "twice the same": ([conv("x", "c"), total("c", "c", "s")], "s", ["Conv", "Sum"]),
    "read twice": ([conv("x", "c"), relu("c", "r"), total("c", "r", "s")], "s", ["Conv", "Relu+Sum"]),
    "an output": ([conv("x", "c"), relu("c", "r")], "cr", ["Conv", "Relu"]),
    "two devices": ([on(0, conv("x", "c")), on(1, relu("c", "r"))], "r", ["Conv", "Relu"]),
    "overwrites what is read in between": (
        [conv("x", "c"), make_op("Exp", ["q"], ["e"]), relu("c", "q")],
        "eq",
        ["Conv", "Exp", "Relu"],
    ),
    "Dropout": ([conv("x", "c"), dropout("c", "d", "m"), relu("d", "r")], "r", ["Conv+Relu"]),
    "Dropout in place": ([conv("x", "c"), dropout("c", "c"), relu("c", "c")], "c", ["Conv+Relu"]),
    "Dropout of an input": ([dropout("x", "d"), conv("d", "c")], "c", ["Conv"]),
    "Dropout to an output": ([conv("x", "c"), dropout("c", "d")], "d", ["Conv", "Dropout"]),
    "Dropout of what changes": (
        [relu("x", "c"), dropout("c", "d"), make_op("Exp", ["c"], ["c"]), total("c", "d", "s")],
        "s",
        ["Relu", "Dropout", "Exp+Sum"],
    ),
    "AddGradient of equal shapes": (
        [conv("x", "c"), make_op("AddGradient", ["c", "c", "x"], ["d", "e"]), relu("d", "r"), total("r", "e", "s")],
        "s",
        ["Conv", "Relu+Sum"],
    ),
    "AddGradient in place": (
        [conv("x", "c"), make_op("AddGradient", ["c", "x", "c"], ["c", "e"]), total("c", "e", "c", "s")],
        "s",
        ["Conv", "AddGradient+Sum"],
    ),
    "AddGradient to an output": (
        [conv("x", "c"), make_op("AddGradient", ["c", "c", "x"], ["d", "e"]), total("d", "e", "s")],
        "ds",
        ["Conv", "AddGradient+Sum"],
    ),
    "AddGradient of what changes": (
        [conv("x", "c"), make_op("AddGradient", ["c", "c", "x"], ["d", "e"]), make_op("Exp", ["c"], ["c"]),
         total("c", "d", "e", "s")],
        "s",
        ["Conv", "AddGradient", "Exp+Sum"],
    ),
    "Dropout with its mask": ([dropout("x", "d", "m"), relu("d", "r")], "rm", ["Dropout", "Relu"]),
}  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", CASES)
def test_what_is_joined(case):
    ops, outputs, want = CASES[case]
    VALUES["q"] = VALUES["x"] / 4
    net = net_of(ops, list(outputs))
    steps, got = run(net, observable="outputs")
    assert steps == want
    _, reference = run(net, engines=())
    _, apart = run(net, without="fusion", observable="outputs")
    for name, value in reference.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(apart[name], value, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", ["Conv, Relu", "residual", "Dropout", "Sum of two Convs"])
def test_nothing_is_joined_that_can_be_seen(case):
    ops, outputs, _ = CASES[case]
    names = [name for op in ops for name in op.output]
    net = net_of(ops, list(outputs))
    workspace = Workspace(threads=1)
    plain = Workspace(threads=1, engines=())
    for ws in (workspace, plain):
        for name, value in VALUES.items():
            ws.feed(name, value)
        ws.create_net(net)
        ws.run_net("net")
    for name in names:
        np.testing.assert_allclose(workspace.fetch(name), plain.fetch(name), rtol=1e-4, atol=1e-4)


def test_in_training_mode_dropout_stays():
    net = net_of([make_op("Dropout", ["x"], ["d", "m"]), relu("d", "r")], ["r"])
    steps, _ = run(net, observable="outputs")
    assert steps == ["Dropout", "Relu"]


def test_a_gradient_left_to_a_fetch_is_computed_before_what_it_reads_is_fed():
    """The gradient of a Relu in place that is joined to the gradient of the normalization before it."""
    model = ModelHelper("guarded")
    brew.conv(model, "data", "c", 3, 8, kernel=3, pad=1)
    brew.relu(model, brew.spatial_bn(model, "c", "bn", 8), "bn")
    brew.fc(model, "bn", "scores", 8 * 6 * 6, 4)
    model.AddGradientOperators([softmax_loss(model, "scores")])
    workspace = Workspace()
    workspace.run_net_once(model.param_init_net)
    workspace.feed("data", np.random.default_rng(0).standard_normal((2, 3, 6, 6)).astype(np.float32))
    workspace.feed("label", np.array([1, 2], np.int32))
    workspace.create_net(model.net)
    workspace.run_net("guarded")
    want = workspace.fetch("bn_grad").copy()
    assert np.abs(want).max() > 0
    workspace.run_net("guarded")
    workspace.feed("bn", np.zeros_like(workspace.fetch("bn")))
    assert np.array_equal(workspace.fetch("bn_grad"), want)
