"""Wngrad."""

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.wngrad import Wngrad
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, i64, refusal

GOOD = [f32(2), f32(1), f32(2), f32(1)]


class TestWngrad(OperatorSuite):
    operator = Wngrad
    no_gradient = "an update"
    refusals = (
        refusal(Wngrad(), [f32(2), f32(1), f32(3), f32(1)], "grad of shape"),
        refusal(Wngrad(), [f32(2), f32(2), f32(2), f32(1)], "seq_b must hold one number"),
        refusal(Wngrad(), [f32(2), i64(1), f32(2), f32(1)], "seq_b must be floating, got int64"),
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
