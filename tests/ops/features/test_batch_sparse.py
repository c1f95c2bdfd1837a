"""BatchSparseToDense, BatchDenseToSparse, IsMemberOf, FindDuplicateElements."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.features.batch_sparse import (
    BatchDenseToSparse,
    BatchSparseToDense,
    FindDuplicateElements,
    IsMemberOf,
)
from netbuilder.proto import ArgumentError, ShapeError
from suite import OperatorSuite, f32, floats, i32, i64, refusal

WIDTH = 4


def draw_places(data):
    """Lengths of rows, and columns that differ within each row."""
    lengths = np.array(data.draw(st.lists(st.integers(0, 3), max_size=3)), np.int32)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    columns = [rng.permutation(WIDTH)[:n] for n in lengths]
    kind = data.draw(st.sampled_from([np.int32, np.int64]))
    return lengths, np.concatenate([np.zeros(0, int), *columns]).astype(kind)


class TestBatchSparseToDense(OperatorSuite):
    operator = BatchSparseToDense
    wrt = (2,)
    refusals = (
        refusal(
            BatchSparseToDense(), [i32(1), i64(2), f32(2), f32()], r"the fourth input must be a matrix, got shape \(\)"
        ),
        refusal(BatchSparseToDense(), [i32(2), i64(3), f32(3)], "dense_last_dim must be positive", ArgumentError),
        refusal(BatchSparseToDense(dense_last_dim=4), [i32(2), i64(3), f32(2)], r"the shape of indices, \(3,\)"),
        refusal(BatchSparseToDense(), [i32(2), i64(3), f32(3), f32(3, 4)], "a row for each of the 2 lengths"),
    )

    def draw(self, data):
        lengths, columns = draw_places(data)
        given = [lengths, columns, data.draw(floats(len(columns)))]
        if data.draw(st.booleans()):
            return BatchSparseToDense().with_arity(4, 1), [*given, np.zeros((len(lengths), WIDTH), np.float32)]
        return BatchSparseToDense(dense_last_dim=WIDTH, default_value=0.5).with_arity(3, 1), given

    def reference(self, op, lengths, columns, values, like=None):
        y = np.full((len(lengths), WIDTH), op.default_value)
        y[np.repeat(np.arange(len(lengths)), lengths), columns] = values
        return [y]


class TestBatchDenseToSparse(OperatorSuite):
    operator = BatchDenseToSparse
    wrt = (2,)
    refusals = (refusal(BatchDenseToSparse(), [i32(2), i64(3), f32(3, 4)], r"X must have shape \(2, D\) = \(N, D\)"),)

    def draw(self, data):
        lengths, columns = draw_places(data)
        return BatchDenseToSparse(), [lengths, columns, data.draw(floats(len(lengths), WIDTH))]

    def reference(self, op, lengths, columns, x):
        return [x[np.repeat(np.arange(len(lengths)), lengths), columns]]


class TestIsMemberOf(OperatorSuite):
    operator = IsMemberOf
    no_gradient = "none passes"
    refusals = (
        refusal(IsMemberOf(), [i32(3)], "value must be given", ArgumentError),
        refusal(
            IsMemberOf(value=[1]), [f32(3)], "X must have elements of type int8, int16, int32, int64, bool or string"
        ),
        refusal(IsMemberOf(value=[1], dtype="int64"), [i32(3)], "the type of the argument dtype, int64, got int32"),
    )

    def draw(self, data):
        kind = data.draw(st.sampled_from([np.int32, np.int64]))
        x = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 4, (2, 3)).astype(kind)
        return IsMemberOf(value=data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=3))), [x]

    def reference(self, op, x):
        return [np.array([[value in op.value for value in row] for row in x.tolist()])]


class TestFindDuplicateElements(OperatorSuite):
    operator = FindDuplicateElements
    no_gradient = "it has none"
    refuses_nothing = "shapes are seen when it runs; see test_a_matrix"

    def draw(self, data):
        return FindDuplicateElements(), [np.array(data.draw(st.lists(st.integers(0, 3), max_size=6)), np.int32)]

    def reference(self, op, x):
        return [np.array([i for i, value in enumerate(x) if value in x[:i]], int)]


def test_a_matrix():
    with pytest.raises(ShapeError, match="X must be a vector"):
        run_plain(FindDuplicateElements(), [np.zeros((2, 2))])


def test_strings():
    x = np.array([b"a", b"b", b"a"], object)
    assert run_plain(IsMemberOf(value=[b"a"]), [x])[0].tolist() == [True, False, True]
    assert run_plain(FindDuplicateElements(), [x])[0].tolist() == [2]


def test_a_column_that_is_not_there():
    with pytest.raises(IndexError, match=r"indices must lie in \[0, 2\), got 2"):
        run_plain(BatchDenseToSparse(), [np.int32([1]), np.int64([2]), np.zeros((1, 2), np.float32)])


def test_values_beyond_the_type_are_no_members():
    with pytest.raises(ShapeError, match="IsMemberOf: value .* must fit into the type of X, int32"):
        run_plain(IsMemberOf(value=[2**32 + 1]), [np.int32([1, 2])])
