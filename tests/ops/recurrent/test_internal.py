"""The operators that Caffe2 puts into step nets for itself."""

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.recurrent.internal import rnn_internal_accumulate_gradient_input, rnn_internal_apply_link
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, i32, refusal


class TestApplyLink(OperatorSuite):
    operator = rnn_internal_apply_link
    no_gradient = "it occurs only in nets that are differentiated already"
    refusals = (
        refusal(rnn_internal_apply_link(), [i32(2), f32(3, 2)], r"timestep must have one element, got shape \(2,\)"),
        refusal(rnn_internal_apply_link(), [i32(1), f32()], r"X must have shape \(T, \*S\)"),
        refusal(rnn_internal_apply_link(window=0), [i32(1), f32(3, 2)], "window must be 1 or more", ArgumentError),
        refusal(rnn_internal_apply_link(offset=-1), [i32(1), f32(3, 2)], "offset must be 0 or more", ArgumentError),
    )

    def draw(self, data):
        step, op = (
            data.draw(st.integers(0, 2)),
            rnn_internal_apply_link(offset=data.draw(st.integers(0, 1)), window=data.draw(st.integers(1, 2))),
        )
        return op.with_arity(2, 2), [np.array([step], np.int32), data.draw(floats(5, 2))]

    def reference(self, op, timestep, x):
        first = int(timestep[0]) + op.offset
        return [x[first : first + op.window], x]


class TestAccumulateGradientInput(OperatorSuite):
    operator = rnn_internal_accumulate_gradient_input
    no_gradient = "it occurs only in nets that are differentiated already"
    refusals = (
        refusal(
            rnn_internal_accumulate_gradient_input(),
            [i32(1), f32(3, 2), f32(3, 4)],
            r"G must have shape \(U, 2\) = \(U, \*S\)",
        ),
    )

    def draw(self, data):
        op = rnn_internal_accumulate_gradient_input(offset=data.draw(st.integers(0, 1)))
        step = np.array([data.draw(st.integers(0, 2))], np.int32)
        return op.with_arity(3, 1), [step, data.draw(floats(3, 2)), data.draw(floats(4, 2))]

    def reference(self, op, timestep, dy, g):
        total, step = g.copy(), int(timestep[0])
        total[step + op.offset] += dy[step]
        return [total]
