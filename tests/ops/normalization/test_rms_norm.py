"""RMSNorm and its gradient."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.normalization.rms_norm import RMSNorm, RMSNormGradient
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, refusal


def draw_norm(data, cls):
    op = cls(axis=data.draw(st.integers(-3, 2)), eps=data.draw(st.sampled_from([1e-3, 0.5])))
    x = data.draw(floats((1, 3), (1, 3), (2, 3)))
    return op, x, x.shape[op.axis % 3 :]


def roots(op, x):
    axis = op.axis % x.ndim
    return 1 / np.sqrt((x**2).mean(axis=tuple(range(axis, x.ndim))) + op.eps)


class TestRMSNorm(OperatorSuite):
    operator = RMSNorm
    wrt = (0, 1, 2)
    refusals = (
        refusal(RMSNorm(axis=2), [f32(3, 4), f32(4), f32(4)], r"axis must lie in \[-2, 2\)"),
        refusal(RMSNorm(eps=-1.0), [f32(3, 4), f32(4), f32(4)], "eps must not be negative", ArgumentError),
        refusal(RMSNorm(), [f32(3, 4), f32(3), f32(4)], r"gamma must have 4 elements, got shape \(3,\)"),
        refusal(RMSNorm(), [f32(3, 4), f32(4), f32(3)], r"beta must have 4 elements, got shape \(3,\)"),
    )

    def draw(self, data):
        op, x, shape = draw_norm(data, RMSNorm)
        return op, [x, data.draw(floats(*shape)), data.draw(floats(*shape))]

    def reference(self, op, x, gamma, beta):
        rrms = roots(op, x)
        return [x * rrms.reshape(*rrms.shape, *[1] * (x.ndim - rrms.ndim)) * gamma + beta, rrms]


class TestRMSNormGradient(OperatorSuite):
    operator = RMSNormGradient
    no_gradient = "a gradient operator"
    rtol, atol = 1e-3, 1e-4
    refusals = (
        refusal(RMSNormGradient(), [f32(3, 5), f32(3, 4), f32(4), f32(3)], r"X must have the shape of dY, \(3, 5\)"),
        refusal(RMSNormGradient(), [f32(3, 4), f32(3, 4), f32(4), f32(4)], r"rrms must have shape \(3,\) = \(\*A\)"),
    )

    def draw(self, data):
        op, x, shape = draw_norm(data, RMSNormGradient)
        return op, [data.draw(floats(*x.shape)), x, data.draw(floats(*shape)), np.asarray(roots(op, x))]

    def reference(self, op, dy, x, gamma, rrms):
        rows, r = x.reshape(rrms.size, -1), rrms.ravel()
        slopes = (dy * gamma).reshape(rows.shape)
        # d y_j / d x_k = r [j = k] - r^3 x_j x_k / n
        dx = [s @ (np.eye(len(x)) * v - v**3 * np.outer(x, x) / len(x)) for s, x, v in zip(slopes, rows, r)]
        flat = dy.reshape(rows.shape)
        dgamma = np.einsum("ij,ij,i->j", flat, rows, r).reshape(gamma.shape)
        return [np.reshape(dx, x.shape), dgamma, flat.sum(0).reshape(gamma.shape)]
