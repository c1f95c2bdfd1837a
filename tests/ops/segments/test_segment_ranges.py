"""SortedSegmentRangeSum, Mean, Max, LogSumExp, LogMeanExp."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.segments import segment_ranges
from netbuilder.ops.segments.segment_ranges import (
    SortedSegmentRangeLogMeanExp,
    SortedSegmentRangeLogMeanExpGradient,
    SortedSegmentRangeLogSumExp,
    SortedSegmentRangeLogSumExpGradient,
    SortedSegmentRangeMax,
    SortedSegmentRangeMaxGradient,
    SortedSegmentRangeMean,
    SortedSegmentRangeMeanGradient,
    SortedSegmentRangeSum,
    SortedSegmentRangeSumGradient,
)
from netbuilder.proto import ShapeError
from suite import OperatorSuite, f32, floats, i32, refusal


def draw_segments(data):
    counts = data.draw(st.lists(st.integers(1, 3), max_size=3))
    kind = data.draw(st.sampled_from([np.int32, np.int64]))
    segments = np.repeat(np.arange(len(counts)), np.array(counts, int)).astype(kind)
    row = data.draw(st.sampled_from([(), (2,)]))
    return data.draw(floats(len(segments), *row, apart=0.1)), segments


class _Range(OperatorSuite):
    refuses_nothing = "shapes are seen when it runs; see test_what_does_not_fit"

    def draw(self, data):
        return self.operator(), list(draw_segments(data))

    def reference(self, op, x, segments):
        count = int(segments.max(initial=-1)) + 1
        rows = [self.reduce(x[segments == s]) for s in range(count)]
        return [np.array(rows).reshape(count, *x.shape[1:])]


class TestSortedSegmentRangeSum(_Range):
    operator = SortedSegmentRangeSum

    def reduce(self, rows):
        return rows.sum(axis=0)


class TestSortedSegmentRangeMean(_Range):
    operator = SortedSegmentRangeMean

    def reduce(self, rows):
        return rows.mean(axis=0)


class TestSortedSegmentRangeMax(_Range):
    operator = SortedSegmentRangeMax

    def reduce(self, rows):
        return rows.max(axis=0)


class TestSortedSegmentRangeLogSumExp(_Range):
    operator = SortedSegmentRangeLogSumExp

    def reduce(self, rows):
        return np.log(np.exp(rows).sum(axis=0))


class TestSortedSegmentRangeLogMeanExp(_Range):
    operator = SortedSegmentRangeLogMeanExp

    def reduce(self, rows):
        return np.log(np.exp(rows).mean(axis=0))


class _Gradient(OperatorSuite):
    """Checked through the forward operator's numerical gradient, and here in float32."""

    no_gradient = "a gradient operator"

    @property
    def refusals(self):
        return (
            refusal(
                self.operator(),
                [f32(3, 2), f32(2, 2), f32(2, 2), i32(4)],
                r"segments must have shape \(3,\) = \(N,\), got \(4,\)",
            ),
            refusal(self.operator(), [f32(3, 2), f32(2, 2), f32(2, 1), i32(3)], r"must have rows of shape \(2,\)"),
        )

    def draw(self, data):
        x, segments = draw_segments(data)
        (y,) = run_plain(getattr(segment_ranges, self.operator.__name__.removesuffix("Gradient"))(), [x, segments])
        return self.operator(), [x, y, data.draw(floats(*y.shape)), segments]

    def reference(self, op, x, y, dy, segments):
        rows = [self.slope(x[i], y[s], dy[s], int((segments == s).sum())) for i, s in enumerate(segments.tolist())]
        return [np.array(rows).reshape(x.shape)]


class TestSortedSegmentRangeSumGradient(_Gradient):
    operator = SortedSegmentRangeSumGradient

    def slope(self, x, y, dy, count):
        return dy


class TestSortedSegmentRangeMeanGradient(_Gradient):
    operator = SortedSegmentRangeMeanGradient

    def slope(self, x, y, dy, count):
        return dy / count


class TestSortedSegmentRangeMaxGradient(_Gradient):
    operator = SortedSegmentRangeMaxGradient

    def slope(self, x, y, dy, count):
        return np.where(x == y, dy, 0)


class TestSortedSegmentRangeLogSumExpGradient(_Gradient):
    operator = SortedSegmentRangeLogSumExpGradient

    def slope(self, x, y, dy, count):
        return dy * np.exp(x - y)


class TestSortedSegmentRangeLogMeanExpGradient(_Gradient):
    operator = SortedSegmentRangeLogMeanExpGradient

    def slope(self, x, y, dy, count):
        return dy * np.exp(x - y) / count


def test_no_overflow():
    x = np.float32([1000, 1001, -1000])
    (y,) = run_plain(SortedSegmentRangeLogSumExp(), [x, np.int32([0, 0, 1])])
    np.testing.assert_allclose(y, [1001 + np.log1p(np.exp(-1.0)), -1000], 1e-6)


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        (np.int32([0, 2, 2]), "rise by steps of 1"),
        (np.int32([1, 1, 2]), "must begin with 0"),
        (np.int32([0, 0]), r"a segment for each row of X \(3,\), got 2"),
        (np.float32([0, 0, 1]), "segments must be a vector of int32 or int64"),
    ],
)
def test_what_does_not_fit(segments, message):
    with pytest.raises(ShapeError, match=message):
        run_plain(SortedSegmentRangeSum(), [np.zeros(3, np.float32), segments])
