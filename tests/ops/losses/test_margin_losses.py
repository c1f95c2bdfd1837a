"""Losses with a margin, and their gradients."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.losses.margin_losses import (
    CosineEmbeddingCriterion,
    CosineEmbeddingCriterionGradient,
    MarginRankingCriterion,
    MarginRankingCriterionGradient,
)
from suite import OperatorSuite, f32, floats, i32, refusal


def draw_labels(data, shape):
    n = int(np.prod(shape))
    return np.int32(data.draw(st.lists(st.sampled_from([1, -1]), min_size=n, max_size=n))).reshape(shape)


def draw_pair(data, cls):
    x1 = data.draw(floats((1, 3), (1, 4)))
    op, labels = cls(margin=data.draw(st.sampled_from([1.0, 0.3]))), draw_labels(data, x1.shape)
    apart = data.draw(floats(*x1.shape, avoid=op.margin))
    return op, x1, (x1 - labels * apart).astype(np.float32), labels


class TestMarginRankingCriterion(OperatorSuite):
    operator = MarginRankingCriterion
    wrt = (0, 1)
    refusals = (
        refusal(MarginRankingCriterion(), [f32(3), f32(4), i32(3)], "X2 must have the shape of X1"),
        refusal(MarginRankingCriterion(), [f32(3), f32(3), i32(2)], "Y must have the shape of X1"),
        refusal(MarginRankingCriterion(), [f32(3), f32(3), f32(3)], "Y must have elements of type int32 or int64"),
    )

    def draw(self, data):
        op, *inputs = draw_pair(data, MarginRankingCriterion)
        return op, inputs

    def reference(self, op, x1, x2, label):
        losses = [max(0.0, op.margin - y * (a - b)) for a, b, y in zip(x1.ravel(), x2.ravel(), label.ravel())]
        return [np.array(losses).reshape(x1.shape)]


class TestMarginRankingCriterionGradient(OperatorSuite):
    operator = MarginRankingCriterionGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(MarginRankingCriterionGradient(), [f32(3), f32(3), i32(3), f32(2)], "dloss must have the shape of X1"),
    )

    def draw(self, data):
        op, *inputs = draw_pair(data, MarginRankingCriterionGradient)
        return op, [*inputs, data.draw(floats(*inputs[0].shape))]

    def reference(self, op, x1, x2, label, dloss):
        dx = np.where(label * (x1 - x2) < op.margin, label * dloss, 0)
        return [-dx, dx]


def draw_cosines(data, cls):
    op = cls(margin=data.draw(st.sampled_from([0.0, 0.3])))
    s = data.draw(floats((1, 3), (1, 4), low=-1.0, high=1.0, avoid=op.margin))
    return op, s, draw_labels(data, s.shape)


class TestCosineEmbeddingCriterion(OperatorSuite):
    operator = CosineEmbeddingCriterion
    refusals = (
        refusal(CosineEmbeddingCriterion(), [f32(3), i32(2)], "Y must have the shape of S"),
        refusal(CosineEmbeddingCriterion(), [i32(3), i32(3)], "one floating type"),
    )

    def draw(self, data):
        op, *inputs = draw_cosines(data, CosineEmbeddingCriterion)
        return op, inputs

    def reference(self, op, s, label):
        losses = [1 - v if y == 1 else max(0.0, v - op.margin) for v, y in zip(s.ravel(), label.ravel())]
        return [np.array(losses).reshape(s.shape)]


class TestCosineEmbeddingCriterionGradient(OperatorSuite):
    operator = CosineEmbeddingCriterionGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(CosineEmbeddingCriterionGradient(), [f32(3), i32(3), f32(2)], "dloss must have the shape of S"),
    )

    def draw(self, data):
        op, *inputs = draw_cosines(data, CosineEmbeddingCriterionGradient)
        return op, [*inputs, data.draw(floats(*inputs[0].shape))]

    def reference(self, op, s, label, dloss):
        return [dloss * np.where(label == 1, -1, s > op.margin)]
