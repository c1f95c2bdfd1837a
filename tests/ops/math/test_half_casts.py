"""FloatToHalf and HalfToFloat."""

import numpy as np
import pytest

from checks import run_plain
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.core.operator import TensorSpec, encode
from netbuilder.ops.math.half_casts import FloatToHalf, HalfToFloat
from suite import OperatorSuite, f32, floats, i32, refusal


class TestFloatToHalf(OperatorSuite):
    operator = FloatToHalf
    no_gradient = "float16 is too coarse for differences; the operators are compared below"
    rtol = 2**-11
    refusals = (
        refusal(FloatToHalf(), [i32(2)], "X must have elements of type float32"),
        refusal(FloatToHalf(), [TensorSpec((2,), np.dtype(np.float16))], "got float16"),
    )

    def draw(self, data):
        return FloatToHalf(), [data.draw(floats((0, 3), (1, 4)))]

    def reference(self, op, x):
        return [x]


class TestHalfToFloat(OperatorSuite):
    operator = HalfToFloat
    no_gradient = "as FloatToHalf"
    rtol = atol = 0.0
    refusals = (refusal(HalfToFloat(), [f32(2)], "X must have elements of type float16"),)

    def draw(self, data):
        return HalfToFloat(), [data.draw(floats((0, 3), (1, 4))).astype(np.float16)]

    def reference(self, op, x):
        return [x]


SPECIAL = np.float32([65519, 65520, -1e6, np.inf, np.nan, 1 + 2**-11, 1 + 3 * 2**-11, 6e-8, 1e-8])


@pytest.mark.parametrize(
    ("clip", "large"), [(False, [65504, np.inf, -np.inf, np.inf]), (True, [65504, 65504, -65504, 65504])]
)
def test_rounding(clip, large):
    """Rounded to nearest, ties to even; subnormal numbers are kept; others become infinite, or are clipped."""
    (y,) = run_plain(FloatToHalf(clip=clip), [SPECIAL])
    want = np.float16([*large, np.nan, 1, 1 + 2**-9, 2**-24, 0])
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize(("op", "back"), [(FloatToHalf(clip=True), "HalfToFloat"), (HalfToFloat(), "FloatToHalf")])
def test_the_gradient_is_the_other_cast(op, back):
    made, where = operator_gradient(encode(op, ["x"], ["y"]), {0: "y_grad"})
    assert [(o.type, list(o.input), list(o.output), len(o.arg)) for o in made] == [(back, ["y_grad"], ["x_grad"], 0)]
    assert where == {0: "x_grad"}
