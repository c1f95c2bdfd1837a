"""Abs, Sign, Floor, Ceil, Round, Clip."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.math.rounding import Abs, AbsGradient, Ceil, Clip, ClipGradient, Floor, Round, Sign
from netbuilder.proto import ArgumentError, GradientError
from netbuilder.proto.arguments import make_op
from suite import f32, floats, refusal
from unary_suite import UnaryGradientOperatorSuite, UnaryOperatorSuite, unlike, wants_floats


class TestAbs(UnaryOperatorSuite):
    operator, function, avoid = Abs, staticmethod(lambda x: np.where(x < 0, -x, x)), 0.0
    refusals = (refusal(Abs(), [f32(2).with_dtype(bool)], "X must have elements of type"),)


class TestSign(UnaryOperatorSuite):
    operator, function = Sign, staticmethod(lambda x: (x > 0).astype(float) - (x < 0))
    no_gradient = "it has none"
    refusals = wants_floats(Sign)


class TestFloor(UnaryOperatorSuite):
    operator, function = Floor, staticmethod(lambda x: -((-x) // 1))
    no_gradient = "it has none"
    refusals = wants_floats(Floor)

    def reference(self, op, x):
        return [x // 1]


class TestCeil(UnaryOperatorSuite):
    operator, function = Ceil, staticmethod(lambda x: -(-x // 1))
    no_gradient = "it has none"
    refusals = wants_floats(Ceil)


class TestRound(UnaryOperatorSuite):
    operator, function = Round, staticmethod(lambda x: np.floor(x + 0.5))
    no_gradient = "it has none"
    refusals = wants_floats(Round)


def test_half_way_numbers_become_even():
    (y,) = run_plain(Round(), [np.float32([0.5, 1.5, -0.5, -2.5])])
    assert y.tolist() == [0, 2, 0, -2]


class TestClip(UnaryOperatorSuite):
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


class TestAbsGradient(UnaryGradientOperatorSuite):
    operator, slope = AbsGradient, staticmethod(lambda x: (x > 0).astype(float) - (x < 0))
    refusals = unlike(AbsGradient)


class TestClipGradient(UnaryGradientOperatorSuite):
    operator = ClipGradient
    refusals = unlike(ClipGradient)

    def draw(self, data):
        _, inputs = super().draw(data)
        y = np.clip(inputs[0], 0.5, 1.0)
        return ClipGradient(min=0.5, max=1.0), [y, inputs[1]]

    def reference(self, op, y, dy):
        return [np.where((y == 0.5) | (y == 1.0), 0, dy)]


def test_infinities_are_clipped():
    (y,) = run_plain(Clip(min=-1.0, max=1.0), [np.float32([np.inf, -np.inf])])
    assert y.tolist() == [1, -1]


def test_bounds_that_float16_does_not_have_are_infinite():
    x = np.float16([-65504, 2, np.inf])
    assert run_plain(Clip(), [x])[0].tolist() == x.tolist()
    assert run_plain(ClipGradient(), [x, np.ones(3, np.float16)])[0].tolist() == [1, 1, 0]


def test_sign_has_no_gradient():
    with pytest.raises(GradientError, match="'Sign' has no gradient"):
        operator_gradient(make_op("Sign", ["x"], ["y"]), {0: "dy"})
