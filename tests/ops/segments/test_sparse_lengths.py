"""SparseLengthsSum, SparseLengthsMean, SparseLengthsWeightedSum, SparseLengthsPositionalWeightedSum."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.core.contexts import Sparse
from netbuilder.ops.segments.sparse_lengths import (
    SparseLengthsIndicesInGradientMeanGradient,
    SparseLengthsIndicesInGradientSumGradient,
    SparseLengthsIndicesInGradientWeightedSumGradient,
    SparseLengthsIndicesInGradientWeightedSumWithMainInputGradient,
    SparseLengthsMax,
    SparseLengthsMean,
    SparseLengthsPositionalWeightedSum,
    SparseLengthsSum,
    SparseLengthsWeightedSum,
)
from netbuilder.proto import OperatorError, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, floats, i32, i64, refusal

ROWS = 5


def draw_parts(data):
    """Table, weights, indices, lengths, dY."""
    lengths = np.array(data.draw(st.lists(st.integers(0, 4), max_size=4)), np.int32)
    row = data.draw(st.sampled_from([(), (3,), (2, 2)]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    indices = rng.integers(0, ROWS, lengths.sum()).astype(data.draw(st.sampled_from([np.int32, np.int64])))
    x, dy = data.draw(floats(ROWS, *row)), data.draw(floats(len(lengths), *row))
    return x, data.draw(floats(len(indices))), indices, lengths, dy


def summed(x, weights, indices, lengths, *, mean=False):
    y, at = np.zeros((len(lengths), *x.shape[1:])), 0
    for s, n in enumerate(lengths.tolist()):
        for k in range(at, at + n):
            y[s] += weights[k] * x[indices[k]] / (n if mean else 1)
        at += n
    return [y]


class TestSparseLengthsSum(OperatorSuite):
    operator = SparseLengthsSum
    mean = False
    refusals = (
        refusal(SparseLengthsSum(), [f32(), i32(3), i32(2)], r"X must have shape \(R, \*S\)"),
        refusal(
            SparseLengthsSum(),
            [f32(4, 2), f32(3), i32(2)],
            "indices must have elements of type int32 or int64, got float32",
        ),
        refusal(
            SparseLengthsSum(),
            [f32(4, 2), i64(3), f32(2)],
            "lengths must have elements of type int32 or int64, got float32",
        ),
        refusal(SparseLengthsSum(), [i32(4, 2), i64(3), i32(2)], "the inputs must have one floating type, got X int32"),
    )

    def draw(self, data):
        x, _, indices, lengths, _ = draw_parts(data)
        return self.operator(), [x, indices, lengths]

    def reference(self, op, x, indices, lengths):
        return summed(x, np.ones(len(indices)), indices, lengths, mean=self.mean)


class TestSparseLengthsMean(TestSparseLengthsSum):
    operator = SparseLengthsMean
    mean = True
    refusals = (refusal(SparseLengthsMean(), [f32(), i32(3), i32(2)], r"X must have shape \(R, \*S\)"),)


class TestSparseLengthsMax(TestSparseLengthsSum):
    operator = SparseLengthsMax
    no_gradient = "as in Caffe2; Gather and LengthsMax have one"
    refusals = (refusal(SparseLengthsMax(), [f32(), i32(3), i32(2)], r"X must have shape \(R, \*S\)"),)

    def reference(self, op, x, indices, lengths):
        segments = np.split(indices, np.cumsum(lengths)[:-1]) if len(lengths) else []
        rows = [x[s].max(axis=0) if len(s) else np.zeros(x.shape[1:]) for s in segments]
        return [np.array(rows).reshape(len(lengths), *x.shape[1:])]


class TestSparseLengthsWeightedSum(OperatorSuite):
    operator = SparseLengthsWeightedSum
    wrt = (0, 1)
    refusals = (
        refusal(
            SparseLengthsWeightedSum(),
            [f32(4, 2), f32(2), i32(3), i32(2)],
            r"indices must have the shape of weights, \(2,\)",
        ),
    )

    def draw(self, data):
        x, weights, indices, lengths, _ = draw_parts(data)
        return SparseLengthsWeightedSum(grad_on_weights=True), [x, weights, indices, lengths]

    def reference(self, op, x, weights, indices, lengths):
        return summed(x, weights, indices, lengths)


class TestSparseLengthsPositionalWeightedSum(OperatorSuite):
    operator = SparseLengthsPositionalWeightedSum
    no_gradient = "it has none"
    refusals = (
        refusal(
            SparseLengthsPositionalWeightedSum(),
            [f32(4, 2), f32(3, 1), i32(3), i32(2)],
            r"weights must have shape \(P,\)",
        ),
        refusal(
            SparseLengthsPositionalWeightedSum(),
            [f32(4, 2), i32(3), i32(3), i32(2)],
            "the inputs must have one floating type, got X float32, weights int32",
        ),
    )

    def draw(self, data):
        """As many weights as the longest segment has indices, or more."""
        x, _, indices, lengths, _ = draw_parts(data)
        count = int(lengths.max(initial=0)) + data.draw(st.integers(0, 3))
        return self.operator(), [x, data.draw(floats(count)), indices, lengths]

    def reference(self, op, x, weights, indices, lengths):
        places = [k for n in lengths.tolist() for k in range(n)]
        return summed(x, weights[places], indices, lengths)


class _Values(OperatorSuite):
    no_gradient = "a gradient operator"


def spread(dy, weights, lengths, *, mean=False):
    rows = [dy[s] / (n if mean else 1) for s, n in enumerate(lengths.tolist()) for _ in range(n)]
    return np.array([w * row for w, row in zip(weights, rows)]).reshape(len(rows), *dy.shape[1:])


class TestSparseLengthsIndicesInGradientSumGradient(_Values):
    operator = SparseLengthsIndicesInGradientSumGradient
    mean = False
    refusals = (
        refusal(
            SparseLengthsIndicesInGradientSumGradient(),
            [f32(3, 2), i32(2), i32(4)],
            r"lengths must have shape \(3,\) = \(M,\)",
        ),
    )

    def draw(self, data):
        _, _, indices, lengths, dy = draw_parts(data)
        return self.operator(), [dy, lengths, indices]

    def reference(self, op, dy, lengths, indices):
        return [spread(dy, np.ones(len(indices)), lengths, mean=self.mean)]


class TestSparseLengthsIndicesInGradientMeanGradient(TestSparseLengthsIndicesInGradientSumGradient):
    operator = SparseLengthsIndicesInGradientMeanGradient
    mean = True
    refusals = (
        refusal(
            SparseLengthsIndicesInGradientMeanGradient(),
            [f32(3, 2), i32(2), f32(4)],
            r"lengths must have shape \(3,\) = \(M,\)",
        ),
    )


class TestSparseLengthsIndicesInGradientWeightedSumGradient(_Values):
    operator = SparseLengthsIndicesInGradientWeightedSumGradient
    refusals = (
        refusal(
            SparseLengthsIndicesInGradientWeightedSumGradient(),
            [f32(3), f32(2, 2), i32(2), i32(4)],
            r"indices must have the shape of weights, \(3,\)",
        ),
    )

    def draw(self, data):
        _, weights, indices, lengths, dy = draw_parts(data)
        return self.operator(), [weights, dy, lengths, indices]

    def reference(self, op, weights, dy, lengths, indices):
        return [spread(dy, weights, lengths)]


class TestSparseLengthsIndicesInGradientWeightedSumWithMainInputGradient(_Values):
    operator = SparseLengthsIndicesInGradientWeightedSumWithMainInputGradient
    refusals = (
        refusal(
            SparseLengthsIndicesInGradientWeightedSumWithMainInputGradient(),
            [f32(4), f32(2, 2), i32(2), f32(5, 3), i32(4)],
            r"X must have shape \(R, 2\) = \(R, \*S\)",
        ),
    )

    def draw(self, data):
        x, weights, indices, lengths, dy = draw_parts(data)
        return self.operator(), [weights, dy, lengths, x, indices]

    def reference(self, op, weights, dy, lengths, x, indices):
        plain = spread(dy, np.ones(len(indices)), lengths)
        d_weights = np.array([(x[i] * row).sum() for i, row in zip(indices, plain)])
        return [spread(dy, weights, lengths), d_weights]


@pytest.mark.parametrize("bad", [-1, 4])
def test_index_out_of_range(bad):
    workspace = Workspace()
    workspace.feed("x", np.zeros((4, 2), np.float32))
    workspace.feed("i", np.int64([0, bad]))
    workspace.feed("n", np.int32([2]))
    with pytest.raises(OperatorError, match=rf"SparseLengthsSum: indices must lie in \[0, 4\), got {bad}"):
        workspace.run_operator_once(make_op("SparseLengthsSum", ["x", "i", "n"], ["y"]))


def test_lengths_that_do_not_fit():
    with pytest.raises(ShapeError, match="must be the number of rows, 2, got 3"):
        run_plain(SparseLengthsMean(), [np.zeros((4, 2), np.float32), np.int64([0, 1]), np.int32([1, 2])])


def test_too_few_positional_weights():
    x = np.zeros((2, 2), np.float32)
    with pytest.raises(ShapeError, match="an element for each index of the longest segment, 3; got 2"):
        run_plain(SparseLengthsPositionalWeightedSum(), [x, x[0], np.int64([0, 1, 0]), np.int32([3])])


def test_the_gradient_of_the_table_is_sparse():
    made, where = operator_gradient(make_op("SparseLengthsSum", ["x", "i", "n"], ["y"]), {0: "dy"})
    assert [list(op.output) for op in made] == [["x_grad_values"]]
    assert where == {0: Sparse("i", "x_grad_values")}


def test_many_segments_in_a_plan():
    """Enough rows for several pieces of memory."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((500, 64)).astype(np.float32)
    lengths = rng.integers(0, 20, 1500).astype(np.int32)
    lengths[7] = 9000
    indices = rng.integers(0, 500, lengths.sum())
    workspace = Workspace()
    for name, value in (("x", x), ("i", indices), ("n", lengths)):
        workspace.feed(name, value)
    workspace.run_operator_once(make_op("SparseLengthsSum", ["x", "i", "n"], ["y"]))
    ends = np.cumsum(lengths)
    want = [x[indices[b - n : b]].astype(np.float64).sum(axis=0) for b, n in zip(ends, lengths)]
    np.testing.assert_allclose(workspace.fetch("y"), want, 1e-4, 1e-3)


