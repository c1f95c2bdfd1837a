"""SigmoidCrossEntropyLoss and its gradient."""

import numpy as np
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.detection.sigmoid_cross_entropy_loss import SigmoidCrossEntropyLoss, SigmoidCrossEntropyLossGradient
from suite import OperatorSuite, f32, floats, i32, i64, refusal


def draw_case(data, cls):
    x = data.draw(floats((1, 3), (1, 3)))
    targets = np.random.default_rng(data.draw(st.integers(0, 99))).integers(-1, 2, x.shape, np.int32)
    return cls(scale=data.draw(st.sampled_from([1.0, 0.5])), normalize=data.draw(st.integers(0, 1))), x, targets


def divisor(op, targets):
    return (targets >= 0).sum() + 1e-5 if op.normalize else 1


class TestSigmoidCrossEntropyLoss(OperatorSuite):
    operator = SigmoidCrossEntropyLoss
    refusals = (
        refusal(SigmoidCrossEntropyLoss(), [f32(3), i32(2)], "targets must have the shape of X"),
        refusal(SigmoidCrossEntropyLoss(), [f32(3), i64(3)], "targets must have elements of type int32, got int64"),
        refusal(SigmoidCrossEntropyLoss(), [i32(3), i32(3)], "one floating type"),
    )

    def draw(self, data):
        op, x, targets = draw_case(data, SigmoidCrossEntropyLoss)
        return op, [x, targets]

    def reference(self, op, x, targets):
        p = 1 / (1 + np.exp(-x))
        losses = np.where(targets == 1, -np.log(p), np.where(targets == 0, -np.log(1 - p), 0))
        return [op.scale * losses.sum() / divisor(op, targets)]


class TestSigmoidCrossEntropyLossGradient(OperatorSuite):
    operator = SigmoidCrossEntropyLossGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(SigmoidCrossEntropyLossGradient(), [f32(3), i32(3), f32(2)], "d_loss must have one element"),
        refusal(SigmoidCrossEntropyLossGradient(), [f32(3), i32(3), i32()], "one floating type"),
    )

    def draw(self, data):
        op, x, targets = draw_case(data, SigmoidCrossEntropyLossGradient)
        return op, [x, targets, data.draw(floats())]

    def reference(self, op, x, targets, d_loss):
        slopes = np.where(targets >= 0, 1 / (1 + np.exp(-x)) - targets, 0)
        return [d_loss * op.scale * slopes / divisor(op, targets)]


def test_large_scores_and_no_targets():
    x, targets = np.float32([200, -200, -200]), np.int32([1, 0, 1])
    np.testing.assert_allclose(run_plain(SigmoidCrossEntropyLoss(), [x, targets])[0], 200 / 3, rtol=1e-5)
    slopes = run_plain(SigmoidCrossEntropyLossGradient(), [x, targets, np.float32(3)])[0]
    np.testing.assert_allclose(slopes, [0, 0, -1], atol=1e-5)
    assert run_plain(SigmoidCrossEntropyLoss(), [x, targets * 0 - 1])[0] == 0


def test_float16_is_computed_in_float32():
    x = np.zeros(70_000, np.float16)
    (loss,) = run_plain(SigmoidCrossEntropyLoss(), [x, np.ones(x.shape, np.int32)])
    np.testing.assert_allclose(loss, np.log(2), rtol=1e-3)
    (loss,) = run_plain(SigmoidCrossEntropyLoss(), [x[:4], np.full(4, -1, np.int32)])
    assert loss.dtype == np.float16 and loss == 0
