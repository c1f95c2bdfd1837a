"""Wngrad and SparseWngrad."""

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.updates.wngrad import SparseWngrad, Wngrad
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, i32, i64, refusal

GOOD = [f32(2), f32(1), f32(2), f32(1)]


class TestWngrad(OperatorSuite):
    operator = Wngrad
    no_gradient = "an update"
    refusals = (
        refusal(Wngrad(), [f32(2), f32(1), f32(3), f32(1)], r"grad must have the shape of param, \(2,\)"),
        refusal(Wngrad(), [f32(2), f32(2), f32(2), f32(1)], r"seq_b must have one element, got shape \(2,\)"),
        refusal(Wngrad(), [f32(2), i64(1), f32(2), f32(1)], "the inputs must have one floating type, got seq_b int64"),
        refusal(Wngrad(epsilon=-1.0), GOOD, "epsilon must lie in", ArgumentError),
    )

    def draw(self, data):
        p = data.draw(floats((0, 4), (1, 4)))
        op = data.draw(st.sampled_from([Wngrad(), Wngrad(epsilon=0.25)]))
        op.with_arity(4, data.draw(st.integers(2, 4)))
        return op, [p, np.float32([0.75]), data.draw(floats(*p.shape)), np.float32([-0.5])]

    def reference(self, op, p, b, g, lr):
        rate = lr / (b + op.epsilon)
        return [p + rate * g, b + np.sum(g**2) / (b + op.epsilon), rate, rate * g][: op.n_out]


class TestSparseWngrad(OperatorSuite):
    operator = SparseWngrad
    no_gradient = "an update"
    refusals = (
        refusal(SparseWngrad(), [f32(4, 2), f32(1), i32(2), f32(1, 2), f32(1)], r"grad must have shape \(2, 2\)"),
        refusal(
            SparseWngrad(),
            [f32(4, 2), f32(2), i32(1), f32(1, 2), f32(1)],
            r"seq_b must have one element, got shape \(2,\)",
        ),
        refusal(
            SparseWngrad(epsilon=-1.0),
            [f32(4, 2), f32(1), i32(1), f32(1, 2), f32(1)],
            "epsilon must lie in",
            ArgumentError,
        ),
    )

    def draw(self, data):
        indices = np.array(data.draw(st.lists(st.integers(0, 3), max_size=6)), np.int32)
        g = data.draw(floats(len(indices), 3))
        return SparseWngrad(epsilon=0.25), [data.draw(floats(4, 3)), np.float32([0.75]), indices, g, np.float32([-0.5])]

    def reference(self, op, p, b, indices, g, lr):
        p = p.copy()
        np.add.at(p, indices, lr / (b + op.epsilon) * g)
        return [p, b + np.sum(g**2) / b]
