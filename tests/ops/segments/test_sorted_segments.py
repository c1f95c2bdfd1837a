"""SortedSegmentSum, SortedSegmentMean and their gradients."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.segments.sorted_segments import (
    SortedSegmentMean,
    SortedSegmentMeanGradient,
    SortedSegmentSum,
    SortedSegmentSumGradient,
)
from netbuilder.proto import ShapeError
from suite import OperatorSuite, f32, floats, i32, refusal


def draw_segments(data):
    counts = data.draw(st.lists(st.integers(1, 4), max_size=4))
    return np.repeat(np.arange(len(counts)), counts).astype(data.draw(st.sampled_from([np.int32, np.int64])))


def rows_of(x, segments):
    return [x[segments == s] for s in range(len(set(segments.tolist())))]


class TestSortedSegmentSum(OperatorSuite):
    operator = SortedSegmentSum
    refuses_nothing = "shapes are seen when it runs; see test_segments_out_of_order"

    def draw(self, data):
        segments = draw_segments(data)
        return self.operator(), [
            data.draw(floats(len(segments), *data.draw(st.sampled_from([(), (3,), (2, 2)])))),
            segments,
        ]

    def reference(self, op, x, segments):
        rows = rows_of(x, segments)
        return [np.array([r.sum(axis=0) for r in rows]).reshape(len(rows), *x.shape[1:])]


class TestSortedSegmentMean(TestSortedSegmentSum):
    operator = SortedSegmentMean

    def reference(self, op, x, segments):
        rows = rows_of(x, segments)
        return [np.array([r.mean(axis=0) for r in rows]).reshape(len(rows), *x.shape[1:])]


class TestSortedSegmentSumGradient(OperatorSuite):
    operator = SortedSegmentSumGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(SortedSegmentSumGradient(), [f32(3, 2), f32(4)], "segments must have elements of type int32 or int64"),
        refusal(SortedSegmentSumGradient(), [f32(), i32(4)], r"dY must have shape \(M, \*S\)"),
    )

    def draw(self, data):
        segments = draw_segments(data)
        count = len(set(segments.tolist()))
        return self.operator(), [data.draw(floats(count, *data.draw(st.sampled_from([(), (3,)])))), segments]

    def reference(self, op, dy, segments):
        return [np.array([dy[s] for s in segments]).reshape(len(segments), *dy.shape[1:])]


class TestSortedSegmentMeanGradient(TestSortedSegmentSumGradient):
    operator = SortedSegmentMeanGradient
    refusals = (refusal(SortedSegmentMeanGradient(), [f32(), i32(4)], r"dY must have shape \(M, \*S\)"),)

    def reference(self, op, dy, segments):
        rows = [dy[s] / segments.tolist().count(s) for s in segments]
        return [np.array(rows).reshape(len(segments), *dy.shape[1:])]


@pytest.mark.parametrize("segments", [[1, 1, 2], [0, 0, 2], [0, 1, 0]])
def test_segments_out_of_order(segments):
    with pytest.raises(ShapeError, match="must begin with 0 and rise by steps of 1"):
        run_plain(SortedSegmentSum(), [np.zeros((3, 2), np.float32), np.int32(segments)])


def test_a_segment_for_each_row():
    with pytest.raises(ShapeError, match=r"a segment for each row of X \(3, 2\), got 2"):
        run_plain(SortedSegmentSum(), [np.zeros((3, 2), np.float32), np.int32([0, 1])])
    with pytest.raises(ShapeError, match="floating-point numbers, got int32"):
        run_plain(SortedSegmentMean(), [np.zeros((2, 2), np.int32), np.int32([0, 1])])
