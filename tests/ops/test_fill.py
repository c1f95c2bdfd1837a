"""Fills: constants and random numbers."""

import math

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import DEVICES, interpret, run_plain
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.fill import (
    ConstantFill,
    DiagonalFill,
    GaussianFill,
    MSRAFill,
    UniformFill,
    UniformIntFill,
    XavierFill,
)
from netbuilder.ops.operator import TensorSpec, decode, encode
from netbuilder.proto import ArgumentError, ShapeError, TensorProto
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, i64, refusal


def draw_shape(data, shape, **fields):
    """Return the arguments and inputs that ask for ``shape`` in one of the ways there are."""
    how = data.draw(st.sampled_from(["shape", "like", "extra", "input_as_shape"]))
    if how == "shape":
        return {"shape": shape, **fields}, []
    if how == "like":
        return fields, [np.zeros(shape, np.float32)]
    if how == "extra":
        return {"extra_shape": shape[1:], **fields}, [np.zeros(shape[:1], np.int32)]
    return {"input_as_shape": True, "extra_shape": shape[2:], **fields}, [np.array(shape[:2], np.int64)]


def shared_refusals(cls, **fields):
    return (
        refusal(cls(shape=(2, 2), **fields), [f32(2, 2)], "argument shape or an input, not both", ArgumentError),
        refusal(cls(extra_shape=(2, 2), **fields), [], "need an input", ArgumentError),
        refusal(cls(shape=(2, -1), **fields), [], "must not be negative", ArgumentError),
        refusal(cls(input_as_shape=True, **fields), [i64(2)], "only when the net runs"),
    )


class _Fill(OperatorSuite):
    no_gradient = "no gradient passes"


class TestConstantFill(_Fill):
    operator = ConstantFill
    refusals = (
        *shared_refusals(ConstantFill),
        refusal(ConstantFill(value=3.5, dtype=TensorProto.INT32), [], "cannot be held", ArgumentError),
        refusal(ConstantFill(value=300, dtype="uint8"), [], "cannot be held", ArgumentError),
        refusal(ConstantFill(value=b"a"), [], "give dtype", ArgumentError),
        refusal(ConstantFill(dtype=99), [], "number or name of an element type", ArgumentError),
    )

    def draw(self, data):
        args, inputs = draw_shape(data, data.draw(st.sampled_from([(2, 3), (3, 2, 1), (0, 2)])))
        value, dtype = data.draw(st.sampled_from([(1.5, None), (7, None), (3, "int32"), (1, "BOOL"), (2, 13)]))
        return ConstantFill(value=value, dtype=dtype, **args), inputs

    def reference(self, op, like=None):
        shape = op.shape
        if like is not None:
            shape = (tuple(like.astype(int)) if op.input_as_shape else like.shape) + op.extra_shape
        return [np.zeros(shape) + op.value]


class TestDiagonalFill(_Fill):
    operator = DiagonalFill
    refusals = (
        *shared_refusals(DiagonalFill),
        refusal(DiagonalFill(shape=(3,)), [], "two axes or more", ShapeError),
        refusal(DiagonalFill(shape=(2, 3, 3)), [], "equally long", ShapeError),
    )

    def draw(self, data):
        args, inputs = draw_shape(data, data.draw(st.sampled_from([(2, 3), (4, 2), (2, 2, 2), (1, 1), (0, 2)])))
        return DiagonalFill(value=2.5, **args), inputs

    def reference(self, op, like=None):
        shape = op.shape
        if like is not None:
            shape = (tuple(like.astype(int)) if op.input_as_shape else like.shape) + op.extra_shape
        grid = np.indices(shape)
        return [np.where((grid == grid[0]).all(axis=0), 2.5, 0.0)]


class _Random(_Fill):
    arguments = {}

    def draw(self, data):
        args, inputs = draw_shape(data, (3, 4, 2), **self.arguments)
        return self.operator(**args), inputs

    def reference(self, op, *inputs):
        return [None]  # what is drawn is looked at below

    def test_inplace(self):
        """The numbers depend on the output's name: drawn anew over the input, in its shape."""
        workspace = Workspace()
        x = np.full((3, 4), 99, self.operator.dtype_made)
        workspace.feed("x", x)
        op = encode(self.operator(**self.arguments).with_arity(1, 1), ["x"], ["x"])
        workspace.run_operator_once(op)
        first = workspace.fetch("x")
        assert first.shape == (3, 4)
        assert not (first == x).any()


class TestXavierFill(_Random):
    operator = XavierFill
    refusals = (*shared_refusals(XavierFill), refusal(XavierFill(), [], "axis 0, which shape .. does not have"))


class TestMSRAFill(_Random):
    operator = MSRAFill
    refusals = (*shared_refusals(MSRAFill), refusal(MSRAFill(shape=(5,)), [], "axis 1"))


class TestGaussianFill(_Random):
    operator = GaussianFill
    refusals = (
        *shared_refusals(GaussianFill),
        refusal(GaussianFill(shape=(2,), std=0.0), [], "std must be above 0", ArgumentError),
    )


