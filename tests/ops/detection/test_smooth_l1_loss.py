"""SmoothL1Loss and SelectSmoothL1Loss, and their gradients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.detection.smooth_l1_loss import (
    SelectSmoothL1Loss,
    SelectSmoothL1LossGradient,
    SmoothL1Loss,
    SmoothL1LossGradient,
)
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, refusal


def draw_arguments(data, cls):
    return cls(beta=data.draw(st.sampled_from([0.4, 1.0])), scale=data.draw(st.sampled_from([1.0, 2.0])))


def loss_of(op, x):
    return x * x / (2 * op.beta) if abs(x) < op.beta else abs(x) - op.beta / 2


def slope_of(op, x):
    return x / op.beta if abs(x) < op.beta else np.sign(x)


def draw_weighted(data, cls):
    op, y_hat = draw_arguments(data, cls), data.draw(floats((1, 3), (1, 4)))
    y = data.draw(floats(*y_hat.shape))
    inner, outer = (data.draw(floats(*y_hat.shape, low=0.1, high=1.5)) for _ in range(2))
    return op, [y_hat, y, inner, outer]


class TestSmoothL1Loss(OperatorSuite):
    operator = SmoothL1Loss
    refusals = (
        refusal(SmoothL1Loss(), [f32(3, 4), f32(3, 4), f32(3), f32(3, 4)], "alpha_in must have the shape of Y_hat"),
        refusal(SmoothL1Loss(), [f32()] * 4, r"Y_hat must have shape \(N, \*S\)"),
        refusal(SmoothL1Loss(beta=0.0), [f32(3)] * 4, "beta must be positive", ArgumentError),
        refusal(SmoothL1Loss(scale=-1.0), [f32(3)] * 4, "scale must not be negative", ArgumentError),
    )

    def draw(self, data):
        return draw_weighted(data, SmoothL1Loss)

    def reference(self, op, y_hat, y, inner, outer):
        terms = zip(*(a.ravel() for a in (y_hat, y, inner, outer)))
        return [np.array(op.scale / len(y_hat) * sum(o * loss_of(op, i * (a - b)) for a, b, i, o in terms))]


class TestSmoothL1LossGradient(OperatorSuite):
    operator = SmoothL1LossGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(SmoothL1LossGradient(), [*[f32(3)] * 4, f32(3)], r"dloss must have one element, got shape \(3,\)"),
    )

    def draw(self, data):
        op, inputs = draw_weighted(data, SmoothL1LossGradient)
        return op, [*inputs, data.draw(floats())]

    def reference(self, op, y_hat, y, inner, outer, dloss):
        terms = zip(*(a.ravel() for a in (y_hat, y, inner, outer)))
        slopes = [o * i * slope_of(op, i * (a - b)) for a, b, i, o in terms]
        return [np.reshape(slopes, y_hat.shape) * dloss * op.scale / len(y_hat)]


def draw_selected(data, cls):
    op, y_hat = draw_arguments(data, cls), data.draw(floats((1, 2), (4, 6), (1, 3), (1, 2)))
    bounds = (y_hat.shape[0], y_hat.shape[1] - 3, *y_hat.shape[2:])
    rows = data.draw(st.lists(st.tuples(*(st.integers(0, n - 1) for n in bounds)), max_size=4))
    places = np.float32(rows).reshape(-1, 4)
    return op, [y_hat, data.draw(floats(*places.shape)), places, np.float32([data.draw(st.sampled_from([0.0, 3.0]))])]


def selected(op, y_hat, y, places, normalizer):
    """Yield the index of each chosen element, and how far it is from its label."""
    for (n, c, h, w), labels in zip(places.astype(int), y):
        for i in range(4):
            yield (n, c + i, h, w), y_hat[n, c + i, h, w] - labels[i]


class TestSelectSmoothL1Loss(OperatorSuite):
    operator = SelectSmoothL1Loss
    refusals = (
        refusal(
            SelectSmoothL1Loss(), [f32(2, 4), f32(1, 4), f32(1, 4), f32(1)], r"Y_hat must have shape \(N, C, H, W\)"
        ),
        refusal(SelectSmoothL1Loss(), [f32(2, 4, 1, 1), f32(1, 3), f32(1, 4), f32(1)], r"Y must have shape \(M, 4\)"),
        refusal(SelectSmoothL1Loss(), [f32(2, 4, 1, 1), f32(1, 4), f32(2, 4), f32(1)], "shape of Y"),
        refusal(
            SelectSmoothL1Loss(),
            [f32(2, 4, 1, 1), f32(1, 4), f32(1, 4), f32(2)],
            r"normalizer must have one element, got shape \(2,\)",
        ),
    )

    def draw(self, data):
        return draw_selected(data, SelectSmoothL1Loss)

    def reference(self, op, *inputs):
        total = sum(loss_of(op, x) for _, x in selected(op, *inputs))
        return [np.array(op.scale * total / max(float(inputs[3][0]), 1))]


class TestSelectSmoothL1LossGradient(OperatorSuite):
    operator = SelectSmoothL1LossGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(
            SelectSmoothL1LossGradient(),
            [f32(2, 4, 1, 1), f32(1, 4), f32(1, 4), f32(1), f32(2)],
            r"dloss must have one element, got shape \(2,\)",
        ),
    )

    def draw(self, data):
        op, inputs = draw_selected(data, SelectSmoothL1LossGradient)
        return op, [*inputs, data.draw(floats())]

    def reference(self, op, y_hat, y, places, normalizer, dloss):
        dx = np.zeros(y_hat.shape)
        for at, x in selected(op, y_hat, y, places, normalizer):
            dx[at] += slope_of(op, x) * dloss * op.scale / max(float(normalizer[0]), 1)
        return [dx]


@pytest.mark.parametrize(
    ("place", "what"), [((1, 0, 0, 0), "images"), ((0, 1, 0, 0), "first channels"), ((0, 0, 0, -1), "columns")]
)
def test_places_outside_are_refused(place, what):
    inputs = [np.zeros((1, 4, 2, 2), np.float32), np.zeros((1, 4), np.float32), np.float32([place]), np.float32([1])]
    with pytest.raises(IndexError, match=f"SelectSmoothL1Loss: {what} of locations must lie in"):
        run_plain(SelectSmoothL1Loss(), inputs)
