"""LengthsSum, LengthsMean, LengthsMax, LengthsWeightedSum and their gradients."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.core import segment_groups
from netbuilder.ops.segments.lengths_reductions import (
    LengthsIndicesInGradientMeanGradient,
    LengthsIndicesInGradientSumGradient,
    LengthsMax,
    LengthsMaxWithMainInputAndForwardOutputGradient,
    LengthsMean,
    LengthsSum,
    LengthsWeightedSum,
    LengthsWeightedSumGradient,
    LengthsWeightedSumWithMainInputGradient,
)
from netbuilder.proto import ShapeError
from suite import OperatorSuite, f32, floats, i32, refusal


def draw_lengths(data):
    kind = data.draw(st.sampled_from([np.int32, np.int64]))
    return np.array(data.draw(st.lists(st.integers(0, 4), max_size=5)), kind)


def cut(x, lengths):
    """The rows of each segment, one after the other."""
    ends = np.cumsum(lengths).tolist()
    return [x[b - n : b] for b, n in zip(ends, lengths.tolist())]


def stacked(rows, like):
    return np.array(rows).reshape(len(rows), *like.shape[1:])


class _Lengths(OperatorSuite):
    weighted = False
    apart = 0.0

    def draw(self, data):
        lengths = draw_lengths(data)
        count = int(lengths.sum())
        x = data.draw(floats(count, *data.draw(st.sampled_from([(), (3,), (2, 2)])), apart=self.apart))
        weights = [data.draw(floats(count))] if self.weighted else []
        return self.operator(), [x, *weights, lengths]


class TestLengthsSum(_Lengths):
    operator = LengthsSum
    refusals = (
        refusal(LengthsSum(), [f32(3, 2), f32(2)], "lengths must have elements of type int32 or int64"),
        refusal(LengthsSum(), [f32(), i32(2)], r"X must have shape \(N, \*S\)"),
        refusal(LengthsSum(), [i32(3), i32(2)], "the inputs must have one floating type"),
    )

    def reference(self, op, x, lengths):
        return [stacked([rows.sum(axis=0) for rows in cut(x, lengths)], x)]


class TestLengthsMean(_Lengths):
    operator = LengthsMean
    refusals = (refusal(LengthsMean(), [f32(3, 2), i32(2, 2)], r"lengths must have shape \(M,\)"),)

    def reference(self, op, x, lengths):
        return [stacked([rows.sum(axis=0) / max(len(rows), 1) for rows in cut(x, lengths)], x)]


class TestLengthsMax(_Lengths):
    operator = LengthsMax
    apart = 0.1
    refusals = (refusal(LengthsMax(), [f32(3, 2), i32(2, 2)], r"lengths must have shape \(M,\)"),)

    def reference(self, op, x, lengths):
        return [stacked([rows.max(axis=0) if len(rows) else np.zeros(x.shape[1:]) for rows in cut(x, lengths)], x)]


class TestLengthsWeightedSum(_Lengths):
    operator = LengthsWeightedSum
    weighted = True
    wrt = (0, 1)
    refusals = (
        refusal(LengthsWeightedSum(), [f32(3, 2), f32(2), i32(2)], r"weights must have shape \(3,\)"),
        refusal(LengthsWeightedSum(), [f32(3, 2), f32(3), f32(2)], "lengths must have elements of type int32 or int64"),
    )

    def draw(self, data):
        return LengthsWeightedSum(grad_on_weights=True), super().draw(data)[1]

    def reference(self, op, x, weights, lengths):
        scaled = x * weights.reshape((-1,) + (1,) * (x.ndim - 1))
        return [stacked([rows.sum(axis=0) for rows in cut(scaled, lengths)], x)]


class _Gradient(OperatorSuite):
    no_gradient = "a gradient operator"

    def parts(self, data):
        """dY, lengths, X, weights."""
        lengths = draw_lengths(data)
        count, row = int(lengths.sum()), data.draw(st.sampled_from([(), (3,)]))
        return data.draw(floats(len(lengths), *row)), lengths, data.draw(floats(count, *row)), data.draw(floats(count))


def spread(dy, lengths):
    rows = [dy[s] for s, n in enumerate(lengths.tolist()) for _ in range(n)]
    return np.array(rows).reshape(len(rows), *dy.shape[1:])


class TestLengthsIndicesInGradientSumGradient(_Gradient):
    operator = LengthsIndicesInGradientSumGradient
    refusals = (
        refusal(
            LengthsIndicesInGradientSumGradient(),
            [f32(3, 2), i32(2), f32(4, 2)],
            r"lengths must have shape \(3,\) = \(M,\)",
        ),
        refusal(
            LengthsIndicesInGradientSumGradient(),
            [f32(2, 2), i32(2), f32(4, 3)],
            r"X must have shape \(N, 2\) = \(N, \*S\)",
        ),
    )

    def draw(self, data):
        return self.operator(), list(self.parts(data)[:3])

    def reference(self, op, dy, lengths, x):
        return [spread(dy, lengths)]


class TestLengthsIndicesInGradientMeanGradient(TestLengthsIndicesInGradientSumGradient):
    operator = LengthsIndicesInGradientMeanGradient
    refusals = (
        refusal(LengthsIndicesInGradientMeanGradient(), [f32(), i32(2), f32(4, 2)], r"dY must have shape \(M, \*S\)"),
    )

    def reference(self, op, dy, lengths, x):
        share = [row / max(n, 1) for row, n in zip(dy, lengths.tolist())]
        return [spread(stacked(share, dy), lengths)]


class TestLengthsMaxGradient(_Gradient):
    operator = LengthsMaxWithMainInputAndForwardOutputGradient
    refusals = (
        refusal(
            LengthsMaxWithMainInputAndForwardOutputGradient(),
            [f32(2, 2), f32(3, 2), i32(3), f32(4, 2)],
            r"dY must have the shape of Y, \(2, 2\)",
        ),
    )

    def draw(self, data):
        dy, lengths, x, _ = self.parts(data)
        x = np.round(x)  # ties
        y = stacked([r.max(axis=0) if len(r) else np.zeros(x.shape[1:]) for r in cut(x, lengths)], x)
        return self.operator(), [y.astype(np.float32), dy, lengths, x]

    def reference(self, op, y, dy, lengths, x):
        return [np.where(x == spread(y, lengths), spread(dy, lengths), 0)]


class TestLengthsWeightedSumGradient(_Gradient):
    operator = LengthsWeightedSumGradient
    refusals = (refusal(LengthsWeightedSumGradient(), [f32(2, 2), f32(2), i32(2)], r"weights must have shape \(N,\)"),)

    def draw(self, data):
        dy, lengths, _, weights = self.parts(data)
        return self.operator(), [weights, dy, lengths]

    def reference(self, op, weights, dy, lengths):
        rows = spread(dy, lengths)
        return [stacked([w * row for w, row in zip(weights, rows)], dy)]


class TestLengthsWeightedSumWithMainInputGradient(_Gradient):
    operator = LengthsWeightedSumWithMainInputGradient
    refusals = (
        refusal(
            LengthsWeightedSumWithMainInputGradient(),
            [f32(3), f32(2, 2), i32(2), f32(4, 2)],
            r"X must have shape \(3, 2\) = \(N, \*S\)",
        ),
    )

    def draw(self, data):
        dy, lengths, x, weights = self.parts(data)
        return self.operator(), [weights, dy, lengths, x]

    def reference(self, op, weights, dy, lengths, x):
        rows = spread(dy, lengths)
        d_weights = np.array([(a * b).sum() for a, b in zip(rows, x)])
        return [stacked([w * row for w, row in zip(weights, rows)], dy), d_weights]


@pytest.mark.parametrize(
    ("lengths", "message"),
    [([2, 2], "sum of the lengths must be the number of rows, 3, got 4"), ([4, -1], "must not be negative, got -1")],
)
def test_lengths_that_do_not_fit(lengths, message):
    with pytest.raises(ShapeError, match=message):
        run_plain(LengthsSum(), [np.zeros((3, 2), np.float32), np.int32(lengths)])


@pytest.mark.parametrize("op", [LengthsSum(), LengthsMax()], ids=lambda op: op.type)
def test_segments_longer_than_a_piece(op, monkeypatch):
    """Pieces are small here, so that a segment has several pieces, and a length, too."""
    monkeypatch.setattr(segment_groups, "CACHED_BYTES", 5 * 3 * 4)
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 14, 40).astype(np.int32)
    x = rng.standard_normal((int(lengths.sum()), 3)).astype(np.float32)
    (y,) = run_plain(op, [x, lengths])
    reduce = np.sum if op.type == "LengthsSum" else np.max
    want = [reduce(rows, axis=0) if len(rows) else np.zeros(3) for rows in cut(x, lengths)]
    np.testing.assert_allclose(y, want, 1e-5, 1e-5)
