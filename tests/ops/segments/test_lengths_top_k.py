"""LengthsTopK, LengthsToShape."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.segments.lengths_top_k import LengthsTopK, LengthsTopKGradient, LengthsToShape
from netbuilder.proto import ArgumentError, ShapeError
from suite import OperatorSuite, f32, floats, i32, refusal


def draw_segments(data):
    lengths = np.array(data.draw(st.lists(st.integers(0, 4), max_size=3)), np.int32)
    return data.draw(floats(int(lengths.sum()), apart=0.1)), lengths


class TestLengthsTopK(OperatorSuite):
    operator = LengthsTopK
    refusals = (
        refusal(LengthsTopK(k=0), [f32(3), i32(1)], "k must be positive, got 0", ArgumentError),
        refusal(LengthsTopK(k=2), [f32(3, 1), i32(1)], r"X must have shape \(N,\)"),
        refusal(LengthsTopK(k=2), [f32(3), f32(1)], "lengths must have elements of type int32 or int64"),
    )

    def draw(self, data):
        return LengthsTopK(k=data.draw(st.integers(1, 3))), list(draw_segments(data))

    def reference(self, op, x, lengths):
        values, indices = np.zeros((len(lengths), op.k)), np.full((len(lengths), op.k), -1)
        ends = np.cumsum(lengths).tolist()
        for s, (n, end) in enumerate(zip(lengths.tolist(), ends)):
            best = sorted(range(n), key=lambda i: -x[end - n + i])[: op.k]
            indices[s, : len(best)] = best
            values[s, : len(best)] = [x[end - n + i] for i in best]
        return [values, indices]


class TestLengthsTopKGradient(OperatorSuite):
    operator = LengthsTopKGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(LengthsTopKGradient(k=-1), [i32(1), i32(1, 2), f32(1, 2)], "k must be positive", ArgumentError),
    )

    def draw(self, data):
        x, lengths = draw_segments(data)
        _, indices = run_plain(LengthsTopK(k=2).with_arity(2, 2), [x, lengths])
        return LengthsTopKGradient(k=2), [lengths, indices, data.draw(floats(len(lengths), 2))]

    def reference(self, op, lengths, indices, dy):
        dx = np.zeros(int(lengths.sum()))
        starts = np.cumsum(lengths) - lengths
        for (s, k), i in np.ndenumerate(indices):
            if i >= 0:
                dx[starts[s] + i] = dy[s, k]
        return [dx]


class TestLengthsToShape(OperatorSuite):
    operator = LengthsToShape
    no_gradient = "none passes"
    refusals = (refusal(LengthsToShape(), [f32(3)], "lengths must have elements of type int32 or int64"),)

    def draw(self, data):
        return LengthsToShape(), [np.full(data.draw(st.integers(1, 3)), data.draw(st.integers(0, 3)), np.int32)]

    def reference(self, op, lengths):
        return [np.array([len(lengths), lengths[0]])]


def test_equal_elements_come_in_their_order():
    values, indices = run_plain(LengthsTopK(k=3).with_arity(2, 2), [np.float32([1, 2, 2, 1]), np.int32([4])])
    assert (values.tolist(), indices.tolist()) == ([[2, 2, 1]], [[1, 2, 0]])


@pytest.mark.parametrize("lengths", [np.int32([2, 3]), np.int32([])])
def test_lengths_that_differ(lengths):
    with pytest.raises(ShapeError, match="all lengths must be the same"):
        run_plain(LengthsToShape(), [lengths])
