"""Fills with a constant."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from fill_suite import FillOperatorSuite, draw_shape, shared_refusals
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.core.operator import TensorSpec, decode
from netbuilder.ops.fills.fill import ConstantFill, DiagonalFill, RangeFill
from netbuilder.proto import ArgumentError, NetDef, ShapeError, TensorProto
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import refusal


class TestConstantFill(FillOperatorSuite):
    operator = ConstantFill
    refusals = (
        *shared_refusals(ConstantFill),
        refusal(ConstantFill(value=3.5, dtype=TensorProto.INT32), [], "cannot be represented as", ArgumentError),
        refusal(ConstantFill(value=300, dtype="uint8"), [], "cannot be represented as", ArgumentError),
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


class TestDiagonalFill(FillOperatorSuite):
    operator = DiagonalFill
    refusals = (
        *shared_refusals(DiagonalFill),
        refusal(DiagonalFill(shape=(3,)), [], "two axes or more", ShapeError),
        refusal(DiagonalFill(shape=(2, 3, 3)), [], "must have the same extent", ShapeError),
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


class TestRangeFill(FillOperatorSuite):
    operator = RangeFill
    refusals = shared_refusals(RangeFill)

    def draw(self, data):
        args, inputs = draw_shape(data, data.draw(st.sampled_from([(2, 3), (4, 2), (2, 2, 2), (0, 2)])))
        return RangeFill(**args), inputs

    def reference(self, op, like=None):
        shape = op.shape
        if like is not None:
            shape = (tuple(like.astype(int)) if op.input_as_shape else like.shape) + op.extra_shape
        return [np.arange(np.prod(shape)).reshape(shape)]


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


@pytest.mark.parametrize("engines", [(), None])
def test_a_constant_like_float64_is_float64_unless_a_type_is_given(engines):
    workspace = Workspace(engines=engines)
    workspace.feed("x", np.float64([1, 2]))
    for arguments, want in (({}, np.float64), ({"dtype": 1}, np.float32), ({"value": 3}, np.int64)):
        workspace.run_operator_once(make_op("ConstantFill", ["x"], ["y"], **{"value": 0.5, **arguments}))
        assert workspace.fetch("y").dtype == want


@pytest.mark.parametrize("engines", [(), None])
@pytest.mark.parametrize("count", [3, 7, 1000])
def test_a_share_of_n_is_exact_like_float64(engines, count):
    """As the seed of the gradient of a micro-batch, 1/accumulate_steps, whose argument is a float32."""
    op, workspace = make_op("ConstantFill", ["x"], ["y"], value=1 / count), Workspace(engines=engines)
    workspace.feed("x", np.ones(2, np.float64))
    workspace.create_net(NetDef(name="fill", op=[op]))
    workspace.run_net("fill", 2)
    assert workspace.fetch("y").tolist() == [1 / count] * 2
    workspace.run_operator_once(make_op("ConstantFill", ["x"], ["y"], value=0.3))
    assert workspace.fetch("y").tolist() == [float(np.float32(0.3))] * 2
