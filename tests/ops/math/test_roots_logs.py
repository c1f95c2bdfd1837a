"""Cbrt, Log1p, Logit, and their gradients."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.math.roots_logs import Cbrt, CbrtGradient, Log1p, Log1pGradient, Logit, LogitGradient
from netbuilder.proto import ArgumentError
from suite import floats
from unary_suite import UnaryGradientOperatorSuite, UnaryOperatorSuite, unlike, wants_floats


class TestCbrt(UnaryOperatorSuite):
    operator, function = Cbrt, staticmethod(lambda x: np.sign(x) * np.abs(x) ** (1 / 3))
    avoid = 0.0
    refusals = wants_floats(Cbrt)


class TestCbrtGradient(UnaryGradientOperatorSuite):
    operator = CbrtGradient
    refusals = unlike(CbrtGradient)

    def draw(self, data):
        y = data.draw(floats((1, 4), (1, 3), low=0.2))
        return CbrtGradient(), [data.draw(floats(*y.shape)), y]

    def reference(self, op, dy, y):
        return [dy / (3 * y**2)]


class TestLog1p(UnaryOperatorSuite):
    operator, function = Log1p, staticmethod(lambda x: np.log(1 + x))
    low = -0.9
    refusals = wants_floats(Log1p)


class TestLog1pGradient(UnaryGradientOperatorSuite):
    operator, slope = Log1pGradient, staticmethod(lambda x: 1 / (1 + x))
    refusals = unlike(Log1pGradient)


EPS = st.sampled_from([1e-6, 0.2])


class TestLogit(UnaryOperatorSuite):
    operator = Logit
    rtol = 1e-4
    refusals = wants_floats(Logit)

    def draw(self, data):
        x = data.draw(floats((1, 4), (0, 3), low=-0.1, high=1.1))
        for corner in (1e-6, 0.2, 0.8, 1 - 1e-6):
            x = np.where(np.abs(x - corner) < 0.01, corner + 0.03, x)
        return Logit(eps=data.draw(EPS)), [x.astype(np.float32)]

    def reference(self, op, x):
        p = np.minimum(1 - op.eps, np.maximum(op.eps, x))
        # 1 - 1e-6 is rounded in float32, by which the logarithm of its complement changes.
        return [np.where(x > 1 - op.eps, np.log(p / (1 - np.float32(p))), np.log(p / (1 - p)))]


class TestLogitGradient(UnaryGradientOperatorSuite):
    operator = LogitGradient
    refusals = unlike(LogitGradient)

    def draw(self, data):
        x = data.draw(floats((1, 4), (1, 3), low=-0.1, high=1.1))
        x = np.where((np.abs(x) < 0.02) | (np.abs(x - 1) < 0.02), 0.5, x).astype(np.float32)
        return LogitGradient(eps=data.draw(EPS)), [x, data.draw(floats(*x.shape))]

    def reference(self, op, x, dy):
        inside = (x >= op.eps) & (x <= 1 - op.eps)
        return [np.where(inside, dy / np.where(inside, x * (1 - x), 1), 0)]


@pytest.mark.parametrize("cls", [Logit, LogitGradient])
def test_eps_leaves_something_between_its_bounds(cls):
    with pytest.raises(ArgumentError, match=r"eps must lie between 0 and 0\.5, got 0\.6"):
        cls(eps=0.6).check()


def test_slope_of_the_cube_root_at_0():
    (dx,) = run_plain(CbrtGradient(), [np.float32([1]), np.float32([0])])
    assert np.isinf(dx).all()
