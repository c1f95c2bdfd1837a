"""Storm and SparseStorm."""

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.updates.storm import SparseStorm, Storm
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, i32, i64, refusal

GOOD = [f32(2), f32(2), f32(1), f32(2), f32(1)]


class TestStorm(OperatorSuite):
    operator = Storm
    no_gradient = "an update"
    refusals = (
        refusal(Storm(), [f32(2), f32(3), *GOOD[2:]], "moment must have the shape of param"),
        refusal(Storm(), [f32(2), f32(2), f32(2), *GOOD[3:]], r"grad_sq_sum must have one element, got shape \(2,\)"),
        refusal(
            Storm(), [f32(2), f32(2), i64(1), *GOOD[3:]], "inputs must have one floating type, got grad_sq_sum int64"
        ),
        refusal(Storm(beta=-1.0), GOOD, "beta must lie in", ArgumentError),
    )

    def draw(self, data):
        p = data.draw(floats((0, 4), (1, 4)))
        op = data.draw(st.sampled_from([Storm(), Storm(momentum=2.0, beta=0.5)]))
        total = data.draw(st.sampled_from([np.float32([0.01]), np.array(3, np.float32)]))
        return op, [p, data.draw(floats(*p.shape)), total, data.draw(floats(*p.shape)), np.float32([-0.5])]

    def reference(self, op, p, m, total, g, lr):
        total = total + np.sum(g**2)
        rate = lr.item() / (op.beta + total.item()) ** (1 / 3)
        share = op.momentum * rate**2
        m = g + (1 - share) * (m - g)
        return [p + rate * m, m, total]


class TestSparseStorm(OperatorSuite):
    operator = SparseStorm
    no_gradient = "an update"
    rtol, atol = 1e-4, 1e-5
    refusals = (
        refusal(SparseStorm(), [f32(4, 2)] * 2 + [f32(1), f32(1, 2), i32(2), f32(1)], r"grad must have shape \(2, 2\)"),
        refusal(
            SparseStorm(), [f32(4, 2), f32(4), f32(1), f32(1, 2), i32(1), f32(1)], "moment must have the shape of param"
        ),
        refusal(
            SparseStorm(),
            [f32(4, 2)] * 2 + [f32(2), f32(1, 2), i32(1), f32(1)],
            r"grad_sq_sum must have one element, got shape \(2,\)",
        ),
        refusal(
            SparseStorm(beta=-1.0),
            [f32(4, 2)] * 2 + [f32(1), f32(1, 2), i32(1), f32(1)],
            "beta must lie in",
            ArgumentError,
        ),
    )

    def draw(self, data):
        indices = np.array(data.draw(st.lists(st.integers(0, 3), max_size=6)), np.int32)
        g = data.draw(floats(len(indices), 3))
        tables = [data.draw(floats(4, 3)), data.draw(floats(4, 3))]
        return SparseStorm(momentum=2.0, beta=0.5), [*tables, np.float32([0.5]), g, indices, np.float32([-0.5])]

    def reference(self, op, p, m, total, g, indices, lr):
        p, m, total = p.copy(), m.copy(), total + (g**2).sum()
        rate = lr / np.cbrt(op.beta + total)
        for i, d in zip(indices, g):
            m[i] = d + (1 - op.momentum * rate**2) * (m[i] - d)
            p[i] += rate * m[i]
        return [p, m, total]
