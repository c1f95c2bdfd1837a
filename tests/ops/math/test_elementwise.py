"""Add, Sub, Mul, Div and their gradients."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.math.elementwise import (
    Add,
    AddGradient,
    Div,
    DivGradient,
    Mul,
    MulGradient,
    Sub,
    SubGradient,
)
from netbuilder.proto import ArgumentError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, floats, i32, refusal


def draw_operands(data, cls, **kwargs):
    """Return an operator and two operands whose shapes join, in each of the ways there are."""
    n, c, w = (data.draw(st.integers(1, 3)) for _ in range(3))
    args, a, b = data.draw(
        st.sampled_from(
            [
                ({}, (n, c, w), (n, c, w)),
                ({}, (n, c, w), (c, w)),
                ({}, (n, 1, w), (c, 1)),
                ({}, (), ()),
                ({"broadcast": True}, (n, c, w), (w,)),
                ({"broadcast": True}, (n, c, w), ()),
                ({"broadcast": True}, (n, c, w), (1,)),
                ({"broadcast": True, "axis": 0}, (n, c, w), (n, c)),
                ({"broadcast": True, "axis": 1}, (n, c, w), (c,)),
                ({"broadcast": True, "axis_str": "C"}, (n, c, w), (c,)),
                ({"broadcast": True}, (n, c, w), (1, w)),
                ({"broadcast": True, "axis": 0}, (n, c, w), (1, c, 1)),
                ({"broadcast": True, "axis": 1}, (n, c, w), (c, 1)),
            ]
        )
    )
    return cls(**args), data.draw(floats(*a, **kwargs)), data.draw(floats(*b, **kwargs))


def placed(op, a, b):
    """B with axes of extent 1 appended, so that NumPy broadcasts it to A."""
    if not op.broadcast or b.size == 1:
        return b.reshape(()) if op.broadcast else b
    axis = op.order.index(op.axis_str) if op.axis_str else op.axis
    return b.reshape(b.shape + (1,) * (0 if axis == -1 else a.ndim - axis - b.ndim))


def refusals(cls):
    return (
        refusal(cls(), [f32(2, 3), f32(2)], r"A \(2, 3\) and B \(2,\) do not broadcast"),
        refusal(cls(), [f32(*[1] * 40), f32(*[1] * 40)], "A and B must have at most 32 axes, got 40"),
        refusal(cls(broadcast=True, axis=1), [f32(2, 3, 4), f32(2)], "consecutive axes of A, from axis 1"),
        refusal(cls(broadcast=True), [f32(3), f32(2, 3)], "consecutive axes of A"),
        refusal(cls(axis=1), [f32(2, 3), f32(3)], "need broadcast=1", ArgumentError),
        refusal(cls(broadcast=True, axis=1, axis_str="C"), [f32(2, 3), f32(3)], "not both", ArgumentError),
        refusal(cls(broadcast=True, axis_str="Q"), [f32(2, 3), f32(3)], "one letter of order", ArgumentError),
        refusal(cls(), [f32(2), i32(2)], "the same type"),
    )


class _Binary(OperatorSuite):
    wrt = (0, 1)

    def draw(self, data):
        op, a, b = draw_operands(data, self.operator)
        return op, [a, b]


class TestAdd(_Binary):
    operator = Add
    refusals = refusals(Add)

    def reference(self, op, a, b):
        return [a + placed(op, a, b)]


class TestSub(_Binary):
    operator = Sub
    refusals = refusals(Sub)

    def reference(self, op, a, b):
        return [a - placed(op, a, b)]


class TestMul(_Binary):
    operator = Mul
    refusals = refusals(Mul)

    def reference(self, op, a, b):
        return [a * placed(op, a, b)]


class TestDiv(_Binary):
    operator = Div
    refusals = refusals(Div)

    def draw(self, data):
        op, a, b = draw_operands(data, Div, low=0.5)
        return op, [a, b]

    def reference(self, op, a, b):
        return [a / placed(op, a, b)]


class _Gradient(OperatorSuite):
    no_gradient = "a gradient operator"

    def draw(self, data):
        op, a, b = draw_operands(data, self.operator, low=0.5)
        dy = data.draw(floats(*np.broadcast_shapes(a.shape, placed(op, a, b).shape)))
        return op.with_arity(3, 2), [dy, a, b]

    def slopes(self, a, b):
        """The derivatives of the result by A and by B."""
        raise NotImplementedError(f"{type(self).__name__}: slopes returns the derivatives by A and by B")

    def reference(self, op, dy, a, b, *y):
        wide = placed(op, a, b)
        by_a, by_b = self.slopes(a, wide)
        return [_summed(dy * by_a, a.shape, a.shape), _summed(dy * by_b, wide.shape, b.shape)]


def _summed(x, view, shape):
    full = (1,) * (x.ndim - len(view)) + tuple(view)
    axes = tuple(i for i in range(x.ndim) if full[i] == 1)
    return x.sum(axis=axes, keepdims=True).reshape(shape)


BAD_SLOPE = [f32(3), f32(2, 3), f32(2, 3)]


class TestAddGradient(_Gradient):
    operator = AddGradient
    refusals = (refusal(AddGradient(), BAD_SLOPE, "dY must have the shape of the result"),)

    def slopes(self, a, b):
        return 1, 1


class TestSubGradient(_Gradient):
    operator = SubGradient
    refusals = (refusal(SubGradient(), BAD_SLOPE, "dY must have the shape of the result"),)

    def slopes(self, a, b):
        return 1, -1


class TestMulGradient(_Gradient):
    operator = MulGradient
    refusals = (refusal(MulGradient(), BAD_SLOPE, "dY must have the shape of the result"),)

    def slopes(self, a, b):
        return b, a


class TestDivGradient(_Gradient):
    operator = DivGradient
    refusals = (
        refusal(DivGradient(), [*BAD_SLOPE, f32(2, 3)], "dY must have the shape of the result"),
        refusal(DivGradient(), [f32(3), f32(2, 3), f32(3)], "dY must have the shape of the result"),
    )

    def draw(self, data):
        op, (dy, a, b) = super().draw(data)
        y = a / placed(op, a, b)
        if y.shape == a.shape and data.draw(st.booleans()):
            return op.with_arity(3, 2), [b, y, dy]  # as in older nets
        return op.with_arity(4, 2), [dy, a, b, y]

    def reference(self, op, *inputs):
        if len(inputs) == 3:
            b, y, dy = inputs
            return super().reference(op, dy, y * placed(op, y, b), b)
        return super().reference(op, *inputs)

    def slopes(self, a, b):
        return 1 / b, -a / b**2


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_whole_numbers_are_divided_towards_zero(dtype):
    a, b = np.array([7, -7, 7, -7, 0, -1], dtype), np.array([2, 2, -2, -2, 3, 2], dtype)
    (y,) = run_plain(Div(), [a, b])
    assert y.dtype == dtype
    assert y.tolist() == [3, -3, -3, 3, 0, 0]


def test_division_by_zero():
    (y,) = run_plain(Div(), [np.float32([1, -1, 0]), np.float32([0, 0, 0])])
    assert np.isposinf(y[0]) and np.isneginf(y[1]) and np.isnan(y[2])
    with pytest.raises(ZeroDivisionError, match="integers of B must not be 0"):
        run_plain(Div(), [np.int32([1]), np.int32([0])])


@pytest.mark.parametrize("op_type", ["AddGradient", "SubGradient", "MulGradient"])
@pytest.mark.parametrize("place", [0, 1])
def test_gradient_over_dy(op_type, place):
    """The output's gradient is read before either result overwrites it, in whichever order they come."""
    a, b, dy = np.float32([[1, 2], [3, 4]]), np.float32([[5, 6], [7, 8]]), np.float32([[1, -1], [2, 3]])
    outputs = ["da", "db"]
    outputs[place] = "dy"
    workspace = Workspace()
    for name, value in (("dy", dy), ("a", a), ("b", b)):
        workspace.feed(name, value)
    workspace.run_operator_once(make_op(op_type, ["dy", "a", "b"], outputs))
    by_a, by_b = {"AddGradient": (1, 1), "SubGradient": (1, -1), "MulGradient": (b, a)}[op_type]
    np.testing.assert_array_equal(workspace.fetch(outputs[0]), dy * by_a)
    np.testing.assert_array_equal(workspace.fetch(outputs[1]), dy * by_b)
