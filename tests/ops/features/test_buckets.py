"""BatchBucketize, BatchBucketOneHot, IndexHash."""

import bisect

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.features.buckets import BatchBucketize, BatchBucketOneHot, IndexHash
from netbuilder.proto import ArgumentError, ShapeError
from suite import OperatorSuite, f32, i32, i64, refusal

VALUES = [-1.0, -0.5, 0.0, 0.5, 1.0]


def draw_features(data, count):
    """A matrix, lengths and bounds of ``count`` of its columns; elements equal bounds now and then."""
    bounds = [sorted(data.draw(st.lists(st.sampled_from(VALUES), max_size=4))) for _ in range(count)]
    rows, rng = data.draw(st.integers(0, 3)), np.random.default_rng(data.draw(st.integers(0, 99)))
    x = rng.choice([*VALUES, 0.25, 2.0], (rows, count)).astype(np.float32)
    return x, np.array([len(b) for b in bounds], np.int32), np.array(sum(bounds, []), np.float32)


def cut(bounds, lengths):
    ends = np.cumsum(lengths).tolist()
    return [bounds[b - n : b].tolist() for b, n in zip(ends, lengths.tolist())]


class TestBatchBucketize(OperatorSuite):
    operator = BatchBucketize
    no_gradient = "none passes"
    refusals = (
        refusal(BatchBucketize(), [f32(3), i32(2), f32(4), i32(2)], r"X must have shape \(N, D\)"),
        refusal(BatchBucketize(), [f32(3, 2), i32(2), i32(4), i32(2)], "boundaries must have the type of X, float32"),
        refusal(BatchBucketize(), [f32(3, 2), i32(2), f32(4), i32(3)], "lengths must have the shape of indices"),
        refusal(
            BatchBucketize(), [f32(3, 2), f32(2), f32(4), i32(2)], "indices must have elements of type int32 or int64"
        ),
    )

    def draw(self, data):
        x, lengths, bounds = draw_features(data, 2)
        wide = np.zeros((len(x), 3), np.float32)
        wide[:, [2, 0]] = x
        return BatchBucketize(), [wide, np.int32([2, 0]), bounds, lengths]

    def reference(self, op, x, indices, bounds, lengths):
        features = cut(bounds, lengths)
        y = [[bisect.bisect_left(of, row[i]) for i, of in zip(indices, features)] for row in x.tolist()]
        return [np.array(y, int).reshape(len(x), 2)]


class TestBatchBucketOneHot(OperatorSuite):
    operator = BatchBucketOneHot
    no_gradient = "none passes"
    refusals = (
        refusal(BatchBucketOneHot(), [f32(3, 2), f32(2), f32(4)], "lengths must have elements of type int32 or int64"),
        refusal(BatchBucketOneHot(), [f32(3, 2), i32(3), f32(4)], r"lengths must have shape \(2,\) = \(D,\)"),
    )

    def draw(self, data):
        return BatchBucketOneHot(), list(draw_features(data, 2))

    def reference(self, op, x, lengths, bounds):
        y = np.zeros((len(x), len(bounds) + len(lengths)))
        start = 0
        for k, of in enumerate(cut(bounds, lengths)):
            for n, row in enumerate(x.tolist()):
                y[n, start + (bisect.bisect_left(of, row[k]) + bisect.bisect_right(of, row[k])) // 2] = 1
            start += len(of) + 1
        return [y]


class TestIndexHash(OperatorSuite):
    operator = IndexHash
    no_gradient = "none passes"
    refusals = (
        refusal(IndexHash(), [i64(3)], "modulo must be positive, at most", ArgumentError),
        refusal(IndexHash(modulo=5), [f32(3)], "X must have elements of type int32 or int64"),
    )

    def draw(self, data):
        kind = data.draw(st.sampled_from([np.int32, np.int64]))
        info = np.iinfo(kind)
        x = np.array(data.draw(st.lists(st.integers(info.min, info.max), max_size=4)), kind)
        return IndexHash(seed=data.draw(st.integers(0, 9)), modulo=data.draw(st.sampled_from([7, 100, 10**9]))), [x]

    def reference(self, op, x):
        bits = 8 * x.itemsize
        made = []
        for value in x.tolist():
            total = op.seed * 0xDEADBEEF
            for byte in np.array(value, x.dtype).tobytes():
                total = total * 65537 + (byte - 256 if byte > 127 else byte)
            total %= 1 << bits
            total -= (1 << bits) * (total >> (bits - 1))
            rest = abs(total) % op.modulo
            made.append((op.modulo + (rest if total >= 0 else -rest)) % op.modulo)
        return [np.array(made, int)]


def test_bounds_that_fall():
    with pytest.raises(ShapeError, match="of a feature must ascend, got 1.0 before 0.5"):
        run_plain(BatchBucketOneHot(), [np.zeros((1, 2), np.float32), np.int32([1, 2]), np.float32([2, 1, 0.5])])
