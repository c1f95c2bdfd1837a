"""Normalize, NormalizeL1, LpNorm, and gradients."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.normalization.normalize import LpNorm, LpNormGradient, Normalize, NormalizeGradient, NormalizeL1
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, i32, refusal


def draw_axis(data, cls):
    return cls(axis=data.draw(st.integers(-2, 1))), data.draw(floats((1, 4), (1, 4), avoid=0.0))


class TestNormalize(OperatorSuite):
    operator = Normalize
    refusals = (
        refusal(Normalize(axis=2), [f32(3, 4)], r"axis must lie in \[-2, 2\)"),
        refusal(Normalize(), [i32(3)], "one floating type"),
    )

    def draw(self, data):
        op, x = draw_axis(data, Normalize)
        return op, [x]

    def reference(self, op, x):
        return [np.apply_along_axis(lambda v: v / np.linalg.norm(v), op.axis, x)]


class TestNormalizeL1(OperatorSuite):
    operator = NormalizeL1
    wrt = ()
    no_gradient = "Caffe2 has none"
    refusals = (refusal(NormalizeL1(axis=-3), [f32(3, 4)], r"axis must lie in \[-2, 2\)"),)

    def draw(self, data):
        op, x = draw_axis(data, NormalizeL1)
        return op, [x]

    def reference(self, op, x):
        return [np.apply_along_axis(lambda v: v / np.linalg.norm(v, 1), op.axis, x)]


class TestNormalizeGradient(OperatorSuite):
    operator = NormalizeGradient
    no_gradient = "a gradient operator"
    atol = 1e-5
    refusals = (refusal(NormalizeGradient(), [f32(3, 4), f32(3, 5)], r"dY must have the shape of X, \(3, 4\)"),)

    def draw(self, data):
        op, x = draw_axis(data, NormalizeGradient)
        return op, [x, data.draw(floats(*x.shape))]

    def reference(self, op, x, dy):
        vectors, slopes = (np.moveaxis(a, op.axis, 1) for a in (x, dy))
        found = np.empty(vectors.shape)
        for i, (v, d) in enumerate(zip(vectors, slopes)):
            n = np.linalg.norm(v)
            found[i] = (np.eye(len(v)) / n - np.outer(v, v) / n**3) @ d
        return [np.moveaxis(found, 1, op.axis)]


def test_vectors_of_zeros_stay_zero():
    zeros = np.zeros((2, 3), np.float32)
    for op in (Normalize(), NormalizeL1()):
        assert not run_plain(op, [zeros])[0].any()


def draw_power(data, cls):
    op = cls(p=data.draw(st.sampled_from([1, 2])), average=data.draw(st.booleans()))
    return op, data.draw(floats((1, 4), (1, 4), avoid=0.0))


class TestLpNorm(OperatorSuite):
    operator = LpNorm
    refusals = (
        refusal(LpNorm(p=3), [f32(3)], "p must be 1 or 2, got 3", ArgumentError),
        refusal(LpNorm(), [i32(3)], "one floating type"),
    )

    def draw(self, data):
        op, x = draw_power(data, LpNorm)
        return op, [x]

    def reference(self, op, x):
        total = sum(abs(v) ** op.p for v in x.ravel())
        return [np.array([total / x.size if op.average else total])]


class TestLpNormGradient(OperatorSuite):
    operator = LpNormGradient
    no_gradient = "a gradient operator"
    refusals = (refusal(LpNormGradient(), [f32(3), f32(3)], r"dY must have one element, got shape \(3,\)"),)

    def draw(self, data):
        op, x = draw_power(data, LpNormGradient)
        return op, [x, data.draw(floats(1))]

    def reference(self, op, x, dy):
        slopes = np.where(x > 0, 1, -1) if op.p == 1 else 2 * x
        return [slopes * dy / (x.size if op.average else 1)]
