"""NGramFromCategorical."""

import math

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.features.ngram import NGramFromCategorical
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, i64, refusal

ONE = {"col_ids": (0,), "categorical_limits": (2,), "vals": (1, 2)}


class TestNGramFromCategorical(OperatorSuite):
    operator = NGramFromCategorical
    no_gradient = "integers do not change with small steps"
    refusals = (
        refusal(NGramFromCategorical(), [f32(2, 2)], "as many categorical_limits must be given", ArgumentError),
        refusal(NGramFromCategorical(**{**ONE, "vals": (1,)}), [f32(2, 2)], r"got \[2\] for 1 vals", ArgumentError),
        refusal(
            NGramFromCategorical(**{**ONE, "categorical_limits": (0,)}), [f32(2, 2)], "must be positive", ArgumentError
        ),
        refusal(NGramFromCategorical(**{**ONE, "col_ids": (5,)}), [f32(2, 3)], "less than 3, the columns of X, got 5"),
        refusal(NGramFromCategorical(**ONE), [i64(2, 3)], "X must have elements of type float32, got int64"),
    )

    def draw(self, data):
        columns = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=3))
        lists = [data.draw(st.lists(st.integers(-3, 3), min_size=1, max_size=4, unique=True)) for _ in columns]
        rows = data.draw(st.integers(0, 5))
        x = np.array(data.draw(st.lists(st.integers(-8, 8), min_size=3 * rows, max_size=3 * rows)), np.float32) / 2
        limits = tuple(map(len, lists))
        vals = tuple(v for one in lists for v in one)
        return NGramFromCategorical(tuple(columns), limits, vals), [x.reshape(rows, 3)]

    def reference(self, op, x):
        numbers, vals = [0] * len(x), list(op.vals)
        weight = 1
        for column, limit in zip(op.col_ids, op.categorical_limits):
            listed, vals = vals[:limit], vals[limit:]
            for i, row in enumerate(x):
                whole = int(math.copysign(math.floor(abs(row[column]) + 0.5), row[column]))
                numbers[i] += weight * (listed.index(whole) if whole in listed else 0)
            weight *= limit
        return [np.array(numbers, int)]


@pytest.mark.parametrize(
    ("columns", "limits", "vals", "numbers"),
    [
        ((0, 1), (2, 2), (1, 2, 5, 6), [0, 3, 0, 0]),
        ((1, 0), (2, 3), (5, 6, 1, 2, 3), [0, 3, 4, 0]),
        ((0,), (2,), (1, 1), [1, 0, 0, 0]),
    ],
)
def test_as_caffe2_does(columns, limits, vals, numbers):
    x = np.float32([[1, 5, 9], [2, 6, 10], [3, 5, 9], [7, 7, 7]])
    (y,) = run_plain(NGramFromCategorical(columns, limits, vals), [x])
    assert y.dtype == np.int64 and y.tolist() == numbers


def test_halves_are_rounded_away_from_zero_as_in_caffe2():
    op = NGramFromCategorical((0,), (8,), (9, 1, 2, 3, 4, 0, -1, -2))
    x = np.float32([[0.5], [1.5], [2.5], [3.5], [-0.5], [-1.5], [1.4999999]])
    assert run_plain(op, [x])[0].tolist() == [1, 2, 3, 4, 6, 7, 1]
