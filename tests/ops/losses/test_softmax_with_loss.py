"""SoftmaxWithLoss and its gradient."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.engines.llvm import machine
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.losses.softmax_with_loss import SoftmaxWithLoss, SoftmaxWithLossGradient
from netbuilder.proto import ArgumentError, GradientError, NetDef, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, floats, i32, refusal


def draw_loss(data, cls, large=True):
    """Draw an operator, X, labels and perhaps weights."""
    draw = data.draw
    axis = draw(st.sampled_from([1, 1, 2, -1]))
    shape = [draw(st.integers(1, 4)) for _ in range(3 if axis == 2 else 2)]
    classes = shape[-1]
    rows = int(np.prod(shape)) // classes
    op = cls(
        axis=axis,
        scale=draw(st.sampled_from([1.0, 0.25])),
        label_prob=draw(st.booleans()),
        average_by_batch_size=draw(st.booleans()),
    )
    x = draw(floats(*shape, low=-5, high=5))
    if op.label_prob:
        label = np.abs(draw(floats(rows, classes))) + 0.1
        label = (label / label.sum(axis=1, keepdims=True)).astype(np.float32).reshape(shape)
    else:
        label = draw(st.lists(st.integers(0, classes - 1), min_size=rows, max_size=rows))
        label = draw(st.sampled_from([np.int32, np.int64, np.uint8]))(label)
        label = label.reshape(draw(st.sampled_from([(rows,), (rows, 1)])))
    inputs = [x, label]
    if draw(st.booleans()):
        inputs.append(draw(floats(rows, low=0.1, high=2.0)))
    return op, inputs


def softmax(op, x):
    rows = x.reshape(int(np.prod(x.shape[: op.axis])), -1)
    e = np.exp(rows)
    return e / e.sum(axis=1, keepdims=True)


def targets(op, p, label):
    return label.reshape(p.shape) if op.label_prob else np.eye(p.shape[1])[label.ravel()]


def row_weights(op, p, weight):
    """Return by how much each row's loss counts."""
    weight = np.ones(len(p)) if weight is None else weight
    return op.scale * weight / (len(p) if op.average_by_batch_size else weight.sum())


X, L = f32(6, 4), i32(6)


class TestSoftmaxWithLoss(OperatorSuite):
    operator = SoftmaxWithLoss
    d_outputs = (1,)
    refusals = (
        refusal(SoftmaxWithLoss(axis=2), [X, L], r"axis must lie in \[-2, 2\)"),
        refusal(SoftmaxWithLoss(), [X, f32(6)], "labels must be integers"),
        refusal(SoftmaxWithLoss(), [X, i32(5)], "one label per row, 6 in all"),
        refusal(SoftmaxWithLoss(), [X, L, f32(5)], "one weight per row, 6 in all"),
        refusal(SoftmaxWithLoss(label_prob=True), [X, L], "the labels are probabilities, 6 x 4"),
        refusal(SoftmaxWithLoss(scale=-1.0), [X, L], "scale must not be negative", ArgumentError),
    )

    def draw(self, data):
        return draw_loss(data, SoftmaxWithLoss)

    def reference(self, op, x, label, weight=None):
        p = softmax(op, x)
        losses = -(targets(op, p, label) * np.log(p)).sum(axis=1)
        return [p.reshape(x.shape), np.asarray(losses @ row_weights(op, p, weight))]


class TestSoftmaxWithLossGradient(OperatorSuite):
    operator = SoftmaxWithLossGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(SoftmaxWithLossGradient(), [X, L, f32(6, 3), f32()], "P must have shape and type of X"),
        refusal(SoftmaxWithLossGradient(), [X, L, X, f32(2)], "gradient of the loss must be one number"),
        refusal(SoftmaxWithLossGradient(), [X, L, f32(3), X, f32()], "one weight per row"),
    )

    def draw(self, data):
        op, inputs = draw_loss(data, SoftmaxWithLossGradient)
        p = softmax(op, inputs[0].astype(np.float64)).astype(np.float32).reshape(inputs[0].shape)
        return op, [*inputs, p, np.float32(data.draw(st.floats(-2, 2, width=16)))]

    def reference(self, op, x, label, *others):
        *weight, p, dloss = others
        p = p.reshape(int(np.prod(p.shape[: op.axis])), -1)
        slopes = p - targets(op, p, label)
        return [(slopes * (dloss * row_weights(op, p, *(weight or [None])))[:, None]).reshape(x.shape)]


