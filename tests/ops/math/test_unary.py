"""Functions of one operand: Negative, powers, roots, Exp, Log."""

import numpy as np
import pytest

from checks import interpret, run_plain
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.math.unary import (
    Cube,
    CubeGradient,
    Exp,
    Log,
    Negative,
    Reciprocal,
    ReciprocalGradient,
    Rsqrt,
    RsqrtGradient,
    Sqr,
    Sqrt,
)
from netbuilder.proto.arguments import make_op
from suite import f32, refusal
from unary_suite import UnaryGradientOperatorSuite, UnaryOperatorSuite, unlike, wants_floats


class TestNegative(UnaryOperatorSuite):
    operator, function = Negative, staticmethod(lambda x: 0 - x)
    refusals = (
        refusal(Negative(), [f32(2).with_dtype(np.uint8)], "X must have elements of type float, int32 or int64"),
    )


class TestSqr(UnaryOperatorSuite):
    operator, function = Sqr, staticmethod(lambda x: x**2)
    refusals = (refusal(Sqr(), [f32(2).with_dtype(bool)], "X must have elements of type float or int"),)


class TestSqrt(UnaryOperatorSuite):
    operator, function, low = Sqrt, staticmethod(lambda x: x**0.5), 0.2
    refusals = wants_floats(Sqrt)


class TestExp(UnaryOperatorSuite):
    operator, function = Exp, staticmethod(lambda x: np.e**x)
    refusals = wants_floats(Exp)


class TestLog(UnaryOperatorSuite):
    operator, function, low = Log, staticmethod(lambda x: np.log2(x) / np.log2(np.e)), 0.2
    refusals = wants_floats(Log)


class TestReciprocal(UnaryOperatorSuite):
    operator, function, low = Reciprocal, staticmethod(lambda x: x**-1), 0.2
    refusals = wants_floats(Reciprocal)


class TestRsqrt(UnaryOperatorSuite):
    operator, function, low = Rsqrt, staticmethod(lambda x: x**-0.5), 0.2
    refusals = wants_floats(Rsqrt)


class TestCube(UnaryOperatorSuite):
    operator, function = Cube, staticmethod(lambda x: x**3)
    refusals = (refusal(Cube(), [f32(2).with_dtype(np.uint8)], "X must have elements of type float, int32 or int64"),)


class TestReciprocalGradient(UnaryGradientOperatorSuite):
    operator, slope = ReciprocalGradient, staticmethod(lambda y: -(y**2))
    refusals = unlike(ReciprocalGradient)


class TestRsqrtGradient(UnaryGradientOperatorSuite):
    operator, slope = RsqrtGradient, staticmethod(lambda y: -(y**3) / 2)
    refusals = unlike(RsqrtGradient)


class TestCubeGradient(UnaryGradientOperatorSuite):
    operator, slope = CubeGradient, staticmethod(lambda x: 3 * x**2)
    refusals = unlike(CubeGradient)


@pytest.mark.parametrize(
    ("op", "x", "want"),
    [
        (Log(), [0.0, -1.0], [-np.inf, np.nan]),
        (Sqrt(), [-1.0, np.inf], [np.nan, np.inf]),
        (Reciprocal(), [0.0, -0.0], [np.inf, -np.inf]),
        (Rsqrt(), [0.0], [np.inf]),
        (Exp(), [1000.0], [np.inf]),
    ],
)
def test_outside_the_range_as_in_c(op, x, want):
    """Infinities and NaN cause no warning."""
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
