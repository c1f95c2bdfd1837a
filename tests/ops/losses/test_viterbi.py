"""ViterbiPath against all paths one by one, and SwapBestPath."""

import itertools

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.losses.viterbi import SwapBestPath, ViterbiPath
from netbuilder.proto import ShapeError
from suite import OperatorSuite, f32, floats, i32, refusal


class TestViterbiPath(OperatorSuite):
    operator = ViterbiPath
    no_gradient = "gives classes"
    refusals = (
        refusal(ViterbiPath(), [f32(3), f32(3, 3)], r"scores must have shape \(T, C\)"),
        refusal(
            ViterbiPath(),
            [i32(2, 3), i32(3, 3)],
            "the inputs must have one floating type, got scores int32, transitions int32",
        ),
        refusal(ViterbiPath(), [f32(2, 3), f32(3, 2)], r"transitions must have shape \(3, 3\) = \(C, C\)"),
    )

    def draw(self, data):
        classes = data.draw(st.integers(1, 3))
        return ViterbiPath(), [data.draw(floats((0, 5), classes)), data.draw(floats(classes, classes))]

    def reference(self, op, scores, transitions):
        steps, classes = scores.shape

        def total(path):
            return scores[range(steps), list(path)].sum() + sum(
                transitions[a, b] for a, b in zip(path, path[1:], strict=False)
            )

        return [np.array(max(itertools.product(range(classes), repeat=steps), key=total))]


def test_ties_and_direction():
    (path,) = run_plain(ViterbiPath(), [np.zeros((3, 3), np.float32), np.float32([[0, 0, 5], [0, 0, 0], [0, 0, 0]])])
    assert path.tolist() == [0, 2, 0]  # as in Caffe2: transitions from row to column, the lowest of equal classes
    (path,) = run_plain(ViterbiPath(), [np.float32([[5, 5, 3], [1, 1, 1]]), np.zeros((3, 3), np.float32)])
    assert path.tolist() == [0, 0] and path.dtype == np.int32


class TestSwapBestPath(OperatorSuite):
    operator = SwapBestPath
    no_gradient = "no operator trains through it"
    refusals = (
        refusal(SwapBestPath(), [f32(2, 3), i32(3)], "path must have"),
        refusal(SwapBestPath(), [f32(2, 3), f32(2)], "path must have"),
        refusal(SwapBestPath(), [f32(2), i32(2)], r"scores must have shape \(T, C\)"),
    )

    def draw(self, data):
        scores = data.draw(floats((0, 4), (1, 4)))
        path = data.draw(st.lists(st.integers(0, scores.shape[1] - 1), min_size=len(scores), max_size=len(scores)))
        return SwapBestPath(), [scores, np.array(path, np.int32)]

    def reference(self, op, scores, path):
        y = scores.copy()
        for row, wanted in zip(y, path):
            best = row.argmax()
            row[wanted], row[best] = row[best], row[wanted]
        return [y]


def test_a_class_that_is_none():
    with pytest.raises(ShapeError, match=r"must lie in \[0, 3\), got \[5\]"):
        run_plain(SwapBestPath(), [np.zeros((2, 3), np.float32), np.int32([1, 5])])
