"""Gradients of segment reductions by their other names."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.segments import segment_gradients as module
from netbuilder.proto import ShapeError
from suite import OperatorSuite, f32, floats, i32, refusal

ROW = (2,)


def draw_segments(data):
    """Lengths, the segment of each row, and dY."""
    lengths = np.array(data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4)), np.int32)
    return lengths, np.repeat(np.arange(lengths.size), lengths).astype(np.int32), data.draw(floats(lengths.size, *ROW))


def rows_of(dy, segments, weights=None, *, mean=False):
    """The gradient of each row, one by one."""
    found = []
    for i, s in enumerate(segments.tolist()):
        factor = 1 / (segments == s).sum() if mean else 1 if weights is None else weights[i]
        found.append(dy[s] * factor)
    return np.array(found).reshape(len(segments), *ROW)


class _ByLengths(OperatorSuite):
    no_gradient = "a gradient operator"
    refuses_nothing = "what is wrong shows when it runs; see below"

    def draw(self, data):
        lengths, self.segments, dy = draw_segments(data)
        return self.operator(), [dy, lengths]

    def reference(self, op, dy, lengths):
        return [rows_of(dy, self.segments, mean="Mean" in op.type)]


class TestLengthsSumGradient(_ByLengths):
    operator = module.LengthsSumGradient


class TestLengthsMeanGradient(_ByLengths):
    operator = module.LengthsMeanGradient


class TestSparseLengthsSumGradient(_ByLengths):
    operator = module.SparseLengthsSumGradient


class TestSparseLengthsMeanGradient(_ByLengths):
    operator = module.SparseLengthsMeanGradient


class TestSparseLengthsWeightedSumGradient(OperatorSuite):
    operator = module.SparseLengthsWeightedSumGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(operator(), [f32(3), f32(2, 2), i32(3)], r"lengths must have shape \(2,\) = \(M,\)"),
        refusal(operator(), [f32(3, 1), f32(2, 2), i32(2)], r"weights must have shape \(I,\)"),
        refusal(
            operator(), [f32(3), f32(2, 2), f32(2)], "lengths must have elements of type int32 or int64, got float32"
        ),
    )

    def draw(self, data):
        lengths, self.segments, dy = draw_segments(data)
        return self.operator(), [data.draw(floats(self.segments.size)), dy, lengths]

    def reference(self, op, weights, dy, lengths):
        return [rows_of(dy, self.segments, weights)]


class TestSparseLengthsWeightedSumWithMainInputGradient(OperatorSuite):
    operator = module.SparseLengthsWeightedSumWithMainInputGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(operator(), [f32(3), f32(2, 2), i32(2), f32(4, 3), i32(3)], r"X must have shape \(R, 2\) = \(R, \*S\)"),
    )

    def draw(self, data):
        lengths, self.segments, dy = draw_segments(data)
        indices = np.arange(self.segments.size, dtype=np.int32) % 3
        return self.operator(), [data.draw(floats(indices.size)), dy, lengths, data.draw(floats(3, *ROW)), indices]

    def reference(self, op, weights, dy, lengths, x, indices):
        return [rows_of(dy, self.segments, weights), (dy[self.segments] * x[indices]).sum(axis=1)]


class _BySegments(OperatorSuite):
    no_gradient = "a gradient operator"

    def draw(self, data):
        _, segments, dy = draw_segments(data)
        order = np.random.default_rng(0).permutation(segments.size) if "Unsorted" in self.operator.__name__ else ...
        weights = [data.draw(floats(segments.size))] if "Weighted" in self.operator.__name__ else []
        return self.operator(), [*weights, dy, segments[order]]

    def reference(self, op, *given):
        *weights, dy, segments = given
        return [rows_of(dy, segments, *weights, mean="Mean" in op.type)]


def bad(cls):
    weights = [f32(3)] if "Weighted" in cls.__name__ else []
    return (refusal(cls(), [*weights, f32(2, 2), f32(3)], "segments must have elements of type int32 or int64"),)


class TestSparseSortedSegmentSumGradient(_BySegments):
    operator = module.SparseSortedSegmentSumGradient
    refusals = bad(operator)


class TestSparseSortedSegmentMeanGradient(_BySegments):
    operator = module.SparseSortedSegmentMeanGradient
    refusals = bad(operator)


class TestSparseSortedSegmentWeightedSumGradient(_BySegments):
    operator = module.SparseSortedSegmentWeightedSumGradient
    refusals = bad(operator)


class TestSparseUnsortedSegmentSumGradient(_BySegments):
    operator = module.SparseUnsortedSegmentSumGradient
    refusals = bad(operator)


class TestSparseUnsortedSegmentMeanGradient(_BySegments):
    operator = module.SparseUnsortedSegmentMeanGradient
    refusals = bad(operator)


class TestSparseUnsortedSegmentWeightedSumGradient(_BySegments):
    operator = module.SparseUnsortedSegmentWeightedSumGradient
    refusals = bad(operator)


@pytest.mark.parametrize(
    ("dy", "lengths", "message"),
    [
        (np.zeros((2, 2)), np.int32([1]), r"a row for each of the lengths, \(1,\), got shape \(2, 2\)"),
        (np.zeros((1, 2)), np.int32([-1]), "lengths must not be negative, got -1"),
        (np.zeros((1, 2)), np.float32([1]), r"lengths must be a vector of int32 or int64, got shape \(1,\) of float32"),
    ],
)
def test_what_does_not_fit(dy, lengths, message):
    with pytest.raises(ShapeError, match=message):
        run_plain(module.LengthsSumGradient(), [dy, lengths])
