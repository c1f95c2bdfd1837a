"""ElementwiseLinear and AffineChannel, and their gradients."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.math.affine import (
    AffineChannel,
    AffineChannelGradient,
    ElementwiseLinear,
    ElementwiseLinearGradient,
)
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, refusal


def draw_features(data, cls):
    op, x = cls(axis=data.draw(st.integers(-3, 2))), data.draw(floats((1, 3), (1, 3), (1, 3)))
    return op, x, int(np.prod(x.shape[op.axis % 3 :]))


def rows_of(op, x):
    return x.reshape(-1, int(np.prod(x.shape[op.axis % 3 :])))


class TestElementwiseLinear(OperatorSuite):
    operator = ElementwiseLinear
    wrt = (0, 1, 2)
    refusals = (
        refusal(ElementwiseLinear(), [f32(3, 4), f32(3), f32(4)], r"w must have shape \(4,\)"),
        refusal(ElementwiseLinear(), [f32(3, 4), f32(4), f32(4, 1)], r"b must have the shape of w, \(4,\)"),
        refusal(ElementwiseLinear(axis=2), [f32(3, 4), f32(4), f32(4)], "axis must lie in"),
    )

    def draw(self, data):
        op, x, n = draw_features(data, ElementwiseLinear)
        return op, [x, data.draw(floats(n)), data.draw(floats(n))]

    def reference(self, op, x, w, b):
        return [np.array([row * w + b for row in rows_of(op, x)]).reshape(x.shape)]


class TestElementwiseLinearGradient(OperatorSuite):
    operator = ElementwiseLinearGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(ElementwiseLinearGradient(), [f32(3, 5), f32(3, 4), f32(4)], r"X must have the shape of dY, \(3, 5\)"),
    )

    def draw(self, data):
        op, x, n = draw_features(data, ElementwiseLinearGradient)
        return op, [data.draw(floats(*x.shape)), x, data.draw(floats(n))]

    def reference(self, op, dy, x, w):
        slopes, rows = rows_of(op, dy), rows_of(op, x)
        return [np.reshape([s * w for s in slopes], x.shape), np.einsum("ij,ij->j", slopes, rows), sum(slopes)]


def draw_images(data, cls):
    op = cls(order=data.draw(st.sampled_from(["NCHW", "NHWC"])), is_learnable=data.draw(st.booleans()))
    x = data.draw(floats(*data.draw(st.lists(st.integers(1, 3), min_size=2, max_size=4))))
    return op, x, x.shape[1 if op.order == "NCHW" else -1]


def last(op, x):
    return np.moveaxis(x, 1, -1) if op.order == "NCHW" else x


def back(op, x):
    return np.moveaxis(x, -1, 1) if op.order == "NCHW" else x


class TestAffineChannel(OperatorSuite):
    operator = AffineChannel
    wrt = (0, 1, 2)
    refusals = (
        refusal(AffineChannel(), [f32(2, 3, 4), f32(4), f32(3)], r"scale must have shape \(3,\)"),
        refusal(AffineChannel(), [f32(3), f32(3), f32(3)], r"X must have shape \(N, C, \*S\)"),
        refusal(AffineChannel(order="?"), [f32(2, 3), f32(3), f32(3)], "NCHW or NHWC", ArgumentError),
    )

    def draw(self, data):
        op, x, n = draw_images(data, AffineChannel)
        return op, [x, data.draw(floats(n)), data.draw(floats(n))]

    def draw_gradient(self, data):
        op, inputs = self.draw(data)
        return AffineChannel(order=op.order, is_learnable=True), inputs

    def reference(self, op, x, scale, bias):
        return [back(op, last(op, x) * scale + bias)]


class TestAffineChannelGradient(OperatorSuite):
    operator = AffineChannelGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(AffineChannelGradient(is_learnable=True), [f32(2, 3), f32(3)], "takes 3 inputs", n_out=3),
        refusal(AffineChannelGradient(), [f32(2, 3), f32(4)], r"scale must have shape \(3,\)"),
        refusal(
            AffineChannelGradient(is_learnable=True), [f32(2, 3), f32(2, 4), f32(3)], "dY must have the shape", n_out=3
        ),
    )

    def draw(self, data):
        op, x, n = draw_images(data, AffineChannelGradient)
        inputs = [data.draw(floats(*x.shape)), *([x] if op.is_learnable else []), data.draw(floats(n))]
        return op.with_arity(len(inputs), 3 if op.is_learnable else 1), inputs

    def reference(self, op, dy, *others):
        *x, scale = others
        found = [back(op, last(op, dy) * scale)]
        if x:
            slopes, values = (last(op, a).reshape(-1, len(scale)) for a in (dy, x[0]))
            found += [np.einsum("ij,ij->j", slopes, values), sum(slopes)]
        return found
