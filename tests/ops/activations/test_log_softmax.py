"""LogSoftmax along each axis, and the softmax that its exponential is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from netbuilder.model import ModelHelper, brew
from netbuilder.ops.activations.log_softmax import LogSoftmax, LogSoftmaxGradient
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, floats, refusal


def drawn(data):
    shape = [data.draw(st.integers(1, 4)) for _ in range(data.draw(st.integers(1, 4)))]
    return shape, data.draw(st.integers(-len(shape), len(shape) - 1))


def softmax(x, axis):
    p = np.exp(x - x.max(axis=axis, keepdims=True))
    return p / p.sum(axis=axis, keepdims=True)


class TestLogSoftmax(OperatorSuite):
    operator = LogSoftmax
    refusals = (refusal(LogSoftmax(axis=2), [f32(2, 3)], r"axis must lie in \[-2, 2\)"),)

    def draw(self, data):
        shape, axis = drawn(data)
        return LogSoftmax(axis=axis), [data.draw(floats(*shape))]

    def reference(self, op, x):
        return [np.log(softmax(x, op.axis))]


class TestLogSoftmaxGradient(OperatorSuite):
    operator = LogSoftmaxGradient
    no_gradient = "a gradient operator"
    refusals = (refusal(LogSoftmaxGradient(), [f32(2, 3), f32(2, 2)], "dY must have the shape of Y"),)

    def draw(self, data):
        shape, axis = drawn(data)
        y = np.log(softmax(data.draw(floats(*shape)), axis))
        return LogSoftmaxGradient(axis=axis), [y, data.draw(floats(*shape))]

    def reference(self, op, y, dy):
        return [dy - np.exp(y) * dy.sum(axis=op.axis, keepdims=True)]


@pytest.mark.parametrize("axis", [0, 1, -2, -1])
def test_softmax_along_one_axis(axis):
    model = ModelHelper("softmax")
    brew.softmax(model, "x", "p", axis=axis, one_axis=True)
    workspace = Workspace()
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32) * 30
    workspace.feed("x", x)
    workspace.run_net_once(model.net)
    np.testing.assert_allclose(workspace.fetch("p"), softmax(x.astype(np.float64), axis), rtol=2e-5, atol=1e-12)
