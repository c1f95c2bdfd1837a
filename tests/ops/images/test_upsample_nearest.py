"""UpsampleNearest and its gradient."""

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.images.upsample_nearest import UpsampleNearest, UpsampleNearestGradient
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, i32, refusal


class TestUpsampleNearest(OperatorSuite):
    operator = UpsampleNearest
    refusals = (
        refusal(UpsampleNearest(), [f32(2, 3, 4)], r"X must have shape \(N, C, H, W\)"),
        refusal(UpsampleNearest(), [i32(2, 3, 4, 4)], "one floating type"),
        refusal(UpsampleNearest(scale=0), [f32(2, 3, 4, 4)], "at least 1, got 0", ArgumentError),
    )

    def draw(self, data):
        return UpsampleNearest(scale=data.draw(st.integers(1, 3))), [data.draw(floats((0, 2), 2, (1, 3), (1, 3)))]

    def reference(self, op, x):
        return [np.repeat(np.repeat(x, op.scale, axis=2), op.scale, axis=3)]


class TestUpsampleNearestGradient(OperatorSuite):
    operator = UpsampleNearestGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(UpsampleNearestGradient(), [f32(1, 1, 2, 2), f32(1, 1, 4, 2)], r"dY must have shape \(1, 1, 4"),
    )

    def draw(self, data):
        op, x = (
            UpsampleNearestGradient(scale=data.draw(st.integers(1, 3))),
            data.draw(floats((1, 2), 2, (1, 3), (1, 3))),
        )
        return op, [x, data.draw(floats(*x.shape[:2], x.shape[2] * op.scale, x.shape[3] * op.scale))]

    def reference(self, op, x, dy):
        dx = np.zeros(x.shape)
        for i, j in np.ndindex(dy.shape[2:]):
            dx[:, :, i // op.scale, j // op.scale] += dy[:, :, i, j]
        return [dx]
