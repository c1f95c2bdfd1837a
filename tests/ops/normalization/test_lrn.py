"""Local response normalization and its gradient."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.normalization.lrn import LRN, LRNGradient
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, refusal


def draw_lrn(data, cls):
    args = {
        "size": data.draw(st.integers(1, 5)),
        "alpha": data.draw(st.sampled_from([0.0, 0.1, 0.5])),
        "beta": data.draw(st.sampled_from([0.5, 0.75])),
        "bias": data.draw(st.sampled_from([1.0, 2.0])),
        "order": data.draw(st.sampled_from(["NCHW", "NHWC"])),
    }
    return cls(**args), data.draw(floats((1, 2), (1, 4), (1, 2), (1, 4)))


def windows(op, channels):
    """Return which channels each channel sees, as a matrix of 0 and 1."""
    seen = np.zeros((channels, channels))
    for c in range(channels):
        first = c - (op.size - 1) // 2
        seen[c, max(0, first) : max(0, first + op.size)] = 1
    return seen


def scale_of(op, x):
    """Return X channels-last, and its scale."""
    values = x if op.order == "NHWC" else np.moveaxis(x, 1, -1)
    return values, op.bias + op.alpha / op.size * (values**2 @ windows(op, values.shape[-1]).T)


def back(op, y):
    return y if op.order == "NHWC" else np.moveaxis(y, -1, 1)


class TestLRN(OperatorSuite):
    operator = LRN
    refusals = (
        refusal(LRN(), [f32(3)], r"X must have shape \(N, C, \*S\)"),
        refusal(LRN(size=0), [f32(3, 4)], "size, in channels, must be at least 1", ArgumentError),
        refusal(LRN(order="HW"), [f32(3, 4)], "NCHW or NHWC", ArgumentError),
    )

    def draw(self, data):
        op, x = draw_lrn(data, LRN)
        return op.with_arity(1, data.draw(st.integers(1, 2))), [x]

    def draw_gradient(self, data):
        op, x = draw_lrn(data, LRN)
        return op.with_arity(1, 2), [x]

    def reference(self, op, x):
        values, scale = scale_of(op, x)
        return [back(op, values / scale**op.beta), back(op, scale)][: op.n_out]


class TestLRNGradient(OperatorSuite):
    operator = LRNGradient
    no_gradient = "a gradient operator"
    refusals = (refusal(LRNGradient(), [f32(2, 3), f32(2, 3), f32(2, 4)], r"dY must have the shape of X, \(2, 3\)"),)

    def draw(self, data):
        op, x = draw_lrn(data, LRNGradient)
        values, scale = scale_of(op, x.astype(np.float64))
        y = back(op, values / scale**op.beta).astype(np.float32)
        return op, [x, np.ascontiguousarray(y), data.draw(floats(*x.shape))]

    def reference(self, op, x, y, dy):
        values, scale = scale_of(op, x)
        slopes = dy if op.order == "NHWC" else np.moveaxis(dy, 1, -1)
        # d y_c / d x_k = [c = k] / scale_c ** beta - 2 alpha beta / size * x_c x_k / scale_c ** (beta + 1), k seen by c
        direct = slopes / scale**op.beta
        through = (slopes * values / scale ** (op.beta + 1)) @ windows(op, values.shape[-1])
        return [back(op, direct - 2 * op.alpha * op.beta / op.size * values * through)]
