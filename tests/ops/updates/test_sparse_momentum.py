"""SparseMomentumSGDUpdate."""

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.updates.sparse_momentum import SparseMomentumSGDUpdate
from suite import OperatorSuite, f32, floats, i32, refusal


class TestSparseMomentumSGDUpdate(OperatorSuite):
    operator = SparseMomentumSGDUpdate
    no_gradient = "an update"
    refusals = (
        refusal(
            SparseMomentumSGDUpdate(),
            [f32(2, 2), f32(5, 2), f32(1), f32(5, 2), i32(3)],
            r"grad must have shape \(3, 2\)",
            n_out=3,
        ),
        refusal(
            SparseMomentumSGDUpdate(),
            [f32(3, 2), f32(4, 2), f32(1), f32(5, 2), i32(3)],
            r"param must have the shape of moment, \(4, 2\)",
            n_out=3,
        ),
    )

    def draw(self, data):
        p = data.draw(floats((1, 5), (1, 3)))
        m = data.draw(floats(*p.shape))
        indices = np.array(data.draw(st.lists(st.integers(0, len(p) - 1), max_size=7)), np.int64)
        op = SparseMomentumSGDUpdate(momentum=0.9, nesterov=data.draw(st.booleans()))
        return op, [data.draw(floats(len(indices), p.shape[1])), m, np.float32([0.1]), p, indices]

    def reference(self, op, g, m, lr, p, indices):
        m, p, steps = m.copy(), p.copy(), np.empty_like(g)
        for k, row in enumerate(indices):
            old = m[row].copy()
            m[row] = op.momentum * old + lr * g[k]
            steps[k] = m[row] + op.momentum * (m[row] - old) if op.nesterov else m[row]
            p[row] -= steps[k]
        return [steps, m, p]
