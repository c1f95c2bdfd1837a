"""PRelu and its gradient."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.activations.prelu import PRelu, PReluGradient
from netbuilder.proto import ArgumentError, GradientError
from netbuilder.proto.arguments import make_op
from suite import OperatorSuite, f32, floats, refusal


def draw_prelu(data, cls):
    x = data.draw(floats((1, 3), (1, 3), (1, 4), avoid=0.0))
    op = cls(order=data.draw(st.sampled_from(["NCHW", "NHWC"])))
    channels = x.shape[1 if op.order == "NCHW" else 2]
    return op, x, data.draw(floats(data.draw(st.sampled_from([1, channels]))))


def spread(op, x, slope):
    """Return the slope of every element."""
    if slope.shape == (1,):
        return np.full(x.shape, slope[0])
    return np.broadcast_to(slope if op.order == "NHWC" else slope[:, None], x.shape)


class TestPRelu(OperatorSuite):
    operator = PRelu
    wrt = (0, 1)
    refusals = (
        refusal(PRelu(), [f32(2, 3, 4), f32(4)], r"slope must have shape \(1,\) or \(3,\)"),
        refusal(PRelu(), [f32(4), f32(4)], "has no channels"),
        refusal(PRelu(order="WH"), [f32(2, 3), f32(3)], "NCHW or NHWC", ArgumentError),
    )

    def draw(self, data):
        op, x, slope = draw_prelu(data, PRelu)
        return op, [x, slope]

    def reference(self, op, x, slope):
        return [np.maximum(x, 0) + spread(op, x, slope) * np.minimum(x, 0)]


class TestPReluGradient(OperatorSuite):
    operator = PReluGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(PReluGradient(), [f32(2, 3), f32(2, 3), f32(2, 4), f32(1)], r"X must have the shape of Y, \(2, 3\)"),
        refusal(PReluGradient(), [f32(2, 3), f32(2, 3), f32(2, 3), f32(2)], "slope must have shape"),
    )

    def draw(self, data):
        op, x, slope = draw_prelu(data, PReluGradient)
        y = np.where(x > 0, x, spread(op, x, slope) * x).astype(np.float32)
        return op, [y, data.draw(floats(*x.shape)), x, slope]

    def reference(self, op, y, dy, x, slope):
        below = dy * np.minimum(x, 0)
        if slope.shape == (1,):
            d_slope = below.sum(keepdims=True).reshape(1)
        else:
            d_slope = below.sum(axis=(0, 2) if op.order == "NCHW" else (0, 1))
        return [dy * np.where(x > 0, 1, spread(op, x, slope)), d_slope]


def test_in_place_there_is_no_gradient():
    with pytest.raises(
        GradientError, match=r"overwrites \['x'\], which its gradient reads; give the output another name"
    ):
        operator_gradient(make_op("PRelu", ["x", "s"], ["x"]), {0: "x_grad"})
