"""Relu, LeakyRelu, Elu, Sigmoid, Tanh, and their gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.activations.activations import (
    Elu,
    EluGradient,
    LeakyRelu,
    LeakyReluGradient,
    Relu,
    ReluGradient,
    Sigmoid,
    SigmoidGradient,
    Tanh,
    TanhGradient,
)
from suite import OperatorSuite, f32, floats, i32, refusal

ALPHAS = st.sampled_from([0.01, 0.5, 1.0])


class _Forward(OperatorSuite):
    alpha = False

    def draw(self, data):
        given = {"alpha": data.draw(ALPHAS)} if self.alpha else {}
        shape = data.draw(st.lists(st.integers(1, 4), max_size=3))
        return self.operator(**given), [data.draw(floats(*shape, avoid=0.0))]

    def reference(self, op, x):
        return [np.reshape([self.value(op, v) for v in x.ravel()], x.shape)]


class _Backward(OperatorSuite):
    no_gradient = "a gradient operator"
    alpha = False
    low = -0.9

    def draw(self, data):
        given = {"alpha": data.draw(ALPHAS)} if self.alpha else {}
        y = data.draw(floats((1, 4), (1, 4), low=self.low, high=0.9))
        y[0, 0] = 0.0
        return self.operator(**given), [y, data.draw(floats(*y.shape))]

    def reference(self, op, y, dy):
        return [np.reshape([self.slope(op, v) * d for v, d in zip(y.ravel(), dy.ravel())], y.shape)]


def refused(forward, backward):
    return (
        (refusal(forward(), [i32(3)], "inputs must have one floating type, got X int32"),),
        (refusal(backward(), [f32(2, 3), f32(3, 2)], "dY must have the shape of Y"),),
    )


class TestRelu(_Forward):
    operator = Relu
    refusals = refused(Relu, ReluGradient)[0]

    def value(self, op, v):
        return v if v > 0 else 0.0


class TestReluGradient(_Backward):
    operator = ReluGradient
    refusals = refused(Relu, ReluGradient)[1]

    def slope(self, op, y):
        return 1.0 if y > 0 else 0.0


class TestLeakyRelu(_Forward):
    operator = LeakyRelu
    refusals = refused(LeakyRelu, LeakyReluGradient)[0]
    alpha = True

    def value(self, op, v):
        return v if v > 0 else op.alpha * v


class TestLeakyReluGradient(_Backward):
    operator = LeakyReluGradient
    refusals = refused(LeakyRelu, LeakyReluGradient)[1]
    alpha = True

    def slope(self, op, y):
        return op.alpha if y < 0 else 1.0


class TestElu(_Forward):
    operator = Elu
    refusals = refused(Elu, EluGradient)[0]
    alpha = True

    def value(self, op, v):
        return v if v > 0 else op.alpha * (math.exp(v) - 1)


class TestEluGradient(_Backward):
    operator = EluGradient
    refusals = refused(Elu, EluGradient)[1]
    alpha = True

    def slope(self, op, y):
        return y + op.alpha if y < 0 else 1.0


class TestSigmoid(_Forward):
    operator = Sigmoid
    refusals = refused(Sigmoid, SigmoidGradient)[0]

    def value(self, op, v):
        return 1 / (1 + math.exp(-v))


class TestSigmoidGradient(_Backward):
    operator = SigmoidGradient
    refusals = refused(Sigmoid, SigmoidGradient)[1]
    low = 0.1

    def slope(self, op, y):
        return y * (1 - y)


class TestTanh(_Forward):
    operator = Tanh
    refusals = refused(Tanh, TanhGradient)[0]

    def value(self, op, v):
        return math.tanh(v)


class TestTanhGradient(_Backward):
    operator = TanhGradient
    refusals = refused(Tanh, TanhGradient)[1]

    def slope(self, op, y):
        return 1 - y * y


@pytest.mark.parametrize(
    "op, low, high", [(Sigmoid(), 0, 1), (Tanh(), -1, 1), (Relu(), 0, 1e4), (Elu(), -1, 1e4), (LeakyRelu(), -1e2, 1e4)]
)
def test_far_values_do_not_overflow(op, low, high):
    (y,) = run_plain(op, [np.float32([-1e4, 1e4])])
    np.testing.assert_allclose(y, np.float32([low, high]))
