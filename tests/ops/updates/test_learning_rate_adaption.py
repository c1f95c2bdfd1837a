"""LearningRateAdaption."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.updates.learning_rate_adaption import LearningRateAdaption
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, i64, refusal


class TestLearningRateAdaption(OperatorSuite):
    operator = LearningRateAdaption
    no_gradient = "an update"
    refusals = (
        refusal(LearningRateAdaption(), [f32(2), f32(2), f32(2)], r"lr must have one element, got shape \(2,\)"),
        refusal(LearningRateAdaption(), [f32(1), f32(2), f32(3)], r"effgrad must have the shape of grad, \(2,\)"),
        refusal(
            LearningRateAdaption(), [i64(1), f32(2), f32(2)], "the inputs must have one floating type, got lr int64"
        ),
        refusal(LearningRateAdaption(lr_alpha=-1.0), [f32(1), f32(2), f32(2)], "lr_alpha must lie in", ArgumentError),
    )

    def draw(self, data):
        g = data.draw(floats((1, 4), (1, 4), low=0.1))
        op = LearningRateAdaption(lr_alpha=0.25, normalized_lr_adaption=data.draw(st.booleans()))
        return op, [np.float32([-0.5]), g, data.draw(floats(*g.shape, low=0.1))]

    def reference(self, op, lr, g, e):
        product = np.vdot(g, e)
        if op.normalized_lr_adaption:
            return [lr - lr * 0.25 * product / (np.linalg.norm(g) * np.linalg.norm(e))]
        return [lr - 0.25 * product]


@pytest.mark.parametrize("normalized", [True, False])
def test_no_gradient_no_change(normalized):
    lr, zero = np.float32([0.5]), np.zeros(3, np.float32)
    assert run_plain(LearningRateAdaption(normalized_lr_adaption=normalized), [lr, zero, zero + 1])[0] == lr
