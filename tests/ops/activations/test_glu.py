"""Glu."""

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.activations.glu import Glu
from suite import OperatorSuite, f32, floats, i32, refusal


class TestGlu(OperatorSuite):
    operator = Glu
    no_gradient = "it has none in Caffe2"
    refusals = (
        refusal(Glu(), [f32(2, 3)], "must be even, got 3"),
        refusal(Glu(dim=2), [f32(2, 4)], r"dim must lie in \[-2, 2\) for X of shape \(2, 4\)"),
        refusal(Glu(), [i32(2)], "one floating type"),
    )

    def draw(self, data):
        axis, shape = data.draw(st.integers(0, 2)), [2, 3, 1]
        shape[axis] = 2 * data.draw(st.integers(0, 3))
        return Glu(dim=axis - 3 if data.draw(st.booleans()) else axis), [data.draw(floats(*shape, low=-30, high=30))]

    def reference(self, op, x):
        value, gate = np.split(x, 2, axis=op.dim)
        return [value / (1 + np.exp(-gate))]
