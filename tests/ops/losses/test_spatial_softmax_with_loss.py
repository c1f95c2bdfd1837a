"""SpatialSoftmaxWithLoss and its gradient."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.losses.spatial_softmax_with_loss import SpatialSoftmaxWithLoss, SpatialSoftmaxWithLossGradient
from netbuilder.proto import ArgumentError, ShapeError
from suite import OperatorSuite, f32, floats, i32, refusal


def draw_images(data, cls):
    op = cls(scale=data.draw(st.sampled_from([1.0, 0.5])))
    x = data.draw(floats((1, 2), (1, 3), (1, 2), (1, 3)))
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    labels = rng.integers(-1, x.shape[1], (x.shape[0], *x.shape[2:])).astype(np.int32)
    weights = [rng.uniform(0.1, 2, labels.shape).astype(np.float32)] if data.draw(st.booleans()) else []
    return op, x, labels, weights


def places(op, x, labels, weight):
    """Yield for each place with a label: its index, chances, label, and weight; and the sum of weights last."""
    total = sum(weight[i] for i in np.ndindex(labels.shape) if labels[i] >= 0)
    for i in np.ndindex(labels.shape):
        scores = np.exp(x[(i[0], slice(None), *i[1:])])
        yield i, scores / scores.sum(), labels[i], (weight[i] if labels[i] >= 0 else 0) / max(total, 1e-30)


class TestSpatialSoftmaxWithLoss(OperatorSuite):
    operator = SpatialSoftmaxWithLoss
    d_outputs = (1,)
    refusals = (
        refusal(SpatialSoftmaxWithLoss(), [f32(2, 3), i32(2)], r"X must be \(N, classes, H, W\)"),
        refusal(SpatialSoftmaxWithLoss(), [f32(2, 0, 1, 2), i32(2, 1, 2)], "X must have at least one class"),
        refusal(SpatialSoftmaxWithLoss(), [f32(2, 3, 1, 2), i32(2, 2)], r"label must have shape \(2, 1, 2\)"),
        refusal(SpatialSoftmaxWithLoss(), [f32(2, 3, 1, 2), f32(2, 1, 2)], "labels must be integers"),
        refusal(SpatialSoftmaxWithLoss(), [f32(2, 3, 1, 2), i32(2, 1, 2), f32(2)], "weight must have shape"),
        refusal(SpatialSoftmaxWithLoss(scale=-1.0), [f32(2, 3, 1, 2), i32(2, 1, 2)], "scale must not", ArgumentError),
        refusal(SpatialSoftmaxWithLoss(order="NHWC"), [f32(2, 3, 1, 2), i32(2, 1, 2)], "NHWC2NCHW", ArgumentError),
    )

    def draw(self, data):
        op, x, labels, weights = draw_images(data, SpatialSoftmaxWithLoss)
        return op, [x, labels, *weights]

    def reference(self, op, x, labels, weight=None):
        loss, chances = 0.0, np.empty(x.shape)
        for i, p, label, share in places(op, x, labels, np.ones(labels.shape) if weight is None else weight):
            chances[(i[0], slice(None), *i[1:])] = p
            loss -= op.scale * share * np.log(p[label])
        return [chances, np.array(loss)]


class TestSpatialSoftmaxWithLossGradient(OperatorSuite):
    operator = SpatialSoftmaxWithLossGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(
            SpatialSoftmaxWithLossGradient(),
            [f32(2, 3, 1, 2), i32(2, 1, 2), f32(2, 3, 1, 1), f32()],
            "P must have shape and type of X",
        ),
        refusal(
            SpatialSoftmaxWithLossGradient(),
            [f32(2, 3, 1, 2), i32(2, 1, 2), f32(2, 3, 1, 2), f32(2)],
            "gradient of the loss must be one number",
        ),
    )

    def draw(self, data):
        op, x, labels, weights = draw_images(data, SpatialSoftmaxWithLossGradient)
        p = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
        return op, [x, labels, *weights, p, data.draw(floats())]

    def reference(self, op, x, labels, *others):
        *weight, p, dloss = others
        dx = np.empty(x.shape)
        for i, chance, label, share in places(op, x, labels, weight[0] if weight else np.ones(labels.shape)):
            dx[(i[0], slice(None), *i[1:])] = (chance - np.eye(len(chance))[label]) * share * dloss * op.scale
        return [dx]


@pytest.mark.parametrize("label", [-2, 3])
def test_labels_that_are_no_class_are_refused(label):
    x, labels = np.zeros((1, 3, 1, 2), np.float32), np.int32([[[0, label]]])
    with pytest.raises(ShapeError, match=r"labels must be -1 or lie in \[0, 3\)"):
        run_plain(SpatialSoftmaxWithLoss(), [x, labels])


def test_a_loss_without_labels_is_zero():
    x, labels = np.zeros((1, 3, 1, 2), np.float32), np.full((1, 1, 2), -1, np.int32)
    p, loss = run_plain(SpatialSoftmaxWithLoss(), [x, labels])
    assert loss == 0
    assert not run_plain(SpatialSoftmaxWithLossGradient(), [x, labels, p, np.float32(1)])[0].any()
