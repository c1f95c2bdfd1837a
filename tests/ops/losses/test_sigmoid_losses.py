"""Cross entropy by a sigmoid, MakeTwoClass, and their gradients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.losses.sigmoid_losses import (
    MakeTwoClass,
    MakeTwoClassGradient,
    SigmoidCrossEntropyWithLogits,
    SigmoidCrossEntropyWithLogitsGradient,
    WeightedSigmoidCrossEntropyWithLogits,
    WeightedSigmoidCrossEntropyWithLogitsGradient,
)
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, i32, refusal

VARIANTS = ({}, {"log_D_trick": True}, {"unjoined_lr_loss": True})


def draw_scores(data):
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    return data.draw(floats(*shape)), data.draw(floats(*shape, low=0.0, high=1.0))


def chance(x):
    return 1 / (1 + np.exp(-x))


def mean(losses):
    return [np.asarray(sum(np.moveaxis(losses, -1, 0)) / losses.shape[-1])]


class TestSigmoidCrossEntropyWithLogits(OperatorSuite):
    operator = SigmoidCrossEntropyWithLogits
    refusals = (
        refusal(
            SigmoidCrossEntropyWithLogits(), [f32(3, 4), f32(3)], r"targets must have the shape of logits, \(3, 4\)"
        ),
        refusal(SigmoidCrossEntropyWithLogits(), [f32(), f32()], r"logits must have shape \(\*S, D\)"),
        refusal(SigmoidCrossEntropyWithLogits(), [f32(3), i32(3)], "one floating type"),
        refusal(
            SigmoidCrossEntropyWithLogits(log_D_trick=True, unjoined_lr_loss=True),
            [f32(3), f32(3)],
            "not both",
            ArgumentError,
        ),
    )

    def draw(self, data):
        return SigmoidCrossEntropyWithLogits(**data.draw(st.sampled_from(VARIANTS))), [*draw_scores(data)]

    def reference(self, op, x, t):
        s = chance(x)
        if op.log_D_trick:
            return mean((1 - 2 * t) * np.log(s))
        if op.unjoined_lr_loss:
            return mean(-(1 - t) * np.log(1 - s) - t * x)
        return mean(-t * np.log(s) - (1 - t) * np.log(1 - s))


class TestSigmoidCrossEntropyWithLogitsGradient(OperatorSuite):
    operator = SigmoidCrossEntropyWithLogitsGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(
            SigmoidCrossEntropyWithLogitsGradient(),
            [f32(4), f32(3, 4), f32(3, 4)],
            r"logits must have shape \(4, D\) = \(\*S, D\)",
        ),
    )

    def draw(self, data):
        x, t = draw_scores(data)
        op = SigmoidCrossEntropyWithLogitsGradient(**data.draw(st.sampled_from(VARIANTS)))
        return op, [data.draw(floats(*x.shape[:-1])), x, t]

    def reference(self, op, dy, x, t):
        s = chance(x)
        slopes = s - t
        if op.log_D_trick:
            slopes = (1 - 2 * t) * (1 - s)
        if op.unjoined_lr_loss:
            slopes = s * (1 - t) - t
        return [slopes * dy[..., None] / x.shape[-1]]


class TestWeightedSigmoidCrossEntropyWithLogits(OperatorSuite):
    operator = WeightedSigmoidCrossEntropyWithLogits
    refusals = (
        refusal(WeightedSigmoidCrossEntropyWithLogits(), [f32(3, 4), f32(3, 4), f32(3)], "weights must have the shape"),
    )

    def draw(self, data):
        x, t = draw_scores(data)
        return WeightedSigmoidCrossEntropyWithLogits(), [x, t, data.draw(floats(*x.shape))]

    def reference(self, op, x, t, w):
        s = chance(x)
        return mean(w * (-t * np.log(s) - (1 - t) * np.log(1 - s)))


class TestWeightedSigmoidCrossEntropyWithLogitsGradient(OperatorSuite):
    operator = WeightedSigmoidCrossEntropyWithLogitsGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(
            WeightedSigmoidCrossEntropyWithLogitsGradient(),
            [f32(4), f32(3, 4), f32(3, 4), f32(3, 4)],
            r"logits must have shape \(4, D\) = \(\*S, D\)",
        ),
    )

    def draw(self, data):
        x, t = draw_scores(data)
        op = WeightedSigmoidCrossEntropyWithLogitsGradient()
        return op, [data.draw(floats(*x.shape[:-1])), x, t, data.draw(floats(*x.shape))]

    def reference(self, op, dy, x, t, w):
        return [w * (chance(x) - t) * dy[..., None] / x.shape[-1]]


class TestMakeTwoClass(OperatorSuite):
    operator = MakeTwoClass
    refusals = (refusal(MakeTwoClass(), [i32(3)], "one floating type"),)

    def draw(self, data):
        return MakeTwoClass(), [data.draw(floats(*data.draw(st.lists(st.integers(1, 3), max_size=2))))]

    def reference(self, op, x):
        return [np.moveaxis(np.array([1 - x, x]), 0, -1)]


class TestMakeTwoClassGradient(OperatorSuite):
    operator = MakeTwoClassGradient
    no_gradient = "a gradient operator"
    refusals = (refusal(MakeTwoClassGradient(), [f32(3, 3)], r"dY must have shape \(3, 2\) = \(\*S, 2\)"),)

    def draw(self, data):
        return MakeTwoClassGradient(), [data.draw(floats((1, 3), 2))]

    def reference(self, op, dy):
        return [np.array([b - a for a, b in dy])]


@pytest.mark.parametrize("arguments", VARIANTS)
def test_large_scores_do_not_overflow(arguments):
    x, t = np.float32([[-2000, 2000]]), np.float32([[1, 0]])
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        (y,) = run_plain(SigmoidCrossEntropyWithLogits(**arguments), [x, t])
        (dx,) = run_plain(SigmoidCrossEntropyWithLogitsGradient(**arguments), [np.ones(1, np.float32), x, t])
    assert np.isfinite(y).all()
    assert np.isfinite(dx).all()
