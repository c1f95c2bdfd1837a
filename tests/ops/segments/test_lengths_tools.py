"""LengthsToSegmentIds, LengthsTile and the other operators around lengths."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.segments.lengths_tools import (
    LengthsGather,
    LengthsPad,
    LengthsSplit,
    LengthsTile,
    LengthsToOffsets,
    LengthsToRanges,
    LengthsToSegmentIds,
    LengthsToWeights,
    SegmentIdsToLengths,
    SegmentIdsToRanges,
)
from netbuilder.proto import ArgumentError, ShapeError
from netbuilder.proto.arguments import make_op
from suite import OperatorSuite, f32, floats, i32, refusal


def draw_lengths(data, count=None):
    kind = data.draw(st.sampled_from([np.int32, np.int64]))
    few, many = (0, 5) if count is None else (count, count)
    return np.array(data.draw(st.lists(st.integers(0, 4), min_size=few, max_size=many)), kind)


def cut(x, lengths):
    ends = np.cumsum(lengths).tolist()
    return [x[b - n : b] for b, n in zip(ends, lengths.tolist())]


class _OfLengths(OperatorSuite):
    no_gradient = "none passes"
    refuses_nothing = "shapes are seen when it runs; see test_what_does_not_fit"

    def draw(self, data):
        return self.operator(), [draw_lengths(data)]


class TestLengthsToSegmentIds(_OfLengths):
    operator = LengthsToSegmentIds

    def reference(self, op, lengths):
        return [np.array([s for s, n in enumerate(lengths) for _ in range(n)], int)]


class TestLengthsToRanges(_OfLengths):
    operator = LengthsToRanges
    refuses_nothing = ""
    refusals = (refusal(LengthsToRanges(), [f32(3)], "lengths must have elements of type int32 or int64"),)

    def reference(self, op, lengths):
        return [np.array([(sum(lengths[:s]), n) for s, n in enumerate(lengths)], int).reshape(-1, 2)]


class TestLengthsToOffsets(_OfLengths):
    operator = LengthsToOffsets
    refuses_nothing = ""
    refusals = (refusal(LengthsToOffsets(), [i32(3, 2)], r"lengths must have shape \(M,\)"),)

    def draw(self, data):
        return LengthsToOffsets(include_last_offset=data.draw(st.booleans())), [draw_lengths(data)]

    def reference(self, op, lengths):
        count = len(lengths) + op.include_last_offset
        return [np.array([sum(lengths[:s]) for s in range(count)], int)]


class TestLengthsToWeights(_OfLengths):
    operator = LengthsToWeights

    def draw(self, data):
        return LengthsToWeights(power=data.draw(st.sampled_from([0.5, 1.0, -1.0]))), [draw_lengths(data)]

    def reference(self, op, lengths):
        return [np.array([float(n) ** -op.power for n in lengths for _ in range(n)])]


class TestLengthsSplit(_OfLengths):
    operator = LengthsSplit
    refuses_nothing = ""
    refusals = (
        refusal(LengthsSplit(), [i32(3)], "n_split must be positive", ArgumentError),
        refusal(LengthsSplit(), [i32(3), i32(1)], "only when the net runs", NotImplementedError),
        refusal(LengthsSplit(n_split=2), [f32(3)], "lengths must have elements of type int32 or int64, got float32"),
    )

    def draw(self, data):
        n = data.draw(st.integers(1, 3))
        if data.draw(st.booleans()):
            return LengthsSplit(n_split=n), [draw_lengths(data)]
        return LengthsSplit(n_split=data.draw(st.sampled_from([-1, 5]))), [draw_lengths(data), np.int32([n])]

    def reference(self, op, lengths, n_split=None):
        n = op.n_split if n_split is None else n_split.item()
        return [np.array([total // n + (k < total % n) for total in lengths for k in range(n)], int)]


class _OfSegments(OperatorSuite):
    no_gradient = "none passes"
    refuses_nothing = "shapes are seen when it runs; see test_what_does_not_fit"

    def draw(self, data):
        segments = np.repeat(np.arange(5), draw_lengths(data, 5)).astype(
            data.draw(st.sampled_from([np.int32, np.int64]))
        )
        return self.operator(), [segments, *([np.zeros((6, 2), np.float32)] if data.draw(st.booleans()) else [])]

    def counts(self, segments, like=None):
        count = max(segments, default=-1) + 1 if like is None else len(like)
        return [segments.tolist().count(s) for s in range(count)]


class TestSegmentIdsToLengths(_OfSegments):
    operator = SegmentIdsToLengths

    def reference(self, op, *given):
        return [np.array(self.counts(*given), int)]


class TestSegmentIdsToRanges(_OfSegments):
    operator = SegmentIdsToRanges

    def reference(self, op, *given):
        counts = self.counts(*given)
        return [np.array([(sum(counts[:s]), n) for s, n in enumerate(counts)], int).reshape(-1, 2)]


class TestLengthsTile(OperatorSuite):
    operator = LengthsTile
    refuses_nothing = "shapes are seen when it runs; see test_what_does_not_fit"

    def draw(self, data):
        lengths = draw_lengths(data)
        return LengthsTile(), [data.draw(floats(len(lengths), *data.draw(st.sampled_from([(), (2,)])))), lengths]

    def reference(self, op, x, lengths):
        rows = [row for row, n in zip(x, lengths) for _ in range(n)]
        return [np.array(rows).reshape(len(rows), *x.shape[1:])]


class TestLengthsGather(OperatorSuite):
    operator = LengthsGather
    no_gradient = "it has none"
    refuses_nothing = "shapes are seen when it runs; see test_what_does_not_fit"

    def draw(self, data):
        lengths = draw_lengths(data, 3)
        which = np.array(data.draw(st.lists(st.integers(0, 2), max_size=4)), np.int64)
        return LengthsGather(), [
            data.draw(floats(int(lengths.sum()), *data.draw(st.sampled_from([(), (2,)])))),
            lengths,
            which,
        ]

    def reference(self, op, x, lengths, indices):
        segments = cut(x, lengths)
        return [np.concatenate([x[:0], *(segments[i] for i in indices)])]


class TestLengthsPad(OperatorSuite):
    operator = LengthsPad
    no_gradient = "none passes"
    refusals = (
        refusal(LengthsPad(), [f32(3), i32(2)], "target_length must be positive", ArgumentError),
        refusal(LengthsPad(target_length=2), [f32(), i32(2)], r"X must have shape \(N, \*S\)"),
        refusal(LengthsPad(target_length=2), [f32(3), f32(2)], "lengths must have elements of type int32 or int64"),
    )

    def draw(self, data):
        lengths = draw_lengths(data)
        op = LengthsPad(target_length=data.draw(st.sampled_from([4, 5])), padding_value=0.25)
        return op, [data.draw(floats(int(lengths.sum()), *data.draw(st.sampled_from([(), (2,)])))), lengths]

    def reference(self, op, x, lengths):
        parts = []
        for rows in cut(x, lengths):
            parts += [rows, np.full((op.target_length - len(rows), *x.shape[1:]), op.padding_value)]
        return [np.concatenate([x[:0], *parts])]


ROWS = np.zeros((3, 2), np.float32)


@pytest.mark.parametrize(
    ("op", "inputs", "message"),
    [
        (LengthsToSegmentIds(), [np.int32([2, -1])], "must not be negative, got -1"),
        (LengthsToWeights(), [np.float32([2])], "vector of int32 or int64"),
        (LengthsSplit(), [np.int32([2]), np.int32([0])], "n_split must be positive, got 0"),
        (LengthsTile(), [ROWS, np.int32([1, 2])], r"a length for each row of X \(3, 2\), got 2"),
        (LengthsGather(), [ROWS, np.int32([1, 1]), np.int32([0])], "must be the number of rows, 3, got 2"),
        (LengthsPad(target_length=1), [ROWS, np.int32([2, 1])], "at most target_length 1, got 2"),
        (SegmentIdsToLengths(), [np.int32([1, 0])], "sorted and not negative"),
        (SegmentIdsToRanges(), [np.int32([0, 3]), ROWS], "less than 3, the rows of the second input, got 3"),
    ],
    ids=lambda value: getattr(value, "type", ""),
)
def test_what_does_not_fit(op, inputs, message):
    with pytest.raises(ShapeError, match=message):
        run_plain(op, inputs)


def test_lengths_whose_sum_no_integer_holds():
    lengths = np.int64([2**63 - 1, 2**63 - 1, 4])  # 2 modulo 2^64, the number of rows
    with pytest.raises(
        ShapeError, match="LengthsTile: lengths must be numbers of rows that an array can have, got 9223"
    ):
        run_plain(LengthsTile(), [np.zeros((3, 1), np.float32), lengths])


def test_a_segment_that_is_not_there():
    with pytest.raises(IndexError, match=r"LengthsGather: indices must lie in \[0, 2\), got 2"):
        run_plain(LengthsGather(), [ROWS, np.int32([1, 2]), np.int32([2])])


def test_the_gradient_of_lengths_tile():
    made, _ = operator_gradient(make_op("LengthsTile", ["x", "n"], ["y"]), {0: "dy"})
    assert [(op.type, list(op.input), list(op.output)) for op in made] == [("LengthsSum", ["dy", "n"], ["x_grad"])]
