"""Functions of one operand: Negative, Sqr, Sqrt, Exp, Log, Abs, Clip and their like."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import interpret, run_plain
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.unary import (
    Abs,
    AbsGradient,
    Ceil,
    Clip,
    ClipGradient,
    Cos,
    CosGradient,
    Cube,
    CubeGradient,
    Exp,
    Floor,
    Log,
    Negative,
    Reciprocal,
    ReciprocalGradient,
    Rsqrt,
    RsqrtGradient,
    Sign,
    Sin,
    SinGradient,
    Sqr,
    Sqrt,
)
from netbuilder.proto import ArgumentError, GradientError
from netbuilder.proto.arguments import make_op
from suite import OperatorSuite, f32, floats, i32, refusal


class _Unary(OperatorSuite):
    low, high = -2.0, 2.0
    avoid = None
    function = None

    def draw(self, data):
        shape = data.draw(st.sampled_from([(), ((1, 4),), ((1, 3), (0, 3), (1, 3))]))
        return self.operator(), [data.draw(floats(*shape, low=self.low, high=self.high, avoid=self.avoid))]

    def reference(self, op, x):
        return [type(self).function(x)]


def wants_floats(cls):
    return (refusal(cls(), [i32(2)], "must hold floating-point numbers"),)


class TestNegative(_Unary):
    operator, function = Negative, staticmethod(lambda x: 0 - x)
    refusals = (refusal(Negative(), [f32(2).with_dtype(np.uint8)], "signed numbers"),)


class TestSqr(_Unary):
    operator, function = Sqr, staticmethod(lambda x: x**2)
    refusals = (refusal(Sqr(), [f32(2).with_dtype(bool)], "must hold numbers"),)


class TestSqrt(_Unary):
    operator, function, low = Sqrt, staticmethod(lambda x: x**0.5), 0.2
    refusals = wants_floats(Sqrt)


class TestExp(_Unary):
    operator, function = Exp, staticmethod(lambda x: np.e**x)
    refusals = wants_floats(Exp)


class TestLog(_Unary):
    operator, function, low = Log, staticmethod(lambda x: np.log2(x) / np.log2(np.e)), 0.2
    refusals = wants_floats(Log)


class TestReciprocal(_Unary):
    operator, function, low = Reciprocal, staticmethod(lambda x: x**-1), 0.2
    refusals = wants_floats(Reciprocal)


class TestRsqrt(_Unary):
    operator, function, low = Rsqrt, staticmethod(lambda x: x**-0.5), 0.2
    refusals = wants_floats(Rsqrt)


class TestAbs(_Unary):
    operator, function, avoid = Abs, staticmethod(lambda x: np.where(x < 0, -x, x)), 0.0
    refusals = wants_floats(Abs)


class TestSign(_Unary):
    operator, function = Sign, staticmethod(lambda x: (x > 0).astype(float) - (x < 0))
    no_gradient = "it has none"
    refusals = wants_floats(Sign)


class TestCube(_Unary):
    operator, function = Cube, staticmethod(lambda x: x**3)
    refusals = (refusal(Cube(), [f32(2).with_dtype(np.uint8)], "signed numbers"),)


class TestFloor(_Unary):
    operator, function = Floor, staticmethod(lambda x: -((-x) // 1))
    no_gradient = "it has none"
    refusals = wants_floats(Floor)

    def reference(self, op, x):
        return [x // 1]


class TestCeil(_Unary):
    operator, function = Ceil, staticmethod(lambda x: -(-x // 1))
    no_gradient = "it has none"
    refusals = wants_floats(Ceil)


class TestSin(_Unary):
    operator, function = Sin, staticmethod(lambda x: np.exp(1j * x).imag)
    refusals = wants_floats(Sin)


class TestCos(_Unary):
    operator, function = Cos, staticmethod(lambda x: np.exp(1j * x).real)
    refusals = wants_floats(Cos)


class TestClip(_Unary):
    operator = Clip
    refusals = (
        *wants_floats(Clip),
        refusal(Clip(min=1.0, max=0.5), [f32(2)], "min must not exceed max", ArgumentError),
    )

    def draw(self, data):
        low, high = data.draw(st.sampled_from([(-0.75, 0.5), (None, 0.5), (-0.75, None)]))
        bounds = {name: bound for name, bound in (("min", low), ("max", high)) if bound is not None}
        x = data.draw(floats((0, 9)))
        for kink in bounds.values():  # the slope jumps at the bounds
            x = np.where(np.abs(x - kink) < 0.05, np.float32(kink + 0.1), x)
        return Clip(**bounds), [x]

    def reference(self, op, x):
        return [np.array([min(max(v, op.min), op.max) for v in x])]


class _Gradient(OperatorSuite):
    """For gradients of two inputs, one of them the output's gradient: ``slope`` is of the other."""

    no_gradient = "a gradient operator"
    slope = None

    def draw(self, data):
        x = data.draw(floats((1, 4), (1, 3), low=0.2))
        return self.operator(), [x, data.draw(floats(*x.shape))]

    def reference(self, op, x, dy):
        if op.inputs[0] == "dY":
            return [x * type(self).slope(dy)]
        return [dy * type(self).slope(x)]


