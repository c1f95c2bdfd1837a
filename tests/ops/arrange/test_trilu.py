"""Trilu."""

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.arrange.trilu import Trilu
from suite import OperatorSuite, f32, floats, refusal


class TestTrilu(OperatorSuite):
    operator = Trilu
    refusals = (refusal(Trilu(), [f32(3)], "X must have"),)

    def draw(self, data):
        upper, k = data.draw(st.booleans()), data.draw(st.integers(-4, 4))
        return Trilu(upper=upper, k=k), [data.draw(floats((1, 2), (1, 4), (1, 4)))]

    def reference(self, op, x):
        return [np.triu(x, op.k) if op.upper else np.tril(x, op.k)]
