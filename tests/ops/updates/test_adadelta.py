"""Adadelta."""

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.updates.adadelta import Adadelta
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, refusal


class TestAdadelta(OperatorSuite):
    operator = Adadelta
    no_gradient = "an update"
    refusals = (
        refusal(
            Adadelta(), [f32(2), f32(2), f32(3), f32(2), f32(1)], r"moment_delta must have the shape of param, \(2,\)"
        ),
        refusal(Adadelta(), [f32(2)] * 4 + [f32(2)], r"lr must have one element, got shape \(2,\)"),
        refusal(Adadelta(decay=1.5), [f32(2)] * 4 + [f32(1)], "decay must lie in", ArgumentError),
    )

    def draw(self, data):
        p = data.draw(floats((0, 4), (1, 4)))
        m, d = (data.draw(floats(*p.shape, low=0.01, high=2.0)) for _ in range(2))
        op = data.draw(st.sampled_from([Adadelta(), Adadelta(decay=0.5, epsilon=0.1)]))
        return op, [p, m, d, data.draw(floats(*p.shape)), np.float32([-0.1])]

    def reference(self, op, p, m, d, g, lr):
        m = op.decay * m + (1 - op.decay) * g**2
        step = g * ((d + op.epsilon) / (m + op.epsilon)) ** 0.5
        return [p + lr * step, m, op.decay * d + (1 - op.decay) * step**2]