class TestUniformFill(_Random):
    operator, arguments = UniformFill, {"min": -1.0, "max": 3.0}
    refusals = (
        *shared_refusals(UniformFill),
        refusal(UniformFill(min=1.0, max=1.0), [], "min must be below max", ArgumentError),
        refusal(UniformFill(), [f32(2), f32(1)], "min and max come as inputs together", ArgumentError),
    )


class TestUniformIntFill(_Random):
    operator, arguments = UniformIntFill, {"min": -2, "max": 2}
    refusals = (
        *shared_refusals(UniformIntFill),
        refusal(UniformIntFill(min=3, max=2), [], "min must be below max", ArgumentError),
        refusal(UniformIntFill(), [f32(2), f32(1)], "min and max come as inputs together", ArgumentError),
    )


MANY = (40, 30, 3, 3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("op", "low", "high"),
    [
        (XavierFill(shape=MANY), -math.sqrt(3 / 270), math.sqrt(3 / 270)),
        (UniformFill(shape=MANY, min=-1.0, max=0.5), -1, 0.5),
        (UniformFill(shape=MANY), 0, 1),
    ],
)
def test_uniform(op, low, high, device):
    (y,) = run_plain(op, [], device)
    assert y.dtype == np.float32
    assert low <= y.min() < low + 0.01 * (high - low)
    assert high - 0.01 * (high - low) < y.max() <= high
    assert abs(y.mean() - (low + high) / 2) < 0.01 * (high - low)
    assert abs(y.std() / ((high - low) / math.sqrt(12)) - 1) < 0.03


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("op", "mean", "std"),
    [
        (MSRAFill(shape=MANY), 0, math.sqrt(2 / 360)),
        (GaussianFill(shape=MANY), 0, 1),
        (GaussianFill(shape=MANY, mean=2.0, std=0.5), 2, 0.5),
    ],
)
def test_normal(op, mean, std, device):
    (y,) = run_plain(op, [], device)
    assert y.dtype == np.float32
    assert abs(y.mean() - mean) < 0.05 * std
    assert abs(y.std() / std - 1) < 0.05
    inside = np.mean(np.abs(y - mean) < std)
    assert abs(inside - 0.6827) < 0.03, "not normal: the share within one deviation"


def test_whole_numbers_reach_both_ends_equally():
    (y,) = run_plain(UniformIntFill(shape=MANY, min=-1, max=2), [])
    counts = np.bincount(y.ravel() + 1)
    assert y.dtype == np.int32
    assert counts.shape == (4,)
    assert (np.abs(counts / y.size - 0.25) < 0.03).all()


def test_bounds_from_inputs():
    op = UniformFill(input_as_shape=True)
    (y,) = run_plain(op, [np.int64([50, 20]), np.float32([2]), np.float32([3])])
    assert y.shape == (50, 20)
    assert 2 <= y.min() < 2.1 and 2.9 < y.max() <= 3
    with pytest.raises(ArgumentError, match="min must be below max"):
        run_plain(op, [np.int64([1]), np.float32([3]), np.float32([2])])


def test_two_outputs_draw_different_numbers():
    found = interpret([make_op("UniformFill", [], [name], shape=[8]) for name in ("a", "b")], {})
    assert not (found["a"] == found["b"]).any()


def test_value_from_the_second_input():
    (y,) = run_plain(ConstantFill(), [np.zeros((2, 1), np.float32), np.float32([7])])
    assert y.tolist() == [[7], [7]]


def test_strings():
    (y,) = run_plain(ConstantFill(shape=(2,), value=b"ab", dtype="string"), [])
    assert y.tolist() == [b"ab", b"ab"]


def test_empty_list_of_extents_is_a_scalar():
    op = make_op("ConstantFill", [], ["y"], shape=[], value=4.0)
    assert decode(ConstantFill, op).infer() == (TensorSpec((), np.dtype(np.float32)),)


def test_a_whole_value_without_dtype_is_int64():
    assert run_plain(ConstantFill(shape=(1,), value=3), [])[0].dtype == np.int64
    assert run_plain(ConstantFill(shape=(1,), value=3.0), [])[0].dtype == np.float32


@pytest.mark.parametrize("given", [np.float32([2, 2]), np.int64([[2, 2]])])
def test_input_that_is_no_shape(given):
    with pytest.raises(ShapeError, match="must be a vector of integers"):
        run_plain(ConstantFill(input_as_shape=True), [given])


def test_no_gradient_passes():
    ops, where = operator_gradient(make_op("ConstantFill", ["x"], ["y"], value=1.0), {0: "dy"})
    assert (ops, where) == ([], {})


def test_like_an_input_of_another_type_in_a_workspace():
    """Init nets make a counter's like of a float blob; the input is not read."""
    workspace = Workspace()
    workspace.feed("x", np.zeros((2, 3), np.float32))
    for value, dtype in ((4, np.int64), (0.5, np.float32)):
        workspace.run_operator_once(make_op("ConstantFill", ["x"], ["y"], value=value))
        np.testing.assert_array_equal(workspace.fetch("y"), np.full((2, 3), value, dtype))