@pytest.mark.parametrize(
    ("op_type", "weights", "expected"),
    [
        ("SparseLengthsSum", [], [[2, 4], [4, 5]]),
        ("SparseLengthsMean", [], [[1, 2], [4, 5]]),
        ("SparseLengthsWeightedSum", [1, 2, 3], [[4, 7], [12, 15]]),
        ("SparseLengthsPositionalWeightedSum", [1, 2, 3, 4], [[4, 7], [4, 5]]),
    ],
)
def test_tables_of_float16_are_added_up_in_float32(op_type, weights, expected):
    """Caffe2's numbers and types; weights are float32 then."""
    workspace = Workspace()
    workspace.feed("x", np.arange(8).reshape(4, 2).astype(np.float16))
    workspace.feed("w", np.float32(weights))
    workspace.feed("half", np.float16(weights))
    workspace.feed("i", np.int64([0, 1, 2]))
    workspace.feed("n", np.int32([2, 1]))
    names = ["x", *(["w"] if weights else []), "i", "n"]
    workspace.run_operator_once(make_op(op_type, names, ["y"]))
    y = workspace.fetch("y")
    assert y.dtype == np.float32 and y.tolist() == expected
    if weights:
        with pytest.raises(ShapeError, match="weights must have type float32, got"):
            workspace.run_operator_once(make_op(op_type, ["x", "half", "i", "n"], ["y"]))
