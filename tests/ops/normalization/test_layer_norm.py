"""LayerNorm and its gradient."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.normalization.layer_norm import C10LayerNorm_DontUseThisOpYet, LayerNorm, LayerNormGradient
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, refusal


def rows_of(op, x):
    axis = op.axis % x.ndim
    return x.reshape(int(np.prod(x.shape[:axis])), -1), (*x.shape[:axis], 1)


def draw_norm(data, cls):
    affine = data.draw(st.booleans())
    op = cls(
        axis=data.draw(st.integers(-3, 2)), epsilon=data.draw(st.sampled_from([1e-5, 0.1])), elementwise_affine=affine
    )
    x = data.draw(floats((1, 3), (2, 3), (2, 3)))
    shape = x.shape[op.axis % 3 :]
    return op, x, [data.draw(floats(*shape)) for _ in range(2)] if affine else []


class TestLayerNorm(OperatorSuite):
    operator = LayerNorm
    wrt = (0, 1, 2)
    gradient_atol = 1e-5
    rtol, atol = 1e-4, 1e-5
    refusals = (
        refusal(LayerNorm(axis=2), [f32(3, 4)], r"axis must lie in \[-2, 2\)", n_out=3),
        refusal(LayerNorm(epsilon=-1.0), [f32(3, 4)], "epsilon must not be negative", ArgumentError, n_out=3),
        refusal(LayerNorm(elementwise_affine=True), [f32(3, 4)], "X, gamma and beta, got 1 input", n_out=3),
        refusal(
            LayerNorm(elementwise_affine=True),
            [f32(3, 4), f32(3), f32(4)],
            r"gamma must have 4 elements, got shape \(3,\)",
            n_out=3,
        ),
        refusal(LayerNorm(), [f32(3, 0)], "no elements to normalize", n_out=3),
    )

    def draw(self, data):
        op, x, affine = draw_norm(data, self.operator)
        return op.with_arity(1 + len(affine), 3), [x, *affine]

    def reference(self, op, x, *affine):
        rows, shape = rows_of(op, x)
        mean, std = rows.mean(axis=1), np.sqrt(rows.var(axis=1) + op.epsilon)
        y = ((rows.T - mean) / std).T.reshape(x.shape)
        if affine:
            y = y * affine[0] + affine[1]
        return [y, mean.reshape(shape), std.reshape(shape)]


class TestC10LayerNorm(TestLayerNorm):
    operator = C10LayerNorm_DontUseThisOpYet
    no_gradient = "as in Caffe2"
    refusals = (refusal(operator(axis=2), [f32(3, 4)], r"C10LayerNorm_DontUseThisOpYet: axis must lie in", n_out=3),)


class TestLayerNormGradient(OperatorSuite):
    operator = LayerNormGradient
    no_gradient = "a gradient operator"
    rtol, atol = 1e-3, 1e-4
    refusals = (
        refusal(
            LayerNormGradient(),
            [f32(3, 4), f32(3, 4), f32(3, 1), f32(3, 1), f32(3, 5)],
            r"X must have the shape of dY, \(3, 4\)",
        ),
        refusal(
            LayerNormGradient(),
            [f32(3, 4), f32(3, 4), f32(4), f32(3, 1), f32(3, 4)],
            r"mean must have shape \(3, 1\) = \(\*A, 1\)",
        ),
        refusal(
            LayerNormGradient(elementwise_affine=True),
            [f32(3, 4), f32(3, 4), f32(3), f32(3), f32(3, 4)],
            "takes 6 inputs",
        ),
    )

    def draw(self, data):
        op, x, affine = draw_norm(data, LayerNormGradient)
        rows, shape = rows_of(op, x)
        std = np.sqrt(rows.var(axis=1) + op.epsilon)
        dy = data.draw(floats(*x.shape))
        op.with_arity(5 + len(affine[:1]), 3 if affine else 1)
        return op, [dy, x, rows.mean(axis=1).reshape(shape), std.reshape(shape), x, *affine[:1]]

    def reference(self, op, dy, y, mean, std, x, *gamma):
        rows, _ = rows_of(op, x)
        slopes, _ = rows_of(op, dy * gamma[0] if gamma else dy)
        dx = np.empty(rows.shape)
        for i, (row, m, s) in enumerate(zip(rows, mean.ravel(), std.ravel())):
            # d y_j / d x_k = ([j = k] - 1 / n - (x_j - m) (x_k - m) / (n s^2)) / s
            n, apart = len(row), row - m
            jacobian = (np.eye(n) - 1 / n - np.outer(apart, apart) / (n * s**2)) / s
            dx[i] = slopes[i] @ jacobian
        normal = ((rows.T - mean.ravel()) / std.ravel()).T
        found = [dx.reshape(x.shape)]
        if gamma:
            shape, (flat, _) = gamma[0].shape, rows_of(op, dy)
            found += [(flat * normal).sum(0).reshape(shape), flat.sum(0).reshape(shape)]
        return found
