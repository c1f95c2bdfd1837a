"""Erf, its gradient, and the normal distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest

from netbuilder.ops.math.error_function import Erf, ErfGradient, erf, normal_cdf, normal_density
from unary_suite import UnaryGradientOperatorSuite, UnaryOperatorSuite, unlike, wants_floats

exact_erf = np.vectorize(math.erf, otypes=[np.float64])


class TestErf(UnaryOperatorSuite):
    operator = Erf
    refusals = wants_floats(Erf)
    function = staticmethod(exact_erf)


class TestErfGradient(UnaryGradientOperatorSuite):
    operator = ErfGradient
    refusals = unlike(ErfGradient)

    @staticmethod
    def slope(x):
        return 2 / math.sqrt(math.pi) * np.exp(-x * x)


X = np.concatenate([np.linspace(-7, 7, 1401), [1e-20, -1e-8, 1e4, -1e4]])


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float64, 2e-15), (np.float32, 4e-7)])
def test_erf_keeps_its_digits_everywhere(dtype, rtol):
    x = X.astype(dtype)
    y = erf(np, x)
    assert y.dtype == dtype
    np.testing.assert_allclose(y, exact_erf(x.astype(np.float64)), rtol=rtol, atol=0)


def test_erf_of_what_is_not_finite():
    np.testing.assert_array_equal(erf(np, np.array([np.inf, -np.inf, np.nan, -0.0])), [1, -1, np.nan, 0])


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float64, 5e-14), (np.float32, 2e-5)])
def test_the_normal_distribution_keeps_its_digits_in_the_tail(dtype, rtol):
    x = np.linspace(-9, 9, 301).astype(dtype)
    want = [0.5 * math.erfc(-float(v) / math.sqrt(2)) for v in x]
    np.testing.assert_allclose(normal_cdf(np, x), want, rtol=rtol)


def test_the_density_is_the_slope_of_the_distribution():
    x, step = np.linspace(-3, 3, 31), 1e-5
    slope = (normal_cdf(np, x + step) - normal_cdf(np, x - step)) / (2 * step)
    np.testing.assert_allclose(normal_density(np, x), slope, rtol=1e-8)
