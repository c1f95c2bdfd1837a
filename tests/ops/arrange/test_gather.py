"""Gather and BatchGather."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.arrange.gather import BatchGather, BatchGatherGradient, Gather
from netbuilder.ops.core.contexts import Sparse
from netbuilder.proto import OperatorError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, floats, i32, i64, refusal


def draw_indices(data, extent, outer=(), lowest=0):
    shape = outer + data.draw(st.sampled_from([(3,), (2, 2), (0,), ()]))
    dtype = data.draw(st.sampled_from([np.int32, np.int64]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    return rng.integers(lowest, extent, shape).astype(dtype)


def draw_matched(data, x, axis):
    """Indices along ``axis``, and whether each place of the outer axes has its own."""
    match_outer = axis > 0 and data.draw(st.booleans())
    return match_outer, draw_indices(data, x.shape[axis], x.shape[:axis] if match_outer else ())


def picked(x, indices, axis, match_outer=False):
    """One slice after the other."""
    axis %= x.ndim
    if match_outer:
        y = np.zeros(indices.shape + x.shape[axis + 1 :])
        for place in np.ndindex(indices.shape):
            y[place] = x[(*place[:axis], indices[place])]
        return y
    rows = [x[(slice(None),) * axis + (i,)] for i in indices.ravel()]
    rest = x.shape[:axis] + x.shape[axis + 1 :]
    stacked = np.stack(rows, axis=axis) if rows else np.zeros((*rest[:axis], 0, *rest[axis:]))
    return stacked.reshape(x.shape[:axis] + indices.shape + x.shape[axis + 1 :])


class TestGather(OperatorSuite):
    operator = Gather
    refusals = (
        refusal(Gather(axis=2), [f32(3, 2), i32(2)], r"axis must lie in \[-2, 2\)"),
        refusal(Gather(), [f32(3, 2), f32(2)], "indices must have elements of type int32 or int64, got float32"),
        refusal(Gather(), [f32(), i32(2)], "got a scalar"),
        refusal(Gather(match_outer=True), [f32(3, 2), i32(3)], "match_outer is for an axis after the first"),
        refusal(
            Gather(axis=1, match_outer=True),
            [f32(3, 2), i32(2, 2)],
            r"indices must have shape \(3, \*I\) = \(\*A, \*I\)",
        ),
    )

    def draw(self, data):
        x = data.draw(floats(4, 3, (1, 2)))
        axis = data.draw(st.sampled_from([0, 0, 1, 2, -1]))
        match_outer, indices = draw_matched(data, x, axis)
        op = Gather(axis=axis, dense_gradient=data.draw(st.booleans()), match_outer=match_outer)
        return op, [x, indices]

    def reference(self, op, x, indices):
        return [picked(x, indices, op.axis, op.match_outer)]


class TestBatchGather(OperatorSuite):
    operator = BatchGather
    refusals = (
        refusal(BatchGather(), [f32(3), i32(2)], r"X must have shape \(N, R, \*B\)"),
        refusal(BatchGather(), [f32(3, 2), f32(2)], "indices must have elements of type int32 or int64, got float32"),
    )

    def draw(self, data):
        x = data.draw(floats((1, 2), 3, (1, 2)))
        match_outer, indices = draw_matched(data, x, 1)
        return BatchGather(match_outer=match_outer), [x, indices]

    def reference(self, op, x, indices):
        return [picked(x, indices, 1, op.match_outer)]


class TestBatchGatherGradient(OperatorSuite):
    operator = BatchGatherGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(BatchGatherGradient(), [f32(2, 3), i64(4), f32(2, 3)], r"dY must have shape \(2, 4\)"),
        refusal(BatchGatherGradient(axis=2), [f32(2, 3), i64(4), f32(2, 4)], "axis must lie in"),
    )

    def draw(self, data):
        x = data.draw(floats(3, 3, 3))
        axis = data.draw(st.sampled_from([1, 0, 2, -1]))
        match_outer, indices = draw_matched(data, x, axis)
        dy = data.draw(floats(*picked(x, indices, axis, match_outer).shape))
        return BatchGatherGradient(axis=axis, match_outer=match_outer), [x, indices, dy]

    def reference(self, op, x, indices, dy):
        axis, dx = op.axis % 3, np.zeros(x.shape)
        if op.match_outer:
            for place in np.ndindex(indices.shape):
                dx[(*place[:axis], indices[place])] += dy[place]
            return [dx]
        flat = dy.reshape(*x.shape[:axis], -1, *x.shape[axis + 1 :])
        for k, i in enumerate(indices.ravel()):
            dx[(slice(None),) * axis + (i,)] += flat[(slice(None),) * axis + (k,)]
        return [dx]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_negative_rows_count_from_the_end(dtype):
    """As in Caffe2: along the first axis; other axes refuse them."""
    x, indices = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([-1, 0, -4, 3], dtype)
    workspace = Workspace()
    workspace.feed("x", x)
    workspace.feed("i", indices)
    workspace.run_operator_once(make_op("Gather", ["x", "i"], ["y"]))
    for y in (workspace.fetch("y"), run_plain(Gather(), [x, indices])[0]):
        assert np.array_equal(y, x[[3, 0, 0, 3]])
    with pytest.raises(OperatorError, match=r"Gather: indices must lie in \[0, 3\), got -4"):
        workspace.run_operator_once(make_op("Gather", ["x", "i"], ["y"], axis=1))
    workspace.feed("j", np.array([-1, 2], dtype))
    workspace.run_operator_once(make_op("Gather", ["x", "j"], ["y"], axis=1, wrap_indices=1))
    assert np.array_equal(workspace.fetch("y"), x[:, [2, 2]])
    with pytest.raises(OperatorError, match=r"Gather: indices must lie in \[0, 4\), got -4"):
        workspace.run_operator_once(make_op("Gather", ["x", "i"], ["y"], wrap_indices=0))


@pytest.mark.parametrize(("op_type", "low", "bad"), [("Gather", -4, -5), ("Gather", -4, 4), ("BatchGather", 0, -1)])
def test_index_out_of_range(op_type, low, bad):
    workspace = Workspace()
    workspace.feed("x", np.zeros((4, 4), np.float32))
    workspace.feed("i", np.int32([0, bad]))
    with pytest.raises(OperatorError, match=rf"{op_type}: indices must lie in \[{low}, 4\), got {bad}"):
        workspace.run_operator_once(make_op(op_type, ["x", "i"], ["y"]))


def test_gradient_of_rows_is_sparse():
    op = make_op("Gather", ["x", "i"], ["y"])
    assert operator_gradient(op, {0: "dy"}) == ([], {0: Sparse("i", "dy")})


def test_rows_of_any_type():
    (y,) = run_plain(Gather(), [np.array([b"a", b"b", b"c"], object), np.int64([2, 0])])
    assert y.tolist() == [b"c", b"a"]
    workspace = Workspace()
    workspace.feed("x", np.array([b"a", b"b", b"c"], object))
    workspace.feed("i", np.int32([1, 1]))
    workspace.run_operator_once(make_op("Gather", ["x", "i"], ["y"]))
    assert workspace.fetch("y").tolist() == [b"b", b"b"]


def test_nothing_from_an_empty_table():
    workspace = Workspace()
    workspace.feed("x", np.zeros((0, 3), np.float32))
    workspace.feed("i", np.zeros(0, np.int32))
    workspace.run_operator_once(make_op("Gather", ["x", "i"], ["y"]))
    assert workspace.fetch("y").shape == (0, 3)
