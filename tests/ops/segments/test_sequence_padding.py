"""VariableLengthSequencePadding."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.segments.sequence_padding import VariableLengthSequencePadding
from netbuilder.proto import ShapeError
from suite import OperatorSuite, f32, floats, i32, i64, refusal


class TestVariableLengthSequencePadding(OperatorSuite):
    operator = VariableLengthSequencePadding
    no_gradient = "it has none"
    refusals = (
        refusal(VariableLengthSequencePadding(), [f32(3, 2), i32(2)], r"X must have shape \(T, N, D\)"),
        refusal(VariableLengthSequencePadding(), [f32(3, 2, 1), i32(3)], r"lengths must have shape \(2,\) = \(N,\)"),
        refusal(VariableLengthSequencePadding(), [f32(3, 2, 1), i64(2)], "lengths must have elements of type int32"),
    )

    def draw(self, data):
        x = data.draw(floats((0, 4), (0, 3), (1, 2)))
        rng = np.random.default_rng(data.draw(st.integers(0, 99)))
        return VariableLengthSequencePadding(), [x, rng.integers(0, len(x) + 1, x.shape[1], np.int32)]

    def reference(self, op, x, lengths):
        y = x.copy()
        for j, length in enumerate(lengths):
            y[length:, j] = 0
        return [y]


@pytest.mark.parametrize("length", [-1, 4])
def test_lengths_out_of_range_are_refused(length):
    with pytest.raises(
        ShapeError, match=rf"lengths must lie in \[0, 3\], the number of steps of X, got {length}; clip"
    ):
        run_plain(VariableLengthSequencePadding(), [np.ones((3, 2, 1), np.float32), np.int32([2, length])])
