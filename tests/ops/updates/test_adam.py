"""Adam."""

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.updates.adam import Adam
from suite import OperatorSuite, f32, floats, i64, refusal

_P = [f32(2)] * 4


class TestAdam(OperatorSuite):
    operator = Adam
    no_gradient = "an update"
    refusals = (
        refusal(Adam(), [f32(2), f32(2), f32(2), f32(3), f32(1), i64(1)], r"grad must have the shape of param, \(2,\)"),
        refusal(Adam(), [*_P, f32(1), i64(2)], r"iter must have one element, got shape \(2,\)"),
        refusal(Adam(), [*_P, f32(1), f32(1)], "iter must have elements of type int, got float32"),
        refusal(Adam(beta1=1.0), [*_P, f32(1), i64(1)], r"beta1 must lie in \[0, 1\), got 1.0"),
    )

    def draw(self, data):
        p = data.draw(floats((0, 4), (1, 4)))
        m1, g = data.draw(floats(*p.shape)), data.draw(floats(*p.shape))
        m2 = data.draw(floats(*p.shape, low=0.01, high=2.0))
        op = data.draw(st.sampled_from([Adam(), Adam(beta1=0.5, beta2=0.9, epsilon=1e-2)]))
        counter = np.int64([data.draw(st.sampled_from([0, 1, 1000]))])
        return op.with_arity(6, data.draw(st.integers(3, 4))), [p, m1, m2, g, np.float32([-0.1]), counter]

    def reference(self, op, p, m1, m2, g, lr, counter):
        t = int(counter[0]) + 1
        m1 = op.beta1 * m1 + (1 - op.beta1) * g
        m2 = op.beta2 * m2 + (1 - op.beta2) * g**2
        # Caffe2 adds epsilon to the root before the bias correction.
        effective = m1 / (1 - op.beta1**t) / (np.sqrt(m2) + op.epsilon) * np.sqrt(1 - op.beta2**t)
        return [p + lr * effective, m1, m2, effective][: op.n_out]
