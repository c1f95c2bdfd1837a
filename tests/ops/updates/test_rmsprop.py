"""RmsProp."""

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.updates.rmsprop import RmsProp
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, refusal


class TestRmsProp(OperatorSuite):
    operator = RmsProp
    no_gradient = "an update"
    refusals = (
        refusal(RmsProp(), [f32(2), f32(2), f32(3), f32(1)], r"moment must have the shape of grad, \(2,\)"),
        refusal(RmsProp(), [f32(2), f32(2), f32(2), f32(3)], r"lr must have one element, got shape \(3,\)"),
        refusal(RmsProp(decay=3.0), [f32(2)] * 3 + [f32(1)], r"decay must lie in \[0, 1\], got 3.0", ArgumentError),
        refusal(RmsProp(momentum=-0.5), [f32(2)] * 3 + [f32(1)], "momentum must lie in", ArgumentError),
    )

    def draw(self, data):
        g = data.draw(floats((1, 4), (1, 4)))
        s = data.draw(floats(*g.shape, low=0.1, high=2.0))
        op = data.draw(st.sampled_from([RmsProp(), RmsProp(decay=0.5, momentum=0.9, epsilon=0.1)]))
        return op, [g, s, data.draw(floats(*g.shape)), np.float32([0.1])]

    def reference(self, op, g, s, m, lr):
        s = op.decay * s + (1 - op.decay) * g**2
        m = op.momentum * m + lr * g * (s + op.epsilon) ** -0.5
        return [m, s, m]
