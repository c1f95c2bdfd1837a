"""ConvRelu and SumRelu."""

import numpy as np
import pytest
from hypothesis import strategies as st

from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.core.fused_activation import as_fused
from netbuilder.ops.windows.fused import ConvRelu, SumRelu
from netbuilder.proto import ArgumentError, GradientError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, floats, refusal
from window_reference import correlate


class TestConvRelu(OperatorSuite):
    operator = ConvRelu
    no_gradient = "it has none in Caffe2"
    rtol, atol = 1e-4, 1e-5
    refusals = (refusal(ConvRelu(kernel=2), [f32(1, 2, 4, 4), f32(3, 1, 2, 2)], "has 2 channels, W .* takes 1"),)

    def draw(self, data):
        inputs = [data.draw(floats(2, 2, 4, 3)), data.draw(floats(3, 2, 2, 2))]
        return ConvRelu(kernel=2), [*inputs, data.draw(floats(3))][: 2 + data.draw(st.integers(0, 1))]

    def reference(self, op, x, w, b=None):
        y = correlate(x, w, (1, 1), (1, 1), (0, 0), (0, 0), 1)
        return [np.maximum(0, y if b is None else y + b[:, None, None])]


class TestSumRelu(OperatorSuite):
    operator = SumRelu
    no_gradient = "it has none in Caffe2"
    refusals = (refusal(SumRelu(), [f32(2), f32(3)], "shape"),)

    def draw(self, data):
        shape = data.draw(st.sampled_from([(3,), (2, 2), ()]))
        return SumRelu(), [data.draw(floats(*shape)) for _ in range(data.draw(st.integers(1, 3)))]

    def reference(self, op, *xs):
        return [np.maximum(0, sum(xs))]


@pytest.mark.parametrize("op", [make_op("ConvRelu", ["x", "w"], ["y"]), make_op("SumRelu", ["x"], ["y"])])
def test_they_are_for_prediction(op):
    with pytest.raises(GradientError, match=f"operator '{op.type}' has no gradient"):
        operator_gradient(op, {0: "dy"})


def test_a_conv_that_carries_its_relu_is_run_as_one():
    w, x = np.float32([[[[-1.0]]]]), np.float32([[[[2.0, -3.0]]]])
    for engine, want in (("NNPACK", [0.0, 3.0]), ("", [-2.0, 3.0])):  # only the engine reads it, in Caffe2 too
        op = make_op("Conv", ["x", "w"], ["y"], kernel=1, activation="Relu", engine=engine)
        assert as_fused(op).type == ("ConvRelu" if engine else "Conv") and op.type == "Conv"
        workspace = Workspace()
        workspace.feed("x", x)
        workspace.feed("w", w)
        workspace.run_operator_once(op)
        assert workspace.fetch("y").ravel().tolist() == want
    plain = make_op("Conv", ["x", "w"], ["y"], kernel=1, activation="identity", engine="NNPACK")
    assert as_fused(plain) is plain


def test_another_activation_is_refused():
    op = make_op("Conv", ["x", "w"], ["y"], kernel=1, activation="Tanh", engine="NNPACK")
    with pytest.raises(ArgumentError, match="activation must be 'Relu' or 'identity', got 'Tanh'"):
        as_fused(op)
