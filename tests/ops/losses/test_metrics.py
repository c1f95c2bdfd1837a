"""Perplexity and MultiClassAccuracy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.losses.metrics import MultiClassAccuracy, Perplexity
from netbuilder.proto import ShapeError
from suite import OperatorSuite, f32, floats, i32, refusal


class TestPerplexity(OperatorSuite):
    operator = Perplexity
    wrt = ()
    no_gradient = "a measure"
    refusals = (
        refusal(Perplexity(), [f32(3, 2)], r"probabilities must have shape \(N,\) or \(N, 1\)"),
        refusal(Perplexity(), [i32(3)], "one floating type"),
    )

    def draw(self, data):
        return Perplexity(), [data.draw(floats((1, 5), low=0.05, high=1.0))]

    def reference(self, op, x):
        return [np.array(np.prod(x ** (-1 / len(x))))]


class TestMultiClassAccuracy(OperatorSuite):
    operator = MultiClassAccuracy
    wrt = ()
    no_gradient = "a measure"
    refusals = (
        refusal(MultiClassAccuracy(), [f32(3), i32(3)], r"prediction must have shape \(N, C\)", n_out=2),
        refusal(
            MultiClassAccuracy(),
            [f32(3, 2), i32(2)],
            r"labels must have shape \(3,\) or \(3, 1\) = \(N,\) or \(N, 1\)",
            n_out=2,
        ),
    )

    def draw(self, data):
        scores = data.draw(floats((1, 6), (1, 4)))
        labels = data.draw(st.lists(st.integers(0, scores.shape[1] - 1), min_size=len(scores), max_size=len(scores)))
        return MultiClassAccuracy(), [scores, np.int32(labels)]

    def reference(self, op, scores, labels):
        rows = [
            [list(row).index(max(row)) == c for row, l in zip(scores, labels) if l == c] for c in range(scores.shape[1])
        ]
        return [np.array([np.mean(r) if r else 0 for r in rows]), np.array([len(r) for r in rows])]


def test_labels_that_are_no_class_are_refused():
    with pytest.raises(ShapeError, match=r"labels must lie in \[0, 2\)"):
        run_plain(MultiClassAccuracy(), [np.zeros((1, 2), np.float32), np.int32([2])])


def test_rows_with_nan_are_wrong():
    scores = np.float32([[np.nan, 0], [0, np.nan], [1, 0], [np.inf, np.inf]])
    accuracies, amounts = run_plain(MultiClassAccuracy(), [scores, np.int32([0, 1, 0, 0])])
    np.testing.assert_allclose(accuracies, [2 / 3, 0], rtol=1e-6)
    assert amounts.tolist() == [3, 1]


@pytest.mark.parametrize("given", [[], [0.5, np.nan], [np.inf], [0.5, -1.0]], ids=str)
def test_perplexity_of_what_is_no_probability(given):
    assert np.isnan(run_plain(Perplexity(), [np.float32(given)])[0])


def test_perplexity_of_a_probability_of_0():
    with np.errstate(divide="ignore"):
        assert run_plain(Perplexity(), [np.float32([0.5, 0.0])])[0] == np.inf
