"""SumInt and SumElementsInt."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.math.int_sums import SumElementsInt, SumInt
from suite import OperatorSuite, f32, i32, i64, refusal

NUMBERS = st.lists(st.integers(-9, 9), min_size=4, max_size=4)
TYPES = st.sampled_from([np.int32, np.int64])


class TestSumInt(OperatorSuite):
    operator = SumInt
    wrt = ()
    no_gradient = "integers have none"
    refusals = (
        refusal(SumInt(), [i32(3), i32(4)], "input 1, X, must have the shape of X"),
        refusal(SumInt(), [i32(3), i64(3)], "input 1, X, must have the type of X, int32"),
        refusal(SumInt(), [i32(3).with_dtype(bool)], "input 0, X, must have elements of type float or int"),
    )

    def draw(self, data):
        dtype = data.draw(TYPES)
        rows = data.draw(st.lists(NUMBERS, min_size=1, max_size=3))
        return SumInt(), [dtype(row).reshape(2, 2) for row in rows]

    def reference(self, op, *xs):
        return [np.array([sum(column) for column in zip(*(x.ravel().tolist() for x in xs))]).reshape(2, 2)]


class TestSumElementsInt(OperatorSuite):
    operator = SumElementsInt
    wrt = ()
    no_gradient = "integers have none"
    refusals = (refusal(SumElementsInt(), [f32(3)], "X must have elements of type int"),)

    def draw(self, data):
        return SumElementsInt(), [data.draw(TYPES)(data.draw(NUMBERS))]

    def reference(self, op, x):
        return [np.array(sum(x.tolist()))]
