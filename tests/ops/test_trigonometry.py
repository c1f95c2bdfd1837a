"""Sin, Cos and their gradients."""

import numpy as np

from netbuilder.ops.trigonometry import Cos, CosGradient, Sin, SinGradient
from unary_suite import UnaryGradientOperatorSuite, UnaryOperatorSuite, unlike, wants_floats


class TestSin(UnaryOperatorSuite):
    operator, function = Sin, staticmethod(lambda x: np.exp(1j * x).imag)
    refusals = wants_floats(Sin)


class TestCos(UnaryOperatorSuite):
    operator, function = Cos, staticmethod(lambda x: np.exp(1j * x).real)
    refusals = wants_floats(Cos)


class TestSinGradient(UnaryGradientOperatorSuite):
    operator, slope = SinGradient, staticmethod(lambda x: np.exp(1j * x).real)
    refusals = unlike(SinGradient)


class TestCosGradient(UnaryGradientOperatorSuite):
    operator, slope = CosGradient, staticmethod(lambda x: -np.exp(1j * x).imag)
    refusals = unlike(CosGradient)