def test_without_any_weight_the_loss_is_zero():
    x, label, weight = np.float32([[2, 0, 1], [1, 2, 3]]), np.int32([0, 1]), np.zeros(2, np.float32)
    p, loss = run_plain(SoftmaxWithLoss().with_arity(3, 2), [x, label, weight])
    assert loss == 0
    (dx,) = run_plain(SoftmaxWithLossGradient(), [x, label, weight, p, np.float32(1)])
    assert not dx.any()


def test_far_logits():
    """With a label the logarithm is exact; probabilities are clamped at 1e-20, as in Caffe2."""
    x = np.float32([[200, 0, 1]])
    _, loss = run_plain(SoftmaxWithLoss().with_arity(2, 2), [x, np.int32([1])])
    assert loss == 200
    _, loss = run_plain(SoftmaxWithLoss(label_prob=True).with_arity(2, 2), [x, np.float32([[0, 1, 0]])])
    np.testing.assert_allclose(loss, -np.log(1e-20), 1e-6)


@pytest.mark.skipif(not machine.available(), reason="needs llvmlite")
def test_probabilities_overwrite_scores_that_nobody_reads_later():
    """The loss is exact all the same, also of far scores."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 50)).astype(np.float32)
    x[::3] *= 100
    label, found = rng.integers(0, 50, 400, np.int32), []
    for observable in ("all", "outputs"):
        workspace = Workspace(threads=1)
        workspace.feed("x", x)
        workspace.feed("label", label)
        ops = [
            make_op("Negative", ["x"], ["scores"]),
            make_op("SoftmaxWithLoss", ["scores", "label"], ["p", "loss"]),
            make_op("SoftmaxWithLossGradient", ["scores", "label", "p", "loss"], ["dx"]),
        ]
        net = NetDef(name="net", op=ops, external_input=["x", "label"], external_output=["loss", "dx"])
        workspace.create_net(net, observable=observable)
        workspace.run_net("net")
        plans = workspace.net("net").plans
        found.append((workspace.fetch("loss"), workspace.fetch("dx"), plans[-1].memory.nbytes))
    exact = -x.astype(np.float64)
    exact -= exact.max(axis=1, keepdims=True)
    exact = np.log(np.exp(exact).sum(axis=1)) - exact[np.arange(400), label]
    np.testing.assert_allclose(found[1][0], exact.mean(), 1e-6)
    assert exact.max() > 100, "the case of probabilities that float32 rounds"
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])
    assert found[1][2] < 1.2 * x.nbytes, "scores and probabilities are in one buffer"


@pytest.mark.parametrize("label", [-1, 3, 70])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_labels_that_are_no_class_are_refused(label, dtype):
    x, labels = np.ones((2, 3), np.float32), dtype([0, label])
    with pytest.raises(ShapeError, match=r"labels must lie in \[0, 3\)"):
        run_plain(SoftmaxWithLoss().with_arity(2, 2), [x, labels])
    gradient_inputs = [x, labels, x / 3, np.float32(1)]
    with pytest.raises(ShapeError, match=r"labels must lie in \[0, 3\)"):
        run_plain(SoftmaxWithLossGradient(), gradient_inputs)
    workspace = Workspace()
    for name, value in zip("xlpd", gradient_inputs):
        workspace.feed(name, value)
    with pytest.raises(ShapeError, match=r"SoftmaxWithLoss.*labels must lie in \[0, 3\)"):
        workspace.run_operator_once(make_op("SoftmaxWithLoss", ["x", "l"], ["p", "loss"]))
    with pytest.raises(ShapeError, match=r"SoftmaxWithLossGradient.*labels must lie in \[0, 3\)"):
        workspace.run_operator_once(make_op("SoftmaxWithLossGradient", ["x", "l", "p", "d"], ["dx"]))


def test_the_gradient_is_the_losses():
    with pytest.raises(GradientError, match="'loss' has no gradient"):
        operator_gradient(make_op("SoftmaxWithLoss", ["x", "l"], ["p", "loss"]), {0: "p_grad"})
