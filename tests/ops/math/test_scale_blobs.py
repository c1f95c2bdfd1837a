"""ScaleBlobs, ReduceFrontWeightedSum."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.math.scale_blobs import ReduceFrontWeightedSum, ReduceFrontWeightedSumGradient, ScaleBlobs
from netbuilder.proto import ArgumentError, NetError, ShapeError
from suite import OperatorSuite, f32, floats, i32, refusal


class TestScaleBlobs(OperatorSuite):
    operator = ScaleBlobs
    no_gradient = "it has none"
    refusals = (
        refusal(ScaleBlobs(), [f32(2), f32(2)], "one output per input, got 2 inputs and 1 output", NetError),
        refusal(ScaleBlobs(), [i32(2)], "the inputs must have one floating type"),
    )

    def draw(self, data):
        count = data.draw(st.integers(1, 3))
        xs = [data.draw(floats(*data.draw(st.sampled_from([(), (3,), (2, 2)])))) for _ in range(count)]
        return ScaleBlobs(scale=0.5).with_arity(count, count), xs

    def reference(self, op, *xs):
        return [x * op.scale for x in xs]


class TestReduceFrontWeightedSum(OperatorSuite):
    operator = ReduceFrontWeightedSum
    refusals = (
        refusal(ReduceFrontWeightedSum(), [f32(3, 2), f32(2)], r"weights must have shape \(3,\)"),
        refusal(ReduceFrontWeightedSum(), [i32(3, 2), f32(3)], "the inputs must have one floating type"),
        refusal(
            ReduceFrontWeightedSum(grad_on_weights=True),
            [f32(3), f32(3)],
            "only by operators with lengths",
            ArgumentError,
        ),
    )

    def draw(self, data):
        rows = data.draw(st.integers(0, 3))
        return self.operator(), [
            data.draw(floats(rows, *data.draw(st.sampled_from([(), (2,)])))),
            data.draw(floats(rows)),
        ]

    def reference(self, op, x, weights):
        return [np.einsum("i...,i->...", x, weights)]


class TestReduceFrontWeightedSumGradient(OperatorSuite):
    operator = ReduceFrontWeightedSumGradient
    no_gradient = "a gradient operator"
    refuses_nothing = "shapes are seen when it runs; see test_a_shape_that_does_not_fit"

    def draw(self, data):
        rows = data.draw(st.integers(0, 3))
        return self.operator(), [data.draw(floats(rows)), data.draw(floats(2)), np.int64([rows, 2])]

    def reference(self, op, weights, dy, shape):
        return [np.outer(weights, dy)]


def test_a_shape_that_does_not_fit():
    with pytest.raises(ShapeError, match=r"make a gradient of shape \(3, 2\), but the input shape says \(3, 1\)"):
        run_plain(ReduceFrontWeightedSumGradient(), [np.zeros(3), np.zeros(2), np.int64([3, 1])])
