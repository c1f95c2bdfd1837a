"""Softmax."""

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.activations.softmax import Softmax, SoftmaxGradient
from suite import OperatorSuite, f32, floats, refusal


def _axes(x, axis):
    return tuple(range(axis % x.ndim, x.ndim))


class TestSoftmax(OperatorSuite):
    operator = Softmax
    refusals = (refusal(Softmax(axis=2), [f32(3, 4)], r"axis must lie in \[-2, 2\)"),)

    def draw(self, data):
        x = data.draw(floats((1, 4), (1, 4), (1, 3), low=-30, high=30))
        return Softmax(axis=data.draw(st.integers(-3, 2))), [x]

    def draw_gradient(self, data):
        return Softmax(axis=data.draw(st.integers(-2, 1))), [data.draw(floats((1, 3), (1, 4)))]

    def reference(self, op, x):
        p = np.exp(x)
        return [p / p.sum(axis=_axes(x, op.axis), keepdims=True)]


class TestSoftmaxGradient(OperatorSuite):
    operator = SoftmaxGradient
    no_gradient = "a gradient operator"
    refusals = (refusal(SoftmaxGradient(), [f32(3, 4), f32(4, 3)], r"dY must have the shape of Y, \(3, 4\)"),)

    def draw(self, data):
        x = data.draw(floats((1, 4), (1, 4)))
        y = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
        return SoftmaxGradient(axis=1), [y, data.draw(floats(*x.shape))]

    def reference(self, op, y, dy):
        jacobian = np.einsum("ni,ij->nij", y, np.eye(y.shape[1])) - np.einsum("ni,nj->nij", y, y)
        return [np.einsum("nij,nj->ni", jacobian, dy)]
