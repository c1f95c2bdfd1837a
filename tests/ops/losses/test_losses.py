"""LabelCrossEntropy, CrossEntropy, AveragedLoss, and their gradients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.losses.losses import (
    AveragedLoss,
    AveragedLossGradient,
    CrossEntropy,
    CrossEntropyGradient,
    LabelCrossEntropy,
    LabelCrossEntropyGradient,
)
from netbuilder.proto import ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, floats, i32, refusal


def draw_labeled(data):
    x = data.draw(floats((1, 4), (1, 4), low=0.05, high=1.0))
    labels = data.draw(st.lists(st.integers(0, x.shape[1] - 1), min_size=len(x), max_size=len(x)))
    dtype = data.draw(st.sampled_from([np.int32, np.int64, np.uint8]))
    return x, dtype(labels).reshape(data.draw(st.sampled_from([(-1,), (-1, 1)])))


LABEL_REFUSALS = (
    ([f32(3, 4), f32(3)], r"label must have elements of type int, got float32; .*\.astype\(np.int32\)"),
    ([f32(3, 4), f32(3, 4)], r"label must have shape .*got \(3, 4\); .*one-hot labels by labels.argmax\(axis=1\)$"),
    (
        [f32(3, 4), i32(4)],
        r"label must have shape \(3,\) or \(3, 1\) = .*, got \(4,\); labels are .*one class number per row",
    ),
    ([f32(), i32()], r"X must have shape \(N, \*S\), got \(\)"),
)


class TestLabelCrossEntropy(OperatorSuite):
    operator = LabelCrossEntropy
    refusals = tuple(refusal(LabelCrossEntropy(), specs, match) for specs, match in LABEL_REFUSALS)

    def draw(self, data):
        return LabelCrossEntropy(), [*draw_labeled(data)]

    def reference(self, op, x, label):
        return [-(np.eye(x.shape[1])[label.ravel()] * np.log(x)).sum(axis=1)]


class TestLabelCrossEntropyGradient(OperatorSuite):
    operator = LabelCrossEntropyGradient
    no_gradient = "a gradient operator"
    refusals = (
        *(refusal(LabelCrossEntropyGradient(), [*specs, f32(3)], match) for specs, match in LABEL_REFUSALS),
        refusal(LabelCrossEntropyGradient(), [f32(3, 4), i32(3), f32(4)], r"dY must have 3 elements, got shape \(4,\)"),
    )

    def draw(self, data):
        x, label = draw_labeled(data)
        return LabelCrossEntropyGradient(), [x, label, data.draw(floats(len(x)))]

    def reference(self, op, x, label, dy):
        return [-np.eye(x.shape[1])[label.ravel()] * dy[:, None] / x]


class TestCrossEntropy(OperatorSuite):
    operator = CrossEntropy
    refusals = (
        refusal(CrossEntropy(), [f32(3, 4), f32(3, 5)], "label must have the shape of X"),
        refusal(CrossEntropy(), [f32(), f32()], r"X must have shape \(N, \*S\)"),
    )

    def draw(self, data):
        x = data.draw(floats((1, 4), (1, 4), low=0.05, high=1.0))
        return CrossEntropy(), [x, data.draw(floats(*x.shape))]

    def reference(self, op, x, label):
        return [-np.einsum("nc,nc->n", label, np.log(x))]


class TestCrossEntropyGradient(OperatorSuite):
    operator = CrossEntropyGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(CrossEntropyGradient(), [f32(3, 4), f32(3, 4), f32(4)], r"dY must have 3 elements, got shape \(4,\)"),
        refusal(CrossEntropyGradient(), [f32(3, 4), f32(3, 1), f32(3)], "label must have the shape of X"),
    )

    def draw(self, data):
        x = data.draw(floats((1, 4), (1, 4), low=0.05, high=1.0))
        return CrossEntropyGradient(), [x, data.draw(floats(*x.shape)), data.draw(floats(len(x)))]

    def reference(self, op, x, label, dy):
        return [-np.einsum("nc,n->nc", label / x, dy)]


class TestAveragedLoss(OperatorSuite):
    operator = AveragedLoss
    refusals = (refusal(AveragedLoss(), [i32(3)], r"one floating type, got X int32; .*\.astype\(np.float32\)"),)

    def draw(self, data):
        return AveragedLoss(), [data.draw(floats(*data.draw(st.lists(st.integers(1, 4), max_size=3))))]

    def reference(self, op, x):
        return [np.asarray(sum(x.ravel().tolist()) / x.size)]


class TestAveragedLossGradient(OperatorSuite):
    operator = AveragedLossGradient
    no_gradient = "a gradient operator"
    refusals = (refusal(AveragedLossGradient(), [f32(3), f32(3)], r"dY must have one element, got shape \(3,\)"),)

    def draw(self, data):
        return AveragedLossGradient(), [data.draw(floats((1, 3), (1, 4))), data.draw(floats())]

    def reference(self, op, x, dy):
        return [np.full(x.shape, float(dy) / x.size)]


def test_the_loss_of_nothing_is_zero():
    empty = np.zeros((0, 3), np.float32)
    assert run_plain(AveragedLoss(), [empty])[0] == 0
    assert run_plain(AveragedLossGradient(), [empty, np.float32(1)])[0].shape == (0, 3)


@pytest.mark.parametrize("label", [-1, 4])
def test_labels_that_are_no_class_are_refused(label):
    x, labels, dy = np.full((2, 4), 0.25, np.float32), np.int32([0, label]), np.ones(2, np.float32)
    for op, inputs in ((LabelCrossEntropy(), [x, labels]), (LabelCrossEntropyGradient(), [x, labels, dy])):
        with pytest.raises(ShapeError, match=r"labels must lie in \[0, 4\)"):
            run_plain(op, inputs)
        workspace = Workspace()
        for name, value in zip("xld", inputs):
            workspace.feed(name, value)
        with pytest.raises(ShapeError, match=r"labels must lie in \[0, 4\)"):
            workspace.run_operator_once(make_op(op.type, list("xld")[: len(inputs)], ["y"]))
