"""Extrema and norms over axes, and their gradients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.reductions.reduce_norms import (
    ReduceL1,
    ReduceL1Gradient,
    ReduceL2,
    ReduceL2Gradient,
    ReduceMax,
    ReduceMaxGradient,
    ReduceMin,
    ReduceMinGradient,
)
from suite import OperatorSuite, f32, floats, i32, refusal


def lines(op, x):
    """Return X as a matrix with a row per result, and how to put such a matrix back."""
    over = sorted({axis % x.ndim for axis in op.axes} or range(x.ndim))
    stay = [i for i in range(x.ndim) if i not in over]
    moved = x.transpose(stay + over)
    rows = moved.reshape(int(np.prod([x.shape[i] for i in stay])), -1)

    def back(matrix):
        return matrix.reshape(moved.shape).transpose(np.argsort(stay + over))

    kept = [1 if i in over else n for i, n in enumerate(x.shape)]
    return rows, back, kept if op.keepdims else [x.shape[i] for i in stay]


class _Reduction(OperatorSuite):
    apart, avoid = 0.0, None

    def draw(self, data):
        axes = data.draw(st.sampled_from([(), (0,), (1,), (-1,), (0, 2), (2, 0, 1)]))
        op = self.operator(axes=axes, keepdims=data.draw(st.booleans()))
        return op, [data.draw(floats((1, 3), (1, 3), (1, 3), apart=self.apart, avoid=self.avoid))]

    def reference(self, op, x):
        rows, _, shape = lines(op, x)
        return [np.array([self.of_row(row) for row in rows]).reshape(shape)]


class TestReduceMax(_Reduction):
    operator, apart = ReduceMax, 0.1
    of_row = staticmethod(max)
    refusals = (
        refusal(ReduceMax(axes=(2,)), [f32(2, 3)], "axes must lie in"),
        refusal(ReduceMax(axes=(1,)), [f32(2, 0)], "has no elements to choose from"),
        refusal(ReduceMax(), [f32(2).with_dtype(bool)], "signed numbers"),
    )


class TestReduceMin(_Reduction):
    operator, apart = ReduceMin, 0.1
    of_row = staticmethod(min)
    refusals = (refusal(ReduceMin(), [f32(0, 3)], "has no elements to choose from"),)


class TestReduceL1(_Reduction):
    operator, avoid = ReduceL1, 0.0
    of_row = staticmethod(lambda row: sum(abs(v) for v in row))
    refusals = (refusal(ReduceL1(), [i32(2, 3)], "floating-point numbers"),)


class TestReduceL2(_Reduction):
    operator, avoid = ReduceL2, 0.0
    of_row = staticmethod(np.linalg.norm)
    refusals = (refusal(ReduceL2(), [i32(2, 3)], "floating-point numbers"),)


class _Gradient(_Reduction):
    no_gradient = "a gradient operator"

    def draw(self, data):
        op, (x,) = super().draw(data)
        rows, _, shape = lines(op, x)
        y = np.array([self.of_row(row) for row in rows], np.float32).reshape(shape)
        return op, [data.draw(floats(*y.shape)), x, y]

    def reference(self, op, dy, x, y):
        rows, back, _ = lines(op, x)
        return [back(np.array([d * self.slope(row, v) for d, row, v in zip(dy.ravel(), rows, y.ravel())]))]


class TestReduceMaxGradient(_Gradient):
    operator, apart = ReduceMaxGradient, 0.1
    of_row = staticmethod(max)
    slope = staticmethod(lambda row, y: np.eye(len(row))[np.argmax(row)])
    refusals = (refusal(ReduceMaxGradient(), [f32(2), f32(2, 3), f32(1, 1)], "the same number of elements"),)


class TestReduceMinGradient(_Gradient):
    operator, apart = ReduceMinGradient, 0.1
    of_row = staticmethod(min)
    slope = staticmethod(lambda row, y: np.eye(len(row))[np.argmin(row)])
    refusals = (refusal(ReduceMinGradient(), [f32(2), f32(2, 3), f32(2)], "is not the reduced shape of X"),)


class TestReduceL1Gradient(_Gradient):
    operator, avoid = ReduceL1Gradient, 0.0
    of_row = staticmethod(lambda row: sum(abs(v) for v in row))
    slope = staticmethod(lambda row, y: np.where(row > 0, 1, -1))
    refusals = (refusal(ReduceL1Gradient(), [f32(2), f32(2, 3), f32(1, 1)], "the same number of elements"),)


class TestReduceL2Gradient(_Gradient):
    operator, avoid = ReduceL2Gradient, 0.0
    of_row = staticmethod(np.linalg.norm)
    slope = staticmethod(lambda row, y: row / y)
    refusals = (refusal(ReduceL2Gradient(), [f32(2), f32(2, 3), f32(1, 1)], "the same number of elements"),)


@pytest.mark.parametrize("cls", [ReduceMax, ReduceMin])
def test_whole_numbers(cls):
    (y,) = run_plain(cls(axes=(1,), keepdims=False), [np.int64([[1, 2], [4, 3]])])
    assert y.dtype == np.int64
    assert y.tolist() == ([2, 4] if cls is ReduceMax else [1, 3])


@pytest.mark.parametrize(("op", "want"), [(ReduceL1(), 4096), (ReduceL2(), 64)])
def test_half_precision_is_summed_in_single(op, want):
    (y,) = run_plain(op, [np.ones(4096, np.float16)])
    assert y.dtype == np.float16
    assert y.ravel().tolist() == [want]
