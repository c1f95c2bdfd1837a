"""SigmoidFocalLoss and SoftmaxFocalLoss, and their gradients."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.detection.focal_loss import (
    SigmoidFocalLoss,
    SigmoidFocalLossGradient,
    SoftmaxFocalLoss,
    SoftmaxFocalLossGradient,
)
from netbuilder.proto import ArgumentError
from netbuilder.proto.arguments import make_op
from suite import OperatorSuite, f32, floats, i32, refusal

FITS = [f32(1, 4, 2, 2), i32(1, 2, 2, 2), f32()]


def draw_case(data, cls, most):
    """Return an operator on two anchors of three classes, scores, labels up to ``most``, and a normalizer."""
    draw = data.draw
    op = cls(
        num_classes=3, scale=draw(st.sampled_from([1.0, 0.5])), alpha=draw(st.sampled_from([0.25, 0.6])),
        gamma=draw(st.sampled_from([0.0, 0.5, 1.0, 2.0])),
    )  # fmt: skip
    x = draw(floats((1, 2), 6, (1, 2), (1, 2)))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    labels = rng.integers(-1, most + 1, (len(x), 2, *x.shape[2:]), np.int32)
    return op, [x, labels, np.float32(draw(st.sampled_from([0.0, 3.0])))]


def sigmoid_loss(op, x, labels, normalizer):
    total = 0.0
    for n, a, c, i, j in np.ndindex(len(x), 2, 3, *x.shape[2:]):
        p, label = 1 / (1 + np.exp(-x[n, 3 * a + c, i, j])), labels[n, a, i, j]
        if label == c + 1:
            total -= op.alpha * (1 - p) ** op.gamma * np.log(p)
        elif label >= 0:
            total -= (1 - op.alpha) * p**op.gamma * np.log(1 - p)
    return op.scale * total / max(1, normalizer)


def softmax(x):
    e = np.exp(x.reshape(len(x), 2, 3, *x.shape[2:]))
    return e / e.sum(axis=2, keepdims=True)


def softmax_loss(op, x, labels, normalizer):
    total, p = 0.0, softmax(x)
    for n, a, i, j in np.ndindex(labels.shape):
        if labels[n, a, i, j] >= 0:
            q = p[n, a, labels[n, a, i, j], i, j]
            weight = op.alpha if labels[n, a, i, j] else 1 - op.alpha
            total -= weight * (1 - q) ** op.gamma * np.log(q)
    return op.scale * total / max(1, normalizer)


def slopes(loss, op, x, labels, normalizer):
    """Return central differences of a loss."""
    dx = np.zeros(x.shape)
    for at in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[at], down[at] = x[at] + 1e-5, x[at] - 1e-5
        dx[at] = (loss(op, up, labels, normalizer) - loss(op, down, labels, normalizer)) / 2e-5
    return dx


class TestSigmoidFocalLoss(OperatorSuite):
    operator = SigmoidFocalLoss
    rtol = 1e-4
    refusals = (
        refusal(SigmoidFocalLoss(num_classes=3), FITS, r"X must be \(N, anchors \* 3, H, W\)"),
        refusal(
            SigmoidFocalLoss(num_classes=2),
            [FITS[0], i32(1, 4, 2, 2), FITS[2]],
            r"labels must have shape \(1, 2, 2, 2\)",
        ),
        refusal(SigmoidFocalLoss(num_classes=2), [*FITS[:2], f32(2)], "normalizer must have one element"),
        refusal(SigmoidFocalLoss(num_classes=2), [*FITS[:2], i32()], "one floating type"),
        refusal(SigmoidFocalLoss(num_classes=2, gamma=-1), FITS, "must not be negative", ArgumentError),
    )

    def draw(self, data):
        return draw_case(data, SigmoidFocalLoss, 3)

    def reference(self, op, x, labels, normalizer):
        return [sigmoid_loss(op, x, labels, normalizer)]


class TestSigmoidFocalLossGradient(OperatorSuite):
    operator = SigmoidFocalLossGradient
    no_gradient = "a gradient operator"
    rtol, atol = 1e-3, 1e-5
    refusals = (refusal(SigmoidFocalLossGradient(num_classes=2), [*FITS, f32(2)], "d_loss must have one element"),)

    def draw(self, data):
        op, inputs = draw_case(data, SigmoidFocalLossGradient, 3)
        return op, [*inputs, data.draw(floats())]

    def reference(self, op, x, labels, normalizer, d_loss):
        return [slopes(sigmoid_loss, op, x, labels, normalizer) * d_loss]


class TestSoftmaxFocalLoss(OperatorSuite):
    operator = SoftmaxFocalLoss
    rtol = 1e-4
    refusals = (refusal(SoftmaxFocalLoss(num_classes=3), FITS, r"X must be \(N, anchors \* 3, H, W\)"),)

    def draw(self, data):
        return draw_case(data, SoftmaxFocalLoss, 2)

    def reference(self, op, x, labels, normalizer):
        return [softmax_loss(op, x, labels, normalizer), softmax(x).reshape(x.shape)]


class TestSoftmaxFocalLossGradient(OperatorSuite):
    operator = SoftmaxFocalLossGradient
    no_gradient = "a gradient operator"
    rtol, atol = 1e-3, 1e-5
    refusals = (
        refusal(SoftmaxFocalLossGradient(num_classes=2), [*FITS, f32(1, 4, 2, 1), f32()], "the shape of X"),
        refusal(SoftmaxFocalLossGradient(num_classes=2), [*FITS, FITS[0], f32(2)], "d_loss must have one element"),
    )

    def draw(self, data):
        op, inputs = draw_case(data, SoftmaxFocalLossGradient, 2)
        p = softmax(inputs[0].astype(np.float64)).reshape(inputs[0].shape).astype(np.float32)
        return op, [*inputs, p, data.draw(floats())]

    def reference(self, op, x, labels, normalizer, p, d_loss):
        return [slopes(softmax_loss, op, x, labels, normalizer) * d_loss]


@pytest.mark.parametrize("kind", ["SigmoidFocalLoss", "SoftmaxFocalLoss"])
def test_scores_that_leave_no_doubt(kind):
    """Loss and slopes stay finite."""
    cls, backward = {
        "SigmoidFocalLoss": (SigmoidFocalLoss, SigmoidFocalLossGradient),
        "SoftmaxFocalLoss": (SoftmaxFocalLoss, SoftmaxFocalLossGradient),
    }[kind]
    x = np.float32([300, -300, -300]).reshape(1, 3, 1, 1)
    for label in range(3):
        inputs = [x, np.full((1, 1, 1, 1), label, np.int32), np.float32(1)]
        outputs = run_plain(cls(num_classes=3, gamma=0.5), inputs)
        assert np.isfinite(outputs[0])
        assert np.isfinite(
            run_plain(backward(num_classes=3, gamma=0.5), [*inputs, *outputs[1:], np.float32(1)])[0]
        ).all()


def test_the_gradient_reads_the_probabilities():
    made, _ = operator_gradient(make_op("SoftmaxFocalLoss", ["x", "l", "n"], ["loss", "p"]), {0: "d"})
    assert [(op.type, list(op.input), list(op.output)) for op in made] == [
        ("SoftmaxFocalLossGradient", ["x", "l", "n", "p", "d"], ["x_grad"])
    ]


def test_labels_beyond_the_classes_are_refused():
    labels = np.full((1, 1, 1, 1), 3, np.int32)
    with pytest.raises(IndexError, match=r"SoftmaxFocalLoss: labels must lie in \[0, 3\), got 3"):
        run_plain(
            SoftmaxFocalLoss(num_classes=3).with_arity(3, 2),
            [np.zeros((1, 3, 1, 1), np.float32), labels, np.float32([1])],
        )


def test_float16_is_computed_in_float32():
    x, labels = np.float16([0, 40, 0]).reshape(1, 3, 1, 1), np.full((1, 1, 1, 1), 2, np.int32)
    loss, _ = run_plain(SoftmaxFocalLoss(num_classes=3).with_arity(3, 2), [x, labels, np.float16([1])])
    assert loss.dtype == np.float16 and np.isfinite(loss)
