"""NumpyTile, Scatter, CopyRowsToTensor."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.arrange.assign import CopyRowsToTensor, CopyRowsToTensorGradient, NumpyTile, Scatter
from netbuilder.proto import NetError, ShapeError
from netbuilder.proto.arguments import make_op
from suite import OperatorSuite, f32, floats, i64, refusal


class TestNumpyTile(OperatorSuite):
    operator = NumpyTile
    no_gradient = "it has none"
    refuses_nothing = "shapes are seen when it runs; see test_repeats_that_do_not_fit"

    def draw(self, data):
        repeats = data.draw(st.lists(st.integers(0, 3), max_size=3))
        kind = data.draw(st.sampled_from([np.int32, np.int64]))
        return NumpyTile(), [data.draw(floats(*[2] * len(repeats))), np.array(repeats, kind)]

    def reference(self, op, x, repeats):
        for axis, times in enumerate(repeats.tolist()):
            x = np.concatenate([x[(slice(None),) * axis + (slice(0, 0),)], *[x] * times], axis)
        return [x]


class TestScatter(OperatorSuite):
    operator = Scatter
    no_gradient = "it has none"
    refusals = (
        refusal(Scatter(axis=2), [f32(3, 4), i64(3, 2), f32(3, 2)], r"axis must lie in \[-2, 2\)"),
        refusal(Scatter(), [f32(3, 4), i64(2, 2), f32(2, 2)], r"indices must have shape \(3, M\) = \(\*A, M, \*B\)"),
        refusal(Scatter(), [f32(3, 4), i64(3, 2), f32(3, 1)], r"updates must have the shape of indices, \(3, 2\)"),
        refusal(
            Scatter(),
            [f32(3, 4), f32(3, 2), f32(3, 2)],
            "indices must have elements of type int32 or int64, got float32",
        ),
    )

    def draw(self, data):
        axis = data.draw(st.integers(-2, 1))
        shape = [3, 4]
        shape[axis] = data.draw(st.integers(0, 3))
        kind = data.draw(st.sampled_from([np.int32, np.int64]))
        rng = np.random.default_rng(data.draw(st.integers(0, 99)))
        indices = rng.integers(0, [3, 4][axis], shape).astype(kind)
        return Scatter(axis=axis), [data.draw(floats(3, 4)), indices, data.draw(floats(*shape))]

    def reference(self, op, x, indices, updates):
        y = x.copy()
        for place, i in np.ndenumerate(indices):
            where = list(place)
            where[op.axis] = i
            y[tuple(where)] = updates[place]
        return [y]


class TestCopyRowsToTensor(OperatorSuite):
    operator = CopyRowsToTensor
    no_gradient = "it is that of Y, as in Caffe2, also for rows that were replaced"
    refusals = (
        refusal(
            CopyRowsToTensor(),
            [f32(3, 4), i64(2), f32(3)],
            r"row must have 4 elements, got shape \(3,\)",
            NetError,
        ),
        refusal(
            CopyRowsToTensor(),
            [f32(3, 4), f32(2), f32(4)],
            "indices must have elements of type int32 or int64, got float32",
        ),
    )

    def draw(self, data):
        rows = data.draw(st.sets(st.integers(0, 3)))
        return CopyRowsToTensor(), [data.draw(floats(4, 2)), np.array(sorted(rows), np.int64), data.draw(floats(2))]

    def reference(self, op, x, indices, row):
        y = x.copy()
        y[indices] = row
        return [y]


class TestCopyRowsToTensorGradient(OperatorSuite):
    operator = CopyRowsToTensorGradient
    no_gradient = "a gradient operator"
    refuses_nothing = "any tensor is copied"

    def draw(self, data):
        return CopyRowsToTensorGradient(), [data.draw(floats(3, 2))]

    def reference(self, op, dy):
        return [dy]


def test_gradient_of_copied_rows():
    made, where = operator_gradient(make_op("CopyRowsToTensor", ["x", "i", "row"], ["x"]), {0: "x_grad"})
    assert [(op.type, list(op.input), list(op.output)) for op in made] == [
        ("CopyRowsToTensorGradient", ["x_grad"], ["x_grad"])
    ]
    assert where == {0: "x_grad"}


@pytest.mark.parametrize(
    ("repeats", "message"),
    [([2], r"one number per axis of X \(2, 2\), got \[2\]"), ([1, -1], "must not be negative")],
)
def test_repeats_that_do_not_fit(repeats, message):
    with pytest.raises(ShapeError, match=message):
        run_plain(NumpyTile(), [np.zeros((2, 2), np.float32), np.array(repeats)])


def test_a_place_that_is_not_there():
    with pytest.raises(IndexError, match=r"Scatter: indices must lie in \[0, 2\), got 2"):
        run_plain(Scatter(), [np.zeros((1, 2), np.float32), np.int64([[2]]), np.zeros((1, 1), np.float32)])
