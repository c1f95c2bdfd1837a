"""Inverse square root unit."""

import numpy as np
from isru import Isru, IsruGradient

from suite import OperatorSuite, f32, floats, refusal


class TestIsru(OperatorSuite):
    operator = Isru
    refusals = (refusal(Isru(alpha=-1.0), [f32(3)], "alpha must be positive, got -1"),)

    def draw(self, data):
        return Isru(alpha=0.5), [data.draw(floats((1, 4), (1, 4)))]

    def reference(self, op, x):
        return [x / np.sqrt(1 + op.alpha * x**2)]


class TestIsruGradient(OperatorSuite):
    operator = IsruGradient
    no_gradient = "a gradient operator"
    refusals = (refusal(IsruGradient(), [f32(3), f32(4)], r"dY must have the shape of X, \(3,\), got \(4,\)"),)

    def draw(self, data):
        x = data.draw(floats((1, 4), (1, 4)))
        return IsruGradient(alpha=0.5), [x, data.draw(floats(*x.shape))]

    def reference(self, op, x, dy):
        return [dy * (1 + op.alpha * x**2) ** -1.5]
