"""WeightScale."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.updates.weight_scale import WeightScale
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, i32, i64, refusal


class TestWeightScale(OperatorSuite):
    operator = WeightScale
    no_gradient = "an update"
    refusals = (
        refusal(WeightScale(), [f32(2), i64(2)], r"iter must have one element, got shape \(2,\)"),
        refusal(WeightScale(), [f32(2), i32(1)], "iter must have elements of type int64, got int32"),
        refusal(WeightScale(), [i32(2), i64(1)], "the inputs must have one floating type, got w int32"),
        refusal(WeightScale(stepsize=0), [f32(2), i64(1)], "stepsize must be at least 1, got 0", ArgumentError),
    )

    def draw(self, data):
        op = WeightScale(stepsize=2, upper_bound_iter=6, scale=0.5)
        return op, [data.draw(floats((0, 3), (1, 3))), np.int64([data.draw(st.integers(0, 9))])]

    def reference(self, op, w, iteration):
        return [0.5 * w if iteration in (1, 3) else w]


@pytest.mark.parametrize("iteration", [0, 7])
def test_without_arguments_nothing_changes(iteration):
    w = np.float32([1, 2])
    np.testing.assert_array_equal(run_plain(WeightScale(), [w, np.int64([iteration])])[0], w)
