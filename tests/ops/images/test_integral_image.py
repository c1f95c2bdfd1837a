"""IntegralImage and its gradient."""

import numpy as np

from netbuilder.ops.images.integral_image import IntegralImage, IntegralImageGradient
from suite import OperatorSuite, f32, floats, i32, refusal


class TestIntegralImage(OperatorSuite):
    operator = IntegralImage
    refusals = (
        refusal(IntegralImage(), [f32(2, 3, 4)], r"X must have shape \(N, C, H, W\)"),
        refusal(IntegralImage(), [i32(2, 3, 4, 4)], "one floating type"),
    )

    def draw(self, data):
        return IntegralImage(), [data.draw(floats((0, 2), (1, 2), (0, 4), (1, 4)))]

    def reference(self, op, x):
        y = np.zeros((*x.shape[:2], x.shape[2] + 1, x.shape[3] + 1))
        for i, j in np.ndindex(y.shape[2:]):
            y[:, :, i, j] = x[:, :, :i, :j].sum(axis=(2, 3))
        return [y]


class TestIntegralImageGradient(OperatorSuite):
    operator = IntegralImageGradient
    no_gradient = "a gradient operator"
    refusals = (refusal(IntegralImageGradient(), [f32(1, 1, 2, 2), f32(1, 1, 2, 2)], r"shape \(1, 1, 3, 3\)"),)

    def draw(self, data):
        x = data.draw(floats((0, 2), (1, 2), (0, 4), (1, 4)))
        return IntegralImageGradient(), [x, data.draw(floats(*x.shape[:2], x.shape[2] + 1, x.shape[3] + 1))]

    def reference(self, op, x, dy):
        dx = np.zeros(x.shape)
        for i, j in np.ndindex(x.shape[2:]):
            dx[:, :, i, j] = dy[:, :, i + 1 :, j + 1 :].sum(axis=(2, 3))
        return [dx]
