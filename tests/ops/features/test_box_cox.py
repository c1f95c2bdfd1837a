"""BatchBoxCox."""

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.features.box_cox import BatchBoxCox
from suite import OperatorSuite, f32, floats, i32, refusal


class TestBatchBoxCox(OperatorSuite):
    operator = BatchBoxCox
    no_gradient = "it has none, as in Caffe2"
    rtol, atol = 1e-4, 1e-4
    refusals = (
        refusal(BatchBoxCox(), [f32(3, 2), f32(3), f32(2)], "lambda1 must have 2 elements"),
        refusal(BatchBoxCox(), [f32(3, 2), i32(2), f32(2)], "one floating type"),
        refusal(BatchBoxCox(), [f32(), f32(1), f32(1)], r"data must have shape \(N, \*S\)"),
    )

    def draw(self, data):
        x = data.draw(floats((0, 4), (1, 3), low=0.1))
        rng = np.random.default_rng(data.draw(st.integers(0, 99)))
        powers = rng.choice(np.float32([0, 0.5, 2, -1]), x.shape[1])
        return BatchBoxCox(), [x, powers, rng.uniform(-0.5, 0.5, x.shape[1]).astype(np.float32)]

    def reference(self, op, x, powers, shifts):
        y = np.zeros(x.shape)
        for i, j in np.ndindex(x.shape):
            shifted = max(x[i, j] + shifts[j], 1e-6)
            y[i, j] = np.log(shifted) if powers[j] == 0 else (shifted ** powers[j] - 1) / powers[j]
        return [y]
