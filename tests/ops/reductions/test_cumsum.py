"""CumSum."""

import numpy as np
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.reductions.cumsum import CumSum
from suite import OperatorSuite, f32, floats, refusal


class TestCumSum(OperatorSuite):
    operator = CumSum
    refusals = (refusal(CumSum(axis=2), [f32(2, 3)], "axis must lie in"),)

    def draw(self, data):
        exclusive, reverse = data.draw(st.booleans()), data.draw(st.booleans())
        return CumSum(axis=data.draw(st.integers(-2, 1)), exclusive=exclusive, reverse=reverse), [
            data.draw(floats((1, 4), (1, 4)))
        ]

    def reference(self, op, x):
        x = np.moveaxis(x, op.axis, 0)
        y = np.zeros(x.shape)
        for i in range(len(x)):
            for j in range(len(x)):
                before = j > i if op.reverse else j < i
                y[i] += x[j] * (before or (j == i and not op.exclusive))
        return [np.moveaxis(y, 0, op.axis)]


def test_infinities_and_integers():
    (y,) = run_plain(CumSum(exclusive=True), [np.float32([1, np.inf, 2])])
    assert y.tolist() == [0, 1, np.inf]
    (y,) = run_plain(CumSum(reverse=True), [np.int32([1, 2, 3])])
    assert y.tolist() == [6, 5, 3] and y.dtype == np.int32
