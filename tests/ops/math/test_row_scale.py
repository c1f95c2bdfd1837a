"""RowMul, ReduceTailSum and SquareRootDivide."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.math.row_scale import ReduceTailSum, RowMul, SquareRootDivide
from netbuilder.proto import ShapeError
from suite import OperatorSuite, f32, floats, i32, refusal


def draw_samples(data):
    return data.draw(floats(*data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))))


class TestRowMul(OperatorSuite):
    operator = RowMul
    wrt = (0, 1)
    refusals = (
        refusal(RowMul(), [f32(3, 4), f32(4)], "w must have 3 elements"),
        refusal(RowMul(), [f32(), f32(1)], r"mat must have shape \(N, \*S\)"),
        refusal(RowMul(), [i32(3), i32(3)], "one floating type"),
    )

    def draw(self, data):
        x = draw_samples(data)
        return RowMul(), [x, data.draw(floats(len(x)))]

    def reference(self, op, x, w):
        return [np.array([row * v for row, v in zip(x, w)])]


class TestReduceTailSum(OperatorSuite):
    operator = ReduceTailSum
    wrt = ()
    no_gradient = "Caffe2 has none: it is part of the gradient of RowMul"
    refusals = (refusal(ReduceTailSum(), [f32()], r"mat must have shape \(N, \.\.\.\)"),)

    def draw(self, data):
        return ReduceTailSum(), [draw_samples(data)]

    def reference(self, op, x):
        return [np.array([sum(np.ravel(row)) for row in x])]


class TestSquareRootDivide(OperatorSuite):
    operator = SquareRootDivide
    refusals = (
        refusal(SquareRootDivide(), [f32(3, 4), f32(4)], r"scale must have 3 elements, got shape \(4,\)"),
        refusal(SquareRootDivide(), [f32(3, 4), f32(3).with_dtype(np.float64)], "inputs must have one floating type"),
    )

    def draw(self, data):
        x = draw_samples(data)
        scale = np.float32(data.draw(st.lists(st.sampled_from([0.0, 0.5, 4.0]), min_size=len(x), max_size=len(x))))
        kind = data.draw(st.sampled_from([np.float32, np.int32, np.int64]))
        return SquareRootDivide(), [x, scale.astype(kind)]

    def reference(self, op, x, scale):
        return [np.array([row / (v**0.5 if v else 1) for row, v in zip(x, scale)])]


def test_roots_of_negative_numbers_are_refused():
    with pytest.raises(ShapeError, match="scale must not be negative, got -1.0"):
        run_plain(SquareRootDivide(), [np.ones((2, 2), np.float32), np.float32([1, -1])])
