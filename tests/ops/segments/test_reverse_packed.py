"""ReversePackedSegs."""

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.segments.reverse_packed import ReversePackedSegs
from suite import OperatorSuite, f32, floats, i32, refusal


class TestReversePackedSegs(OperatorSuite):
    operator = ReversePackedSegs
    refusals = (
        refusal(ReversePackedSegs(), [f32(3), i32(1)], r"X must have shape \(T, N, \*S\)"),
        refusal(ReversePackedSegs(), [f32(3, 2), i32(3)], "lengths must have shape"),
        refusal(ReversePackedSegs(), [f32(3, 2), f32(2)], "lengths must have elements of type int32 or int64"),
    )

    def draw(self, data):
        steps, samples = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
        x = data.draw(floats(steps, samples, 2))
        lengths = data.draw(st.lists(st.integers(0, steps), min_size=samples, max_size=samples))
        return ReversePackedSegs(), [x, np.array(lengths, np.int32)]

    def reference(self, op, x, lengths):
        y = x.copy()
        for n, length in enumerate(lengths):
            y[:length, n] = x[:length, n][::-1]
        return [y]
