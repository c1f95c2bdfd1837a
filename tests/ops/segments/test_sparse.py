"""SparseToDense, Unique, UnsortedSegmentSum and Mean."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.core.operator import decode
from netbuilder.ops.core.registry import find
from netbuilder.ops.segments.sparse import (
    SparseToDense,
    Unique,
    UnsortedSegmentMean,
    UnsortedSegmentMeanGradient,
    UnsortedSegmentSum,
    UnsortedSegmentSumGradient,
)
from netbuilder.proto import OperatorError, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, floats, i32, i64, refusal


def draw_indices(data, extent, count):
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    return rng.integers(0, extent, count).astype(data.draw(st.sampled_from([np.int32, np.int64])))


class TestSparseToDense(OperatorSuite):
    operator = SparseToDense
    wrt = (1,)
    refusals = (
        refusal(SparseToDense(), [i32(3), f32(3)], "only when the net runs", ShapeError),
        refusal(SparseToDense(), [i32(3), f32(2), f32(4)], r"begin with the shape of indices, \(3,\)"),
        refusal(SparseToDense(), [f32(3), f32(3), f32(4)], "int32 or int64"),
        refusal(SparseToDense(), [i32(3), f32(3), f32()], "must have rows"),
    )

    def draw(self, data):
        count = data.draw(st.integers(0, 5))
        indices, values = (
            draw_indices(data, 4, count),
            data.draw(floats(count, *data.draw(st.sampled_from([(), (2,)])))),
        )
        how = data.draw(st.sampled_from(["like", "argument", "data"]))
        if how == "like":
            return SparseToDense(), [indices, values, np.zeros((5, 1), np.float32)]
        return SparseToDense(output_first_dim=6 if how == "argument" else 0), [indices, values]

    def reference(self, op, indices, values, like=None):
        rows = max(indices, default=-1) + 1
        dense = np.zeros((len(like) if like is not None else op.output_first_dim or rows, *values.shape[1:]))
        for i, value in zip(indices, values):
            dense[i] += value
        return [dense]


class TestUnique(OperatorSuite):
    operator = Unique
    no_gradient = "it has none"
    refuses_nothing = "shapes are seen when it runs; see test_unique_of_a_matrix"

    def draw(self, data):
        return Unique().with_arity(1, data.draw(st.sampled_from([1, 2]))), [
            draw_indices(data, 5, data.draw(st.integers(0, 7)))
        ]

    def reference(self, op, indices):
        found = sorted(set(indices.tolist()))
        return [np.array(found, int), np.array([found.index(i) for i in indices.tolist()], int)][: op.n_out]


def test_unique_of_a_matrix():
    with pytest.raises(ShapeError, match="must be a vector"):
        run_plain(Unique().with_arity(1, 2), [np.zeros((2, 2), np.int32)])


def test_unique_places_are_int32():
    found, places = run_plain(Unique().with_arity(1, 2), [np.int64([7, 3, 7])])
    assert (found.dtype, places.dtype) == (np.int64, np.int32)


class _Segments(OperatorSuite):
    def draw(self, data):
        count = data.draw(st.integers(0, 5))
        x = data.draw(floats(count, *data.draw(st.sampled_from([(), (3,)]))))
        return self.operator(num_segments=data.draw(st.sampled_from([-1, 4, 6]))), [x, draw_indices(data, 4, count)]

    def rows_of(self, op, x, segments):
        count = op.num_segments if op.num_segments > 0 else max(segments, default=-1) + 1
        return [x[segments == s] for s in range(count)]


class TestUnsortedSegmentSum(_Segments):
    operator = UnsortedSegmentSum
    refusals = (
        refusal(UnsortedSegmentSum(num_segments=3), [f32(4, 2), i32(3)], "a segment for each row"),
        refusal(UnsortedSegmentSum(num_segments=3), [f32(4, 2), f32(4)], "vector of int32 or int64"),
        refusal(UnsortedSegmentSum(num_segments=3), [i32(4), i32(4)], "floating-point numbers"),
        refusal(UnsortedSegmentSum(), [f32(4, 2), i32(4)], "only when the net runs", ShapeError),
    )

    def reference(self, op, x, segments):
        rows = self.rows_of(op, x, segments)
        return [np.array([r.sum(axis=0) for r in rows]).reshape(len(rows), *x.shape[1:])]


class TestUnsortedSegmentMean(_Segments):
    operator = UnsortedSegmentMean
    refusals = (
        refusal(UnsortedSegmentMean(num_segments=3), [f32(4, 2), i64(3)], "a segment for each row"),
        refusal(UnsortedSegmentMean(), [f32(4, 2), i32(4)], "only when the net runs", ShapeError),
    )

    def reference(self, op, x, segments):
        rows = self.rows_of(op, x, segments)
        return [np.array([r.sum(axis=0) / max(len(r), 1) for r in rows]).reshape(len(rows), *x.shape[1:])]


class _SegmentsGradient(OperatorSuite):
    no_gradient = "a gradient operator"

    def draw(self, data):
        dy = data.draw(floats(4, *data.draw(st.sampled_from([(), (3,)]))))
        return self.operator(), [dy, draw_indices(data, 4, data.draw(st.integers(0, 5)))]


class TestUnsortedSegmentSumGradient(_SegmentsGradient):
    operator = UnsortedSegmentSumGradient
    refusals = (refusal(UnsortedSegmentSumGradient(), [f32(), i32(3)], r"dY must have shape \(M, \*S\)"),)

    def reference(self, op, dy, segments):
        return [np.array([dy[s] for s in segments]).reshape(len(segments), *dy.shape[1:])]


class TestUnsortedSegmentMeanGradient(_SegmentsGradient):
    operator = UnsortedSegmentMeanGradient
    refusals = (refusal(UnsortedSegmentMeanGradient(), [f32(4), i32(3, 1)], r"segments must have shape \(N,\)"),)

    def reference(self, op, dy, segments):
        rows = [dy[s] / segments.tolist().count(s) for s in segments]
        return [np.array(rows).reshape(len(segments), *dy.shape[1:])]


def test_dynamic_only_where_data_decide():
    def is_dynamic(op):
        return decode(find(op.type), op).dynamic

    assert is_dynamic(make_op("UnsortedSegmentSum", ["x", "s"], ["y"]))
    assert not is_dynamic(make_op("UnsortedSegmentSum", ["x", "s"], ["y"], num_segments=3))
    assert is_dynamic(make_op("SparseToDense", ["i", "v"], ["y"]))
    assert not is_dynamic(make_op("SparseToDense", ["i", "v", "like"], ["y"]))


@pytest.mark.parametrize(
    "op",
    [
        make_op("UnsortedSegmentSum", ["x", "i"], ["y"], num_segments=2),
        make_op("SparseToDense", ["i", "x", "two"], ["y"]),
        make_op("UnsortedSegmentSumGradient", ["two", "i"], ["y"]),
    ],
    ids=lambda op: op.type,
)
def test_index_out_of_range(op):
    workspace = Workspace()
    workspace.feed("x", np.zeros(2, np.float32))
    workspace.feed("two", np.zeros((2, 1), np.float32))
    workspace.feed("i", np.int32([0, 2]))
    with pytest.raises(OperatorError, match=r"indices must lie in \[0, 2\), got 2"):
        workspace.run_operator_once(op)


@pytest.mark.parametrize("op", [SparseToDense(), UnsortedSegmentSum(), UnsortedSegmentMean()], ids=lambda op: op.type)
def test_more_rows_than_memory_holds(op):
    far, row = np.int64([0, 2**62]), np.zeros((2, 3), np.float32)
    with pytest.raises(ShapeError, match=rf"{op.type}: Y cannot have the shape .*: no array can"):
        run_plain(op, [far, row] if op.type == "SparseToDense" else [row, far])


def test_gradient_of_sparse_to_dense_is_gather():
    ops, where = operator_gradient(make_op("SparseToDense", ["i", "v", "like"], ["y"]), {0: "dy"})
    assert [(op.type, list(op.input), list(op.output)) for op in ops] == [("Gather", ["dy", "i"], ["v_grad"])]
    assert where == {1: "v_grad"}