def unlike(cls):
    return (refusal(cls(), [f32(2), f32(3)], "must have one shape"),)


class TestReciprocalGradient(_Gradient):
    operator, slope = ReciprocalGradient, staticmethod(lambda y: -(y**2))
    refusals = unlike(ReciprocalGradient)


class TestRsqrtGradient(_Gradient):
    operator, slope = RsqrtGradient, staticmethod(lambda y: -(y**3) / 2)
    refusals = unlike(RsqrtGradient)


class TestAbsGradient(_Gradient):
    operator, slope = AbsGradient, staticmethod(lambda x: (x > 0).astype(float) - (x < 0))
    refusals = unlike(AbsGradient)


class TestCubeGradient(_Gradient):
    operator, slope = CubeGradient, staticmethod(lambda x: 3 * x**2)
    refusals = unlike(CubeGradient)


class TestSinGradient(_Gradient):
    operator, slope = SinGradient, staticmethod(lambda x: np.exp(1j * x).real)
    refusals = unlike(SinGradient)


class TestCosGradient(_Gradient):
    operator, slope = CosGradient, staticmethod(lambda x: -np.exp(1j * x).imag)
    refusals = unlike(CosGradient)


class TestClipGradient(_Gradient):
    operator = ClipGradient
    refusals = unlike(ClipGradient)

    def draw(self, data):
        _, inputs = super().draw(data)
        y = np.clip(inputs[0], 0.5, 1.0)
        return ClipGradient(min=0.5, max=1.0), [y, inputs[1]]

    def reference(self, op, y, dy):
        return [np.where((y == 0.5) | (y == 1.0), 0, dy)]


@pytest.mark.parametrize(
    ("op", "x", "want"),
    [
        (Log(), [0.0, -1.0], [-np.inf, np.nan]),
        (Sqrt(), [-1.0, np.inf], [np.nan, np.inf]),
        (Reciprocal(), [0.0, -0.0], [np.inf, -np.inf]),
        (Rsqrt(), [0.0], [np.inf]),
        (Exp(), [1000.0], [np.inf]),
        (Clip(min=-1.0, max=1.0), [np.inf, -np.inf], [1.0, -1.0]),
    ],
)
def test_outside_the_range_as_in_c(op, x, want):
    """Infinities and NaN come without a warning."""
    np.testing.assert_array_equal(run_plain(op, [np.float32(x)])[0], np.float32(want))


@pytest.mark.parametrize("op", [Negative(), Sqr(), Cube()])
def test_whole_numbers(op):
    (y,) = run_plain(op, [np.int32([-3, 0, 4])])
    assert y.dtype == np.int32
    assert y.tolist() == {"Negative": [3, 0, -4], "Sqr": [9, 0, 16], "Cube": [-27, 0, 64]}[op.type]


def test_sqr_leaves_the_output_gradient_alone():
    """It may be the gradient of another blob too: Sum hands one blob to all its inputs."""
    ops, where = operator_gradient(make_op("Sqr", ["x"], ["y"]), {0: "dy"})
    dy = np.float32([1, 2])
    found = interpret(ops, {"x": np.float32([3, 4]), "dy": dy})
    assert found["dy"].tolist() == [1, 2]
    assert found[where[0]].tolist() == [6, 16]


def test_sign_has_no_gradient():
    with pytest.raises(GradientError, match="'Sign' has no gradient"):
        operator_gradient(make_op("Sign", ["x"], ["y"]), {0: "dy"})
