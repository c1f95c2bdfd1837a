"""NormalizePlanarYUV."""

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.images.normalize_planar_yuv import NormalizePlanarYUV
from suite import OperatorSuite, f32, floats, refusal


class TestNormalizePlanarYUV(OperatorSuite):
    operator = NormalizePlanarYUV
    no_gradient = "it has none"
    refusals = (
        refusal(NormalizePlanarYUV(), [f32(2, 3, 4), f32(1, 3), f32(1, 3)], r"X must have shape \(N, C, H, W\)"),
        refusal(NormalizePlanarYUV(), [f32(2, 3, 4, 4), f32(3), f32(1, 3)], r"M must have shape \(R, 3\) = \(R, C\)"),
        refusal(
            NormalizePlanarYUV(), [f32(2, 3, 4, 4), f32(1, 3), f32(1, 2)], r"S must have shape \(Q, 3\) = \(Q, C\)"
        ),
    )

    def draw(self, data):
        rows = data.draw(st.integers(1, 2))
        return NormalizePlanarYUV(), [
            data.draw(floats(2, 3, 2, 2)),
            data.draw(floats(rows, 3)),
            data.draw(floats(rows, 3, low=0.5)),
        ]

    def reference(self, op, x, mean, deviation):
        return [np.stack([(x[:, c] - mean[0, c]) / deviation[0, c] for c in range(3)], axis=1)]
