"""Sin, Cos, Tan, their inverses, Sinh and Cosh, and their gradients."""

import math

import numpy as np
import pytest

from checks import run_plain
from netbuilder.ops.math.trigonometry import (
    Acos,
    AcosGradient,
    Asin,
    AsinGradient,
    Atan,
    AtanGradient,
    Cos,
    CosGradient,
    Cosh,
    CoshGradient,
    Sin,
    SinGradient,
    Sinh,
    SinhGradient,
    Tan,
    TanGradient,
)
from suite import floats
from unary_suite import UnaryGradientOperatorSuite, UnaryOperatorSuite, unlike, wants_floats


def each(function):
    return staticmethod(np.vectorize(function, otypes=[np.float64]))


class TestSin(UnaryOperatorSuite):
    operator, function = Sin, staticmethod(lambda x: np.exp(1j * x).imag)
    refusals = wants_floats(Sin)


class TestCos(UnaryOperatorSuite):
    operator, function = Cos, staticmethod(lambda x: np.exp(1j * x).real)
    refusals = wants_floats(Cos)


class TestTan(UnaryOperatorSuite):
    operator, function = Tan, each(math.tan)
    low, high = -1.2, 1.2
    refusals = wants_floats(Tan)


class TestAsin(UnaryOperatorSuite):
    operator, function = Asin, each(math.asin)
    low, high = -0.95, 0.95
    refusals = wants_floats(Asin)


class TestAcos(UnaryOperatorSuite):
    operator, function = Acos, each(math.acos)
    low, high = -0.95, 0.95
    refusals = wants_floats(Acos)


class TestAtan(UnaryOperatorSuite):
    operator, function = Atan, each(math.atan)
    refusals = wants_floats(Atan)


class TestSinh(UnaryOperatorSuite):
    operator, function = Sinh, each(math.sinh)
    refusals = wants_floats(Sinh)


class TestCosh(UnaryOperatorSuite):
    operator, function = Cosh, each(math.cosh)
    refusals = wants_floats(Cosh)


class TestSinGradient(UnaryGradientOperatorSuite):
    operator, slope = SinGradient, staticmethod(lambda x: np.exp(1j * x).real)
    refusals = unlike(SinGradient)


class TestCosGradient(UnaryGradientOperatorSuite):
    operator, slope = CosGradient, staticmethod(lambda x: -np.exp(1j * x).imag)
    refusals = unlike(CosGradient)


class _Within(UnaryGradientOperatorSuite):
    """X between 0.1 and 0.9."""

    def draw(self, data):
        x = data.draw(floats((1, 4), (1, 3), low=0.1, high=0.9))
        return self.operator(), [x, data.draw(floats(*x.shape))]


class TestTanGradient(_Within):
    operator, slope = TanGradient, staticmethod(lambda x: 1 + np.tan(x) ** 2)
    refusals = unlike(TanGradient)


class TestAsinGradient(_Within):
    operator, slope = AsinGradient, staticmethod(lambda x: 1 / np.sqrt(1 - x**2))
    refusals = unlike(AsinGradient)


class TestAcosGradient(_Within):
    operator, slope = AcosGradient, staticmethod(lambda x: -1 / np.sqrt(1 - x**2))
    refusals = unlike(AcosGradient)


class TestAtanGradient(_Within):
    operator, slope = AtanGradient, staticmethod(lambda x: 1 / (1 + x**2))
    refusals = unlike(AtanGradient)


class TestSinhGradient(UnaryGradientOperatorSuite):
    operator, slope = SinhGradient, each(math.cosh)
    refusals = unlike(SinhGradient)


class TestCoshGradient(UnaryGradientOperatorSuite):
    operator, slope = CoshGradient, each(math.sinh)
    refusals = unlike(CoshGradient)


@pytest.mark.parametrize("op", [Asin(), Acos()])
def test_outside_of_the_domain_it_is_not_a_number(op):
    assert np.isnan(run_plain(op, [np.float32([1.5, -2])])[0]).all()
