"""Suites of RoIAlign, of upright boxes and of turned ones, which differ in the products that a bin is the sum of."""

import numpy as np
from hypothesis import strategies as st

from suite import OperatorSuite, floats
from window_reference import to_channels_first, to_order

__all__ = ["BoxSuite", "ForwardOfBoxes", "GradientOfBoxes"]


class BoxSuite(OperatorSuite):
    """``terms`` yields (box, row, column, image, y, x, share) of every product; its shape is channels-first."""

    least_samples = 1

    def terms(self, op, rois, shape):
        raise NotImplementedError

    def draw_boxes(self, rng):
        """Return three boxes, without the numbers of their images."""
        raise NotImplementedError

    def draw_case(self, data):
        draw = data.draw
        order = draw(st.sampled_from(["NCHW", "NHWC"]))
        op = self.operator(
            pooled_h=draw(st.integers(1, 2)), pooled_w=draw(st.integers(1, 3)), order=order,
            sampling_ratio=draw(st.integers(self.least_samples, 2)), spatial_scale=draw(st.sampled_from([1.0, 0.5])),
            aligned=draw(st.booleans()),
        )  # fmt: skip
        x = np.ascontiguousarray(to_order(draw(floats(2, 1, 3, 4)), order))
        rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        boxes, numbers = self.draw_boxes(rng), rng.integers(0, 2, (3, 1))
        return op, x, np.float32(boxes if draw(st.booleans()) else np.concatenate([numbers, boxes], axis=1))


class ForwardOfBoxes(BoxSuite):
    def draw(self, data):
        op, x, rois = self.draw_case(data)
        return op, [x, rois]

    def reference(self, op, x, rois):
        images = to_channels_first(x, op.order)
        pooled = np.zeros((len(rois), images.shape[1], op.pooled_h, op.pooled_w))
        for r, i, j, image, y, x, share in self.terms(op, rois, images.shape):
            pooled[r, :, i, j] += share * images[image, :, y, x]
        return [to_order(pooled, op.order)]


class GradientOfBoxes(BoxSuite):
    no_gradient = "a gradient operator"

    def draw(self, data):
        op, x, rois = self.draw_case(data)
        channels = to_channels_first(x, op.order).shape[1]
        dy = data.draw(floats(len(rois), channels, op.pooled_h, op.pooled_w))
        return op, [x, rois, np.ascontiguousarray(to_order(dy, op.order))]

    def reference(self, op, x, rois, dy):
        images, slopes = to_channels_first(x, op.order), to_channels_first(dy, op.order)
        dx = np.zeros(images.shape)
        for r, i, j, image, y, x, share in self.terms(op, rois, images.shape):
            dx[image, :, y, x] += share * slopes[r, :, i, j]
        return [to_order(dx, op.order)]
