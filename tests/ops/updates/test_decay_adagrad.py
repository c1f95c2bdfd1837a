"""DecayAdagrad."""

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.updates.decay_adagrad import DecayAdagrad
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, i64, refusal

GOOD = [f32(2)] * 4 + [f32(1), i64(1)]


class TestDecayAdagrad(OperatorSuite):
    operator = DecayAdagrad
    no_gradient = "an update"
    refusals = (
        refusal(DecayAdagrad(), [f32(2), f32(3), *GOOD[2:]], r"moment_1 must have the shape of param, \(2,\)"),
        refusal(DecayAdagrad(), [*GOOD[:4], f32(2), i64(1)], r"lr must have one element, got shape \(2,\)"),
        refusal(DecayAdagrad(), [*GOOD[:5], f32(1)], "iter must have elements of type int, got float32"),
        refusal(DecayAdagrad(beta1=1.0), GOOD, r"beta1 must lie in \[0, 1\), got 1.0", ArgumentError),
        refusal(DecayAdagrad(epsilon=-1.0), GOOD, "epsilon must lie in", ArgumentError),
    )

    def draw(self, data):
        p = data.draw(floats((0, 4), (1, 4)))
        m2 = data.draw(floats(*p.shape, low=0.1, high=2.0))
        correct = data.draw(st.booleans())
        op = DecayAdagrad(beta1=0.5, epsilon=0.1, weight_decay=0.25, bias_correction_first=correct)
        count = np.int64([data.draw(st.integers(0, 5))])
        return op, [p, data.draw(floats(*p.shape)), m2, data.draw(floats(*p.shape)), np.float32([-0.1]), count]

    def reference(self, op, p, m1, m2, g, lr, count):
        m1 = (m1 + g) / 2
        m2 = m2 + g**2
        mean = m1 / (1 - 0.5 ** (count + 1)) if op.bias_correction_first else m1
        return [p + lr * (mean / (m2**0.5 + 0.1) + p / 4), m1, m2]
