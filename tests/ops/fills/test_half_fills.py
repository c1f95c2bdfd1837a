"""Float16ConstantFill and Float16UniformFill."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.fills.half_fills import Float16ConstantFill, Float16UniformFill
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, refusal

SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)


class TestFloat16ConstantFill(OperatorSuite):
    operator = Float16ConstantFill
    no_gradient = "no inputs"
    rtol = 2**-11
    refusals = (
        refusal(Float16ConstantFill(shape=(2, -1)), [], "extents must not be negative", ArgumentError),
        refusal(Float16ConstantFill(value=1e5), [], "float16 holds at most 65504, got value 100000", ArgumentError),
    )

    def draw(self, data):
        return Float16ConstantFill(shape=data.draw(SHAPES), value=0.3), []

    def reference(self, op):
        return [np.full(op.shape, 0.3)]


class TestFloat16UniformFill(OperatorSuite):
    operator = Float16UniformFill
    no_gradient = "no inputs"
    refusals = (
        refusal(Float16UniformFill(min=1.0, max=1.0), [], "min must be below max, got min=1.0, max=1.0", ArgumentError),
        refusal(Float16UniformFill(max=1e5), [], "float16 holds at most 65504", ArgumentError),
    )

    def draw(self, data):
        return Float16UniformFill(shape=data.draw(SHAPES), min=-1.0, max=3.0), []

    def reference(self, op):
        return [None]  # random: see below


@pytest.mark.parametrize("low, high", [(0.0, 1.0), (-1.0, 3.0)])
def test_uniform(low, high):
    (y,) = run_plain(Float16UniformFill(shape=(100, 200), min=low, max=high), [])
    assert y.dtype == np.float16
    y = (y.astype(np.float64) - low) / (high - low)
    assert 0 <= y.min() < 0.01 and 0.99 < y.max() <= 1
    assert abs(y.mean() - 0.5) < 6 * np.sqrt(1 / 12 / y.size) and abs(y.std() * np.sqrt(12) - 1) < 0.05
