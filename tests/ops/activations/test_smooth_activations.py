"""Softplus, Softsign, Swish, Gelu, Mish, Selu, and their gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.activations.smooth_activations import (
    Gelu,
    GeluGradient,
    Mish,
    MishGradient,
    Selu,
    SeluGradient,
    Softplus,
    SoftplusGradient,
    Softsign,
    SoftsignGradient,
    Swish,
    SwishGradient,
)
from netbuilder.proto import GradientError
from netbuilder.proto.arguments import make_op
from suite import OperatorSuite, f32, floats, i32, refusal
from unary_suite import UnaryGradientOperatorSuite, UnaryOperatorSuite, unlike, wants_floats

ONE_TYPE = "inputs must have one floating type, got X int32"


def logistic(x):
    return 1 / (1 + np.exp(-x))


def slope_of(function, x, step=1e-6):
    """Return the slope by central differences, right to about ten digits."""
    return (function(x + step) - function(x - step)) / (2 * step)


def gelu(x):
    return np.array([0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x.ravel()]).reshape(x.shape)


def fast_gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def mish(x):
    return x * np.tanh(np.log1p(np.exp(x)))


class TestSoftplus(UnaryOperatorSuite):
    operator = Softplus
    refusals = (refusal(Softplus(), [i32(3)], ONE_TYPE),)

    def reference(self, op, x):
        return [np.log(1 + np.exp(x))]


class TestSoftplusGradient(UnaryGradientOperatorSuite):
    operator = SoftplusGradient
    refusals = unlike(SoftplusGradient)

    def reference(self, op, y, dy):
        return [dy * (1 - np.exp(-y))]


class TestSelu(UnaryOperatorSuite):
    operator = Selu
    avoid = 0.0
    refusals = (refusal(Selu(), [i32(3)], ONE_TYPE),)

    def draw(self, data):
        _, inputs = super().draw(data)
        return data.draw(st.sampled_from([Selu(), Selu(alpha=1.5, scale=1.25)])), inputs

    def reference(self, op, x):
        return [op.scale * np.where(x > 0, x, op.alpha * (np.exp(x) - 1))]


class TestSeluGradient(UnaryGradientOperatorSuite):
    operator = SeluGradient
    refusals = unlike(SeluGradient)

    def draw(self, data):
        y = data.draw(floats((1, 4), (1, 3), avoid=0.0))
        return SeluGradient(alpha=1.5, scale=1.25), [y, data.draw(floats(*y.shape))]

    def reference(self, op, y, dy):
        return [dy * np.where(y > 0, op.scale, y + op.scale * op.alpha)]


class TestSoftsign(UnaryOperatorSuite):
    operator = Softsign
    avoid = 0.0
    refusals = wants_floats(Softsign)

    def reference(self, op, x):
        return [x / (1 + np.abs(x))]


class TestSoftsignGradient(UnaryGradientOperatorSuite):
    operator = SoftsignGradient
    refusals = unlike(SoftsignGradient)

    def reference(self, op, x, dy):
        return [dy / (1 + np.abs(x)) ** 2]


def test_softsign_in_place_has_no_gradient():
    with pytest.raises(GradientError, match="another name"):
        operator_gradient(make_op("Softsign", ["x"], ["x"]), {0: "dx"})


class TestGelu(UnaryOperatorSuite):
    operator = Gelu
    refusals = wants_floats(Gelu)

    def draw(self, data):
        _, inputs = super().draw(data)
        return Gelu(fast_gelu=data.draw(st.booleans())), inputs

    def reference(self, op, x):
        return [fast_gelu(x) if op.fast_gelu else gelu(x)]


class TestGeluGradient(UnaryGradientOperatorSuite):
    operator = GeluGradient
    refusals = unlike(GeluGradient)

    def draw(self, data):
        x = data.draw(floats((1, 4), (1, 3), low=-3, high=3))
        return GeluGradient(fast_gelu=data.draw(st.booleans())), [data.draw(floats(*x.shape)), x]

    def reference(self, op, dy, x):
        return [dy * slope_of(fast_gelu if op.fast_gelu else gelu, x)]


class TestSwish(UnaryOperatorSuite):
    operator = Swish
    refusals = wants_floats(Swish)

    def reference(self, op, x):
        return [x * logistic(x)]


class _FromBoth(OperatorSuite):
    no_gradient = "a gradient operator"

    def draw(self, data):
        x = data.draw(floats((1, 4), (0, 3), low=-3, high=3))
        return self.operator(), [x, self.function(x.astype(np.float64)).astype(np.float32), data.draw(floats(*x.shape))]

    def reference(self, op, x, y, dy):
        return [dy * slope_of(self.function, x)]


class TestSwishGradient(_FromBoth):
    operator = SwishGradient
    refusals = (refusal(SwishGradient(), [f32(2), f32(2), f32(3)], "dY must have the shape of X"),)

    @staticmethod
    def function(x):
        return x * logistic(x)


class TestMish(UnaryOperatorSuite):
    operator = Mish
    refusals = wants_floats(Mish)

    def reference(self, op, x):
        return [mish(x)]


class TestMishGradient(_FromBoth):
    operator = MishGradient
    function = staticmethod(mish)
    refusals = (refusal(MishGradient(), [f32(2), f32(3), f32(2)], "Y must have the shape of X"),)


FAR = np.float32([-1e4, 1e4])


@pytest.mark.parametrize(
    ("op", "low", "high"),
    [
        (Softplus(), 0, 1e4),
        (Softsign(), -1, 1),
        (Swish(), 0, 1e4),
        (Gelu(), 0, 1e4),
        (Gelu(fast_gelu=True), 0, 1e4),
        (Mish(), 0, 1e4),
        (Selu(alpha=2.0, scale=1.5), -3, 1.5e4),
    ],
)
def test_far_values_do_not_overflow(op, low, high):
    (y,) = run_plain(op, [FAR])
    np.testing.assert_allclose(y, np.float32([low, high]), rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("op", [GeluGradient(), GeluGradient(fast_gelu=True)])
def test_far_slopes_of_gelu(op):
    np.testing.assert_array_equal(run_plain(op, [np.ones(2, np.float32), FAR])[0], [0, 1])


@pytest.mark.parametrize("op", [SwishGradient(), MishGradient()])
def test_far_slopes(op):
    np.testing.assert_array_equal(run_plain(op, [FAR, np.maximum(FAR, 0), np.ones(2, np.float32)])[0], [0, 1])


def test_gelu_far_below_zero_keeps_its_digits():
    x = np.linspace(-9, -3, 25, dtype=np.float32)
    np.testing.assert_allclose(run_plain(Gelu(), [x])[0], gelu(x.astype(np.float64)), rtol=2e-5)


def test_half_precision_is_calculated_in_float32():
    x = np.linspace(-3, 3, 9, dtype=np.float16)
    (y,) = run_plain(Gelu(), [x])
    assert y.dtype == np.float16
    np.testing.assert_allclose(y, gelu(x.astype(np.float64)).astype(np.float16), rtol=1e-3)
