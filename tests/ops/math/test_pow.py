"""Pow."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import interpret
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.math.pow import Pow, PowGradient
from netbuilder.proto import ArgumentError, GradientError
from netbuilder.proto.arguments import make_op
from suite import OperatorSuite, f32, floats, i32, refusal


class TestPow(OperatorSuite):
    operator = Pow
    wrt = (0, 1)
    rtol = 1e-4  # NumPy's float32 power is off by a few units in the last place
    refusals = (
        refusal(Pow(), [f32(2)], "argument exponent, or a second input", ArgumentError),
        refusal(Pow(exponent=2.0), [i32(2)], "floating-point numbers"),
        refusal(Pow(), [f32(2, 3), f32(2)], "do not broadcast"),
        refusal(Pow(broadcast=True), [f32(2, 3), f32(2)], "consecutive axes of A"),
    )

    def draw(self, data):
        x = data.draw(floats((1, 3), 2, low=0.3))
        joined = data.draw(st.sampled_from([None, Pow(), Pow(broadcast=True)]))
        if joined is None:
            return Pow(exponent=data.draw(st.sampled_from([2.0, 0.5, -1.0, 3.0, 1.0, 0.0, 1.7]))), [x]
        shape = (2,) if joined.broadcast else data.draw(st.sampled_from([x.shape, (2,), (1,), (1, 2), ()]))
        return joined, [x, data.draw(floats(*shape))]

    def reference(self, op, x, e=None):
        return [np.exp(np.log(x) * (op.exponent if e is None else e))]


class TestPowGradient(OperatorSuite):
    operator = PowGradient
    no_gradient = "it is a gradient"
    refusals = (
        refusal(PowGradient(), [f32(2, 3), f32(3), f32(3), f32(3)], "dY must have the shape of the result"),
        refusal(PowGradient(), [f32(2, 3), f32(2, 3), f32(2), f32(2, 3)], "do not broadcast"),
    )

    def draw(self, data):
        x = data.draw(floats(3, 2, low=0.3))
        e = data.draw(floats(*data.draw(st.sampled_from([(3, 2), (2,), (3, 1), ()]))))
        return PowGradient(), [data.draw(floats(3, 2)), x, e, (x**e).astype(np.float32)]

    def reference(self, op, dy, x, e, y):
        de = dy * y * np.log(x)
        for axis in range(2):
            if e.ndim < 2 - axis or e.shape[axis - 2] == 1:
                de = de.sum(axis=axis, keepdims=True)
        return [dy * e * x ** (e - 1), de.reshape(e.shape)]


def test_gradient_in_place():
    """X is overwritten then, but not the output's gradient, which has the name of the input's."""
    ops, where = operator_gradient(make_op("Pow", ["x"], ["x"], exponent=3.0), {0: "x_grad"})
    x, dy = np.array([1.5, 0.5]), np.array([2.0, -1.0])
    found = interpret(ops, {"x": x**3, "x_grad": dy})
    np.testing.assert_allclose(found[where[0]], 3 * x**2 * dy)


@pytest.mark.parametrize(
    "op",
    [make_op("Pow", ["x", "e"], ["x"]), make_op("Pow", ["x"], ["x"], exponent=0.0)],
    ids=["two inputs", "exponent 0"],
)
def test_gradient_in_place_is_refused_where_x_cannot_be_had_back(op):
    with pytest.raises(GradientError, match="output"):
        operator_gradient(op, {0: "x_grad"})
