"""Reshape, ExpandDims, Squeeze, Transpose, Shape, Size."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import interpret, run_plain
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.arrange.shape import ExpandDims, Reshape, Shape, Size, Squeeze, Transpose
from netbuilder.proto import ArgumentError, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, floats, i64, refusal


class TestReshape(OperatorSuite):
    operator = Reshape
    refusals = (
        refusal(Reshape(), [f32(2)], "argument shape, or the shape as second input", ArgumentError),
        refusal(Reshape(shape=(4,)), [f32(2, 3)], "X has 6 elements", ShapeError),
        refusal(Reshape(shape=(-1, 4)), [f32(2, 3)], "are not divisible by 4", ShapeError),
        refusal(Reshape(shape=(-1, -1)), [f32(2, 3)], "at most one extent may be -1", ShapeError),
        refusal(Reshape(shape=(-2, 3)), [f32(2, 3)], "at most one extent may be -1", ShapeError),
        refusal(Reshape(shape=(6, 1, 0)), [f32(2, 3)], "0 is given for an axis that X does not have", ShapeError),
        refusal(Reshape(), [f32(2, 3), f32(1)], "shape must be int32 or int64", ShapeError),
        refusal(Reshape(), [f32(2, 3), i64(1)], "only when the net runs", ShapeError),
    )

    def draw(self, data):
        shape = data.draw(st.sampled_from([(-1,), (6, 2), (2, -1, 1), (0, 6), (0, -1), (0, 0, 2), (1, 12)]))
        inputs = [data.draw(floats(2, 3, 2))]
        if data.draw(st.booleans()):
            kind = data.draw(st.sampled_from([np.int32, np.int64]))
            return Reshape().with_arity(2, 2), [*inputs, np.array(shape, kind)]
        return Reshape(shape=shape).with_arity(1, 2), inputs

    def draw_gradient(self, data):
        op, inputs = self.draw(data)
        return op.with_arity(len(inputs), 2), inputs

    def reference(self, op, x, shape=None):
        asked = op.shape if shape is None else shape.astype(int).tolist()
        copied = [x.shape[i] if n == 0 else n for i, n in enumerate(asked)]
        return [x.reshape(copied), np.array(x.shape, np.int64 if shape is None else shape.dtype)]


def test_reshape_gradient_reads_the_old_shape():
    ops, where = operator_gradient(make_op("Reshape", ["x"], ["y", "old"], shape=[-1]), {0: "dy"})
    assert [(op.type, list(op.input), list(op.output), list(op.arg)) for op in ops] == [
        ("Reshape", ["dy", "old"], ["x_grad", "_x_grad_dims"], [])
    ]
    found = interpret(ops, {"dy": np.arange(6.0), "old": np.int64([2, 3])})
    assert found[where[0]].shape == (2, 3)


@pytest.mark.parametrize(
    ("before", "asked", "after"),
    [
        ((2, 0), (0, -1), (0, 0)),
        ((2, 0), (-1, 0), (0, 0)),
        ((2, 0), (3, 0), (3, 0)),
        ((0,), (0, -1), (0, 0)),
        ((0,), (2, -1), (2, 0)),
        ((2, 0), (2, 0, 0, 5), (2, 0, 0, 5)),
        ((0, 6), (0, 2, 3), (0, 2, 3)),
    ],
)
def test_reshape_of_nothing(before, asked, after):
    """As Caffe2 computes it; a gradient finds its way back by the old shape."""
    x = np.zeros(before, np.float32)
    y, old = run_plain(Reshape(shape=asked).with_arity(1, 2), [x])
    assert y.shape == after
    assert run_plain(Reshape().with_arity(2, 2), [y, old])[0].shape == before
    with pytest.raises(ShapeError, match="X has 0 elements"):
        run_plain(Reshape(shape=(2, 3)).with_arity(1, 2), [x])


class TestExpandDims(OperatorSuite):
    operator = ExpandDims
    refusals = (
        refusal(ExpandDims(dims=(3,)), [f32(2, 3)], "dims must be below 3", ShapeError),
        refusal(ExpandDims(dims=(-1,)), [f32(2)], "one or more non-negative axes", ArgumentError),
        refusal(ExpandDims(), [f32(2)], "one or more non-negative axes", ArgumentError),
    )

    def draw(self, data):
        dims = data.draw(st.sampled_from([(0,), (1,), (2,), (0, 2), (3, 1), (0, 1, 4), (0, 0), (2, 0, 2)]))
        return ExpandDims(dims=dims), [data.draw(floats(2, (0, 3)))]

    def reference(self, op, x):
        for axis in sorted(set(op.dims)):
            x = np.expand_dims(x, axis)
        return [x]


class TestSqueeze(OperatorSuite):
    operator = Squeeze
    refusals = (
        refusal(Squeeze(dims=(0,)), [f32(2, 1)], r"extent 1 of X \(2, 1\)", ShapeError),
        refusal(Squeeze(dims=(2,)), [f32(2, 1)], "must be axes of extent 1", ShapeError),
        refusal(Squeeze(dims=()), [f32(1)], "one or more non-negative axes", ArgumentError),
    )

    def draw(self, data):
        dims = data.draw(st.sampled_from([(0,), (2,), (0, 2), (2, 0), (0, 0)]))
        return Squeeze(dims=dims), [data.draw(floats(1, 3, 1, (1, 2)))]

    def reference(self, op, x):
        return [np.squeeze(x, tuple(set(op.dims)))]


class TestTranspose(OperatorSuite):
    operator = Transpose
    refusals = (
        refusal(Transpose(axes=(0, 0)), [f32(2, 3)], "must be a permutation of the 2 axes", ShapeError),
        refusal(Transpose(axes=(0, 1)), [f32(2, 3, 4)], "must be a permutation of the 3 axes", ShapeError),
    )

    def draw(self, data):
        axes = data.draw(st.sampled_from([(), (1, 0, 2), (2, 0, 1), (0, 1, 2), (1, 2, 0)]))
        return Transpose(axes=axes), [data.draw(floats((1, 3), (0, 3), (1, 3)))]

    def reference(self, op, x):
        return [np.einsum("abc->" + "".join("abc"[i] for i in (op.axes or (2, 1, 0))), x)]


def test_transpose_of_a_scalar():
    assert run_plain(Transpose(), [np.float32(3)])[0].shape == ()


class _Measure(OperatorSuite):
    no_gradient = "it has none"

    def draw(self, data):
        return self.operator(), [data.draw(floats(*data.draw(st.sampled_from([(), (3,), (2, 0, 4)]))))]


class TestShape(_Measure):
    operator = Shape
    refusals = (refusal(Shape(axes=(2,)), [f32(2, 3)], r"axes must lie in \[0, 2\)", ShapeError),)

    def draw(self, data):
        op, inputs = super().draw(data)
        return Shape(axes=data.draw(st.sampled_from([(), (0,), (0, 0)])) if inputs[0].ndim else ()), inputs

    def reference(self, op, x):
        return [np.array([x.shape[i] for i in op.axes or range(x.ndim)], int)]


class TestSize(_Measure):
    operator = Size
    refuses_nothing = "every tensor has a size"

    def reference(self, op, x):
        return [np.array(len(x.ravel()))]


def test_strings_take_other_shapes_too():
    workspace = Workspace()
    workspace.feed("x", np.array([[b"a", b"b"]], object))
    workspace.run_operator_once(make_op("Reshape", ["x"], ["y", "old"], shape=[2]))
    workspace.run_operator_once(make_op("ExpandDims", ["y"], ["z"], dims=[1]))
    workspace.run_operator_once(make_op("Size", ["x"], ["n"]))
    assert workspace.fetch("z").tolist() == [[b"a"], [b"b"]]
    assert workspace.fetch("n") == 2


def test_new_shape_for_a_new_batch():
    """A plan is compiled for the shapes of the inputs; -1 follows the batch."""
    workspace = Workspace()
    for batch in (2, 3):
        workspace.feed("x", np.zeros((batch, 4), np.float32))
        workspace.run_operator_once(make_op("Reshape", ["x"], ["y", "old"], shape=[-1, 2]))
        assert workspace.fetch("y").shape == (2 * batch, 2)
        assert workspace.fetch("old").tolist() == [batch, 4]
