"""SinusoidPositionEncoding."""

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.fills.position_encoding import SinusoidPositionEncoding
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, TensorSpec, f32, i32, refusal


class TestSinusoidPositionEncoding(OperatorSuite):
    operator = SinusoidPositionEncoding
    no_gradient = "it has none"
    rtol, atol = 1e-4, 1e-5
    refusals = (
        refusal(SinusoidPositionEncoding(), [i32(3)], r"positions must have shape \(M, K\)"),
        refusal(
            SinusoidPositionEncoding(),
            [TensorSpec((3, 1), np.dtype(bool))],
            "positions must have elements of type float or int",
        ),
        refusal(SinusoidPositionEncoding(embedding_size=0), [f32(3, 1)], "at least 1", ArgumentError),
        refusal(SinusoidPositionEncoding(alpha=0), [f32(3, 1)], "alpha positive", ArgumentError),
    )

    def draw(self, data):
        op = SinusoidPositionEncoding(
            embedding_size=data.draw(st.integers(1, 7)), alpha=data.draw(st.sampled_from([100.0, 10000.0])),
            amplitude=data.draw(st.sampled_from([1.0, 2.0])),
        )  # fmt: skip
        steps, kind = data.draw(st.integers(0, 5)), data.draw(st.sampled_from([np.int32, np.int64, np.float32]))
        return op, [np.tile(np.arange(steps, dtype=kind)[:, None], (1, data.draw(st.integers(1, 2))))]

    def reference(self, op, positions):
        y = np.zeros((*positions.shape, op.embedding_size))
        for *at, i in np.ndindex(y.shape):
            angle = positions[tuple(at)] / op.alpha ** (i / op.embedding_size)
            y[(*at, i)] = op.amplitude * (np.cos(angle) if i % 2 else np.sin(angle))
        return [y]
