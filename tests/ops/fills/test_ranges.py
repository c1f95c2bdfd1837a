"""Range, LengthsRangeFill, OneHot."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.fills.ranges import LengthsRangeFill, OneHot, Range
from netbuilder.proto import ShapeError
from netbuilder.proto.arguments import make_op
from suite import OperatorSuite


class _Counting(OperatorSuite):
    no_gradient = "no gradient passes"
    refuses_nothing = "what comes is seen when it runs; see test_what_comes_is_checked"


class TestRange(_Counting):
    operator = Range

    def draw(self, data):
        dtype = data.draw(st.sampled_from([np.int32, np.int64, np.float32, np.float64]))
        start, stop = data.draw(st.integers(-5, 5)), data.draw(st.integers(-5, 5))
        step = data.draw(st.sampled_from([1, 2, 3]))
        given = [[stop], [start, stop], [start, stop, step]][data.draw(st.integers(0, 2))]
        return Range(), [np.array([v], dtype) for v in given]

    def reference(self, op, *given):
        return [np.array(list(range(*(int(g.item()) for g in given))))]


class TestLengthsRangeFill(_Counting):
    operator = LengthsRangeFill

    def draw(self, data):
        return LengthsRangeFill(), [np.array(data.draw(st.lists(st.integers(0, 4), max_size=4)), np.int32)]

    def reference(self, op, lengths):
        return [np.array([i for n in lengths for i in range(n)], int)]


class TestOneHot(_Counting):
    operator = OneHot

    def draw(self, data):
        width = data.draw(st.integers(1, 5))
        indices = data.draw(st.lists(st.integers(0, width - 1), max_size=5))
        return OneHot(), [np.array(indices, np.int64), np.int64([width])]

    def reference(self, op, indices, width):
        return [np.eye(int(width.item()))[indices.astype(int)]]


@pytest.mark.parametrize(
    ("dtype", "given", "want"),
    [
        (np.float32, (10, 0, -4), [10, 6, 2]),
        (np.float64, (0, 1, 0.25), [0, 0.25, 0.5, 0.75]),
        # As Caffe2 counts integers down: only full steps.
        (np.int32, (5, -4, -2), [5, 3, 1, -1]),
        (np.int64, (9, 0, -3), [9, 6, 3]),
        (np.int64, (0, 5, -1), []),
    ],
)
def test_other_steps(dtype, given, want):
    (y,) = run_plain(Range(), [np.array([v], dtype) for v in given])
    assert y.dtype == dtype
    assert y.tolist() == want


@pytest.mark.parametrize(
    ("op", "given", "error", "match"),
    [
        (Range(), [np.int32([5]), np.int32([1]), np.int32([0])], ShapeError, "step must not be 0"),
        (Range(), [np.int32([5, 6])], ShapeError, "one element"),
        (Range(), [np.int32([5]), np.float32([6])], ShapeError, "the same type"),
        (LengthsRangeFill(), [np.int64([1])], ShapeError, "vector of int32"),
        (LengthsRangeFill(), [np.int32([2, -1])], ShapeError, "must not be negative, got -1"),
        (OneHot(), [np.int64([3]), np.int64([3])], IndexError, r"must lie in \[0, 3\), got 3"),
        (OneHot(), [np.int32([0]), np.int64([3])], ShapeError, "vector of int64"),
    ],
)
def test_what_comes_is_checked(op, given, error, match):
    with pytest.raises(error, match=match):
        run_plain(op, given)


def test_no_gradient_passes():
    assert operator_gradient(make_op("Range", ["n"], ["y"]), {0: "dy"}) == ([], {})
