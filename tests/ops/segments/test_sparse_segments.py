"""SparseSortedSegmentSum, SparseUnsortedSegmentSum, their means, and weighted sums by segment numbers."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.core.contexts import Sparse
from netbuilder.ops.segments.sparse_segments import (
    SortedSegmentWeightedSum,
    SortedSegmentWeightedSumGradient,
    SparseSortedSegmentMean,
    SparseSortedSegmentSum,
    SparseSortedSegmentWeightedSum,
    SparseUnsortedSegmentMean,
    SparseUnsortedSegmentSum,
    SparseUnsortedSegmentWeightedSum,
    UnsortedSegmentWeightedSum,
    UnsortedSegmentWeightedSumGradient,
)
from netbuilder.proto import ArgumentError, ShapeError
from netbuilder.proto.arguments import make_op
from suite import OperatorSuite, f32, floats, i32, refusal

TABLE = 4


class _Picked(OperatorSuite):
    refuses_nothing = "shapes are seen when it runs; see test_what_does_not_fit"

    def draw(self, data):
        op = self.operator()
        counts = np.array(data.draw(st.lists(st.integers(1, 3), max_size=3)), int)
        segments = np.repeat(np.arange(len(counts)), counts).astype(data.draw(st.sampled_from([np.int32, np.int64])))
        rng = np.random.default_rng(data.draw(st.integers(0, 99)))
        if hasattr(op, "num_segments"):
            segments = rng.permutation(segments)
            op = self.operator(num_segments=data.draw(st.sampled_from([-1, 5])))
        names = self.operator.inputs
        row = data.draw(st.sampled_from([(), (2,)]))
        given = {"segments": segments, "weights": data.draw(floats(len(segments)))}
        given["indices"] = rng.integers(0, TABLE, len(segments))
        given["X"] = data.draw(floats(TABLE if "indices" in names else len(segments), *row))
        return op, [given[name] for name in names]

    def reference(self, op, *given):
        named = dict(zip(self.operator.inputs, given))
        x, segments = named["X"], named["segments"]
        rows = x[named["indices"]] if "indices" in named else x
        if "weights" in named:
            rows = rows * named["weights"].reshape(-1, *[1] * (x.ndim - 1))
        count = getattr(op, "num_segments", -1)
        count = count if count > 0 else int(segments.max(initial=-1)) + 1
        y = np.zeros((count, *x.shape[1:]))
        for s in set(segments.tolist()):
            part = rows[segments == s]
            y[s] = part.mean(axis=0) if op.mean else part.sum(axis=0)
        return [y]


class TestSparseSortedSegmentSum(_Picked):
    operator = SparseSortedSegmentSum


class TestSparseSortedSegmentMean(_Picked):
    operator = SparseSortedSegmentMean


class TestSparseUnsortedSegmentSum(_Picked):
    operator = SparseUnsortedSegmentSum


class TestSparseUnsortedSegmentMean(_Picked):
    operator = SparseUnsortedSegmentMean


class _Weighted(_Picked):
    refuses_nothing = ""

    @property
    def refusals(self):
        given = [f32(4, 2), f32(3), i32(3), i32(3)][: len(self.operator.inputs)]
        return (refusal(self.operator(grad_on_weights=True), given, "use an operator on lengths", ArgumentError),)


class TestSparseSortedSegmentWeightedSum(_Weighted):
    operator = SparseSortedSegmentWeightedSum


class TestSparseUnsortedSegmentWeightedSum(_Weighted):
    operator = SparseUnsortedSegmentWeightedSum


class TestSortedSegmentWeightedSum(_Weighted):
    operator = SortedSegmentWeightedSum


class TestUnsortedSegmentWeightedSum(_Weighted):
    operator = UnsortedSegmentWeightedSum


class TestSortedSegmentWeightedSumGradient(OperatorSuite):
    operator = SortedSegmentWeightedSumGradient
    no_gradient = "a gradient operator"

    @property
    def refusals(self):
        return (
            refusal(self.operator(), [f32(3), f32(2, 2), i32(4)], "segments must have the shape of weights"),
            refusal(self.operator(), [f32(3), f32(), i32(3)], r"dY must have shape \(M, \*S\)"),
        )

    def draw(self, data):
        segments = np.array(data.draw(st.lists(st.integers(0, 2), max_size=4)), np.int32)
        return self.operator(), [data.draw(floats(len(segments))), data.draw(floats(3, 2)), segments]

    def reference(self, op, weights, dy, segments):
        return [dy[segments] * weights[:, None]]


class TestUnsortedSegmentWeightedSumGradient(TestSortedSegmentWeightedSumGradient):
    operator = UnsortedSegmentWeightedSumGradient


def test_the_gradient_of_the_table_is_sparse():
    made, where = operator_gradient(make_op("SparseUnsortedSegmentWeightedSum", ["x", "w", "i", "s"], ["y"]), {0: "dy"})
    assert [(op.type, list(op.input), list(op.output)) for op in made] == [
        ("UnsortedSegmentWeightedSumGradient", ["w", "dy", "s"], ["x_grad_values"])
    ]
    assert where == {0: Sparse("i", "x_grad_values")}


X = np.zeros((3, 2), np.float32)


@pytest.mark.parametrize(
    ("op", "inputs", "error", "message"),
    [
        (SparseSortedSegmentSum(), [X, np.int64([0, 3]), np.int32([0, 0])], IndexError, r"in \[0, 3\), got 3"),
        (SparseSortedSegmentSum(), [X, np.int64([0, 1]), np.int32([0])], ShapeError, "each of the 2 indices, got 1"),
        (SparseSortedSegmentSum(), [X, np.int64([0, 1]), np.int32([0, 2])], ShapeError, "rise by steps of 1"),
        (SparseUnsortedSegmentSum(), [X, np.float32([0]), np.int32([0])], ShapeError, "indices must be a vector"),
        (SortedSegmentWeightedSum(), [X, X[:, 0], np.int32([0])], ShapeError, "each of the 3 rows of X, got 1"),
        (UnsortedSegmentWeightedSum(num_segments=1), [X, X[:, 0], np.int32([0, 1, 0])], IndexError, "got 1"),
        (
            UnsortedSegmentWeightedSum(),
            [X, X[:, 0], np.int64([0, 2**62, 0])],
            ShapeError,
            "rows of segments cannot have",
        ),
    ],
)
def test_what_does_not_fit(op, inputs, error, message):
    with pytest.raises(error, match=message):
        run_plain(op, inputs)
