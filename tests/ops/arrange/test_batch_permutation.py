"""BatchPermutation and its gradient."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.arrange.batch_permutation import BatchPermutation, BatchPermutationGradient
from suite import OperatorSuite, f32, floats, i32, i64, refusal


def draw_order(data, count):
    return np.array(data.draw(st.permutations(range(count))), np.int32)


class TestBatchPermutation(OperatorSuite):
    operator = BatchPermutation
    refusals = (
        refusal(BatchPermutation(), [f32(3, 2), i32(2)], r"indices must have shape \(3,\) = \(N,\)"),
        refusal(BatchPermutation(), [f32(3, 2), i64(3)], "indices must have elements of type int32"),
    )

    def draw(self, data):
        x = data.draw(floats((0, 4), (1, 3)))
        return BatchPermutation(), [x, draw_order(data, len(x))]

    def reference(self, op, x, indices):
        return [np.array([x[i] for i in indices]).reshape(x.shape)]


class TestBatchPermutationGradient(OperatorSuite):
    operator = BatchPermutationGradient
    no_gradient = "a gradient operator"
    refusals = (refusal(BatchPermutationGradient(), [i32(2), f32(3, 2)], r"dY must have shape \(2, 2\) = \(N, \*S\)"),)

    def draw(self, data):
        dy = data.draw(floats((0, 4), (1, 3)))
        return BatchPermutationGradient(), [draw_order(data, len(dy)), dy]

    def reference(self, op, indices, dy):
        dx = np.zeros(dy.shape)
        for i, slope in zip(indices, dy):
            dx[i] += slope
        return [dx]


def test_samples_that_are_not_there():
    with pytest.raises(IndexError, match=r"BatchPermutation: indices must lie in \[0, 2\), got 2"):
        run_plain(BatchPermutation(), [np.ones((2, 1), np.float32), np.int32([0, 2])])
