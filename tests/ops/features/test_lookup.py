"""Find, Bucketize, Histogram, BatchOneHot."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.features.lookup import BatchOneHot, Bucketize, Find, Histogram
from netbuilder.proto import ArgumentError, ShapeError
from suite import OperatorSuite, f32, floats, i32, i64, refusal

SMALL = st.integers(0, 6)


class TestFind(OperatorSuite):
    operator = Find
    no_gradient = "it has none"
    refusals = (
        refusal(Find(), [i32(3), i64(2)], "query must have the type of index, int32"),
        refusal(Find(), [f32(3), f32(2)], "int32 or int64"),
        refusal(Find(), [i32(3, 1), i32(2)], r"index must have shape \(N,\)"),
    )

    def draw(self, data):
        dtype = data.draw(st.sampled_from([np.int32, np.int64]))
        index, query = (np.array(data.draw(st.lists(SMALL, max_size=6)), dtype) for _ in range(2))
        shape = data.draw(st.sampled_from([(-1,), (1, -1)]))
        return Find(missing_value=data.draw(st.sampled_from([-1, 9]))), [index, query.reshape(shape)]

    def reference(self, op, index, query):
        last = {value: place for place, value in enumerate(index.tolist())}
        return [np.array([last.get(v, op.missing_value) for v in query.ravel().tolist()], int).reshape(query.shape)]


class TestBucketize(OperatorSuite):
    operator = Bucketize
    no_gradient = "it has none"
    refusals = (
        refusal(Bucketize(boundaries=(2.0, 1.0)), [f32(2)], "must be given, in ascending order", ArgumentError),
        refusal(Bucketize(boundaries=(1.0,)), [i32(2)], "the inputs must have one floating type"),
    )

    def draw(self, data):
        bounds = tuple(sorted(data.draw(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 1.0]), min_size=1, max_size=4))))
        x = data.draw(floats((0, 3), (1, 4)))
        return Bucketize(boundaries=bounds), [np.where(np.abs(x) < 0.5, np.round(x), x).astype(np.float32)]

    def reference(self, op, x):
        return [np.array([sum(b < v for b in op.boundaries) for v in x.ravel()], int).reshape(x.shape)]


class TestHistogram(OperatorSuite):
    operator = Histogram
    no_gradient = "it has none"
    refusals = (
        refusal(
            Histogram(bin_edges=(1.0,)),
            [f32(2)],
            "Number of bin edges must be greater than or equal to 2",
            ArgumentError,
        ),
        refusal(
            Histogram(bin_edges=(0.0, 1.0, 1.0)), [f32(2)], "must be a strictly increasing sequence", ArgumentError
        ),
        refusal(Histogram(bin_edges=(1.0, 1.0)), [f32(2)], "a strictly increasing sequence of values", ArgumentError),
        refusal(
            Histogram(bin_edges=(1.0, 2.0)),
            [f32(2), i32(2)],
            "the inputs must have one floating type, got X float32, input 1 int32",
        ),
    )

    def draw(self, data):
        xs = [np.round(data.draw(floats((0, 3), (0, 4))) * 2) / 2 for _ in range(data.draw(st.integers(1, 2)))]
        return Histogram(bin_edges=(-1.5, -0.5, 0.0, 1.5)), [x.astype(np.float32) for x in xs]

    def reference(self, op, *xs):
        edges = op.bin_edges
        return [np.array([sum(((a <= x) & (x < b)).sum() for x in xs) for a, b in zip(edges, edges[1:])], int)]


def test_what_is_not_a_number_is_in_no_bin():
    (counts,) = run_plain(Histogram(bin_edges=(0.0, 1.0, 2.0)), [np.float32([np.nan, np.inf, -np.inf, 1, 2])])
    assert counts.tolist() == [0, 1]


class TestBatchOneHot(OperatorSuite):
    operator = BatchOneHot
    no_gradient = "it has none"
    refusals = (
        refusal(BatchOneHot(), [i32(2, 3), i32(2), i32(4)], r"lengths must have shape \(3,\) = \(D,\)"),
        refusal(BatchOneHot(), [i32(2, 3), i32(3), i64(4)], "values must have the type of data, int32"),
    )

    def draw(self, data):
        dtype = data.draw(st.sampled_from([np.int32, np.int64, np.bool_]))
        lengths = np.array(data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=3)), np.int32)
        rng = np.random.default_rng(data.draw(st.integers(0, 99)))
        x = rng.integers(0, 4, (data.draw(st.integers(0, 3)), len(lengths))).astype(dtype)
        return BatchOneHot(), [x, lengths, rng.integers(0, 4, int(lengths.sum())).astype(dtype)]

    def reference(self, op, x, lengths, values):
        columns = [c for c, length in enumerate(lengths) for _ in range(length)]
        rows = [[row[c] == value for c, value in zip(columns, values)] for row in x]
        return [np.array(rows, int).reshape(len(x), len(values))]


def test_lengths_that_do_not_add_up():
    with pytest.raises(ShapeError, match=r"number of values, 3; got \[1, 1\]"):
        run_plain(BatchOneHot(), [np.ones((2, 2), np.int32), np.int32([1, 1]), np.ones(3, np.int32)])
