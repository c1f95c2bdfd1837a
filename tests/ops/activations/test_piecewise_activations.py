"""HardSigmoid, ThresholdedRelu, ReluN, and their gradients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from netbuilder.ops.activations.piecewise_activations import (
    HardSigmoid,
    HardSigmoidGradient,
    ReluN,
    ReluNGradient,
    ThresholdedRelu,
    ThresholdedReluGradient,
)
from netbuilder.ops.core.operator import decode
from netbuilder.proto import ArgumentError
from netbuilder.proto.arguments import make_op
from suite import OperatorSuite, f32, floats, i32, refusal


def clear_of(x, *corners):
    """Return x moved away from corners."""
    for corner in corners:
        x = np.where(np.abs(x - corner) < 0.01, corner + 0.02, x)
    return x.astype(np.float32)


class _Forward(OperatorSuite):
    def draw(self, data):
        op = data.draw(st.sampled_from(self.cases))
        x = data.draw(floats(*data.draw(st.lists(st.integers(0, 4), max_size=3)), low=-4, high=8))
        return op, [clear_of(x, *self.corners(op))]


class _Backward(OperatorSuite):
    no_gradient = "a gradient operator"

    def draw(self, data):
        y = data.draw(floats((1, 4), (1, 5), low=-1, high=8))
        y[0, 0] = 0.0
        y[-1, -1] = 1.0
        return data.draw(st.sampled_from(self.cases)), [y, data.draw(floats(*y.shape))]


class TestHardSigmoid(_Forward):
    operator = HardSigmoid
    cases = (HardSigmoid(), HardSigmoid(alpha=0.3, beta=0.4))
    refusals = (refusal(HardSigmoid(), [i32(3)], "inputs must have one floating type, got X int32"),)

    def corners(self, op):
        return -op.beta / op.alpha, (1 - op.beta) / op.alpha

    def reference(self, op, x):
        return [np.maximum(0, np.minimum(1, op.alpha * x + op.beta))]


class TestHardSigmoidGradient(_Backward):
    operator = HardSigmoidGradient
    cases = (HardSigmoidGradient(), HardSigmoidGradient(alpha=0.3))
    refusals = (refusal(HardSigmoidGradient(), [f32(3), f32(2)], "dY must have the shape of Y"),)

    def reference(self, op, y, dy):
        return [np.where((y > 0) & (y < 1), op.alpha * dy, 0)]


class TestThresholdedRelu(_Forward):
    operator = ThresholdedRelu
    cases = (ThresholdedRelu(), ThresholdedRelu(alpha=0.25), ThresholdedRelu(alpha=-1.0))
    refusals = (refusal(ThresholdedRelu(), [i32(3)], "inputs must have one floating type"),)

    def corners(self, op):
        return (op.alpha,)

    def reference(self, op, x):
        return [np.where(x > op.alpha, x, 0)]

    def draw_gradient(self, data):
        return ThresholdedRelu(alpha=0.25), self.draw(data)[1]


class TestThresholdedReluGradient(_Backward):
    operator = ThresholdedReluGradient
    cases = (ThresholdedReluGradient(),)
    refusals = (refusal(ThresholdedReluGradient(), [f32(3), f32(2)], "dY must have the shape of Y"),)

    def reference(self, op, y, dy):
        return [np.where(y > 0, dy, 0)]


class TestReluN(_Forward):
    operator = ReluN
    cases = (ReluN(), ReluN(n=1.0))
    refusals = (refusal(ReluN(), [i32(3)], "inputs must have one floating type"),)

    def corners(self, op):
        return 0.0, op.n

    def reference(self, op, x):
        return [np.minimum(op.n, np.maximum(0, x))]


class TestReluNGradient(_Backward):
    operator = ReluNGradient
    cases = (ReluNGradient(), ReluNGradient(n=1.0))
    refusals = (refusal(ReluNGradient(), [f32(3), f32(2)], "dY must have the shape of Y"),)

    def reference(self, op, y, dy):
        return [np.where((y > 0) & (y < op.n), dy, 0)]


def test_the_bound_of_relu_n_is_positive():
    with pytest.raises(ArgumentError, match=r"n must be positive, got -1\.0"):
        decode(ReluN, make_op("ReluN", ["x"], ["y"], n=-1.0))
