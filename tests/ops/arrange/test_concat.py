"""Concat, Split and their old names."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import interpret, run_plain
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.arrange.concat import Concat, DepthConcat, DepthSplit, Split
from netbuilder.proto import ArgumentError, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, floats, i32, refusal


def draw_axis(data, ndim):
    """Return arguments that name an axis, and the axis."""
    named = {"axis": data.draw(st.integers(-ndim, ndim - 1))}
    default = {"order": data.draw(st.sampled_from(["NCHW", "NHWC"]))}
    if ndim > 1 and data.draw(st.booleans()):
        return default, 1 if default["order"] == "NCHW" else min(3, ndim - 1)
    return named, named["axis"] % ndim


class TestConcat(OperatorSuite):
    operator = Concat
    wrt = (0, 1, 2)
    refusals = (
        refusal(Concat(axis=2), [f32(2, 3), f32(2, 3)], r"axis must lie in \[-2, 2\)"),
        refusal(Concat(axis=0), [f32(2, 3), f32(2, 4)], "does not fit input 0 of shape"),
        refusal(Concat(axis=1), [f32(2, 3), f32(2, 3, 1)], "does not fit input 0 of shape"),
        refusal(Concat(axis=0, add_axis=True), [f32(2, 3), f32(2, 4)], "does not fit input 0 of shape"),
        refusal(Concat(), [f32(2, 3), i32(2, 3)], "input 1 is of type int32, input 0 of float32"),
        refusal(Concat(order="HW"), [f32(2, 3)], "NCHW or NHWC", ArgumentError),
    )

    def draw(self, data):
        shape = [data.draw(st.integers(1, 3)) for _ in range(data.draw(st.integers(1, 4)))]
        if data.draw(st.booleans()):
            args = {"axis": data.draw(st.integers(-len(shape) - 1, len(shape)))}
            xs = [data.draw(floats(*shape)) for _ in range(data.draw(st.integers(1, 3)))]
            return self.operator(add_axis=True, **args).with_arity(len(xs), 2), xs
        args, axis = draw_axis(data, len(shape))
        xs = []
        for _ in range(data.draw(st.integers(1, 3))):
            shape[axis] = data.draw(st.integers(1, 3))
            xs.append(data.draw(floats(*shape)))
        return self.operator(**args).with_arity(len(xs), 2), xs

    def reference(self, op, *xs):
        if op.add_axis:
            xs = [x[(slice(None),) * (self.axis_of(op, x.ndim + 1)) + (None,)] for x in xs]
        axis = self.axis_of(op, xs[0].ndim)
        shape = list(xs[0].shape)
        shape[axis] = sum(x.shape[axis] for x in xs)
        y, start = np.zeros(shape), 0
        for x in xs:
            y[(slice(None),) * axis + (slice(start, start + x.shape[axis]),)] = x
            start += x.shape[axis]
        return [y, np.int32([x.shape[axis] for x in xs])]

    @staticmethod
    def axis_of(op, ndim):
        if op.axis is None:
            return 1 if op.order == "NCHW" else min(3, ndim - 1)
        return op.axis % ndim


class TestDepthConcat(TestConcat):
    operator = DepthConcat
    refusals = (refusal(DepthConcat(), [f32(2, 3, 4), f32(2, 3, 5)], "does not fit input 0 of shape"),)


class TestSplit(OperatorSuite):
    operator = Split
    d_outputs = (0, 1)
    refusals = (
        refusal(Split(axis=2), [f32(2, 4)], r"axis must lie in \[-2, 2\)"),
        refusal(Split(axis=1), [f32(2, 5)], "cannot be split into 2 equal parts", n_out=2),
        refusal(Split(axis=1, split=(1, 2, 1)), [f32(2, 4)], "must have one number per output, 2", n_out=2),
        refusal(Split(axis=1, split=(1, 2)), [f32(2, 4)], "must add up to axis 1", n_out=2),
        refusal(Split(axis=1, split=(5, -1)), [f32(2, 4)], "must add up to axis 1", n_out=2),
        refusal(Split(axis=1, add_axis=True), [f32(2, 4)], "every part has extent 1", n_out=2),
        refusal(Split(order="HW"), [f32(2, 4)], "NCHW or NHWC", ArgumentError, n_out=2),
    )

    def draw(self, data):
        op, inputs = self.draw_gradient(data)
        if data.draw(st.booleans()):
            op = self.operator(axis=op.axis, order=op.order, add_axis=True)
            x = inputs[0]
            axis = TestConcat.axis_of(op, x.ndim)
            return op.with_arity(1, x.shape[axis]), [x]
        return op, inputs

    def draw_gradient(self, data):
        shape = [data.draw(st.integers(1, 3)) for _ in range(data.draw(st.integers(1, 4)))]
        args, axis = draw_axis(data, len(shape))
        split = [data.draw(st.integers(1, 3)) for _ in range(data.draw(st.integers(2, 3)))]
        how = data.draw(st.sampled_from(["equal", "argument", "input"]))
        split = split[:1] * len(split) if how == "equal" else split
        shape[axis] = sum(split)
        x = data.draw(floats(*shape))
        if how == "argument":
            args["split"] = tuple(split)
        inputs = [x, np.int32(split)] if how == "input" else [x]
        return self.operator(**args).with_arity(len(inputs), len(split)), inputs

    def reference(self, op, x, split=None):
        axis = TestConcat.axis_of(op, x.ndim)
        extents = split if split is not None else op.split or [x.shape[axis] // op.n_out] * op.n_out
        ends = np.cumsum(extents)
        parts = [np.take(x, np.arange(end - n, end), axis) for n, end in zip(extents, ends)]
        return [part.squeeze(axis) if op.adds_axis else part for part in parts]


class TestDepthSplit(TestSplit):
    operator = DepthSplit
    refusals = (refusal(DepthSplit(), [f32(2, 5, 1, 1)], "cannot be split into 2 equal parts", n_out=2),)


def test_parts_that_nothing_reads_have_no_gradient():
    """Caffe2 joins the gradients that there are, which does not fit X."""
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    op = make_op("Split", ["x"], ["a", "b", "c"], axis=1, split=[1, 2, 2])
    made, where = operator_gradient(op, {1: "b_grad"})
    blobs = interpret([op], {"x": x})
    dx = interpret(made, {**blobs, "b_grad": np.ones((2, 2), np.float32)})[where[0]]
    np.testing.assert_array_equal(dx, [[0, 1, 1, 0, 0]] * 2)


def test_extents_that_do_not_fit_are_refused_when_they_are_known():
    x, split = np.zeros((2, 5), np.float32), np.int32([2, 2])
    with pytest.raises(ShapeError, match=r"split \(2, 2\) must add up to axis 1"):
        run_plain(Split(axis=1).with_arity(2, 2), [x, split])
    workspace = Workspace()
    workspace.feed("x", x)
    workspace.feed("split", split)
    with pytest.raises(ShapeError, match=r"Split: split \(2, 2\) must add up to axis 1"):
        workspace.run_operator_once(make_op("Split", ["x", "split"], ["a", "b"], axis=1))


def test_any_type_is_joined_and_cut():
    words = np.array([b"a", b"bc", b""], object)
    assert run_plain(Concat(axis=0).with_arity(2, 2), [words, words[:1]])[0].tolist() == [b"a", b"bc", b"", b"a"]
    parts = run_plain(Split(axis=0, split=(1, 2)).with_arity(1, 2), [np.array([True, False, True])])
    assert [part.tolist() for part in parts] == [[True], [False, True]]


@pytest.mark.parametrize("order, axis", [("NCHW", 1), ("NHWC", 3)])
def test_the_axis_of_an_order_is_caffe2s(order, axis):
    x = np.zeros((2, 3, 4, 5, 6), np.float32)
    joined, _ = run_plain(Concat(order=order, add_axis=True).with_arity(2, 2), [x, x])
    assert joined.shape == tuple(n * 2 if i == axis else n for i, n in enumerate(x.shape))


def test_int32_and_int64_give_int64():
    for engines in ((), None):
        workspace = Workspace(engines=engines)
        workspace.feed("a", np.int32([1, -2]))
        workspace.feed("b", np.int64([2**40]))
        workspace.run_operator_once(make_op("Concat", ["a", "b"], ["y", "info"], axis=0))
        assert workspace.fetch("y").dtype == np.int64
        assert workspace.fetch("y").tolist() == [1, -2, 2**40]
