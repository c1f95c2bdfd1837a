"""RoIAlignRotated and its gradient."""

import math

import numpy as np
import pytest

from checks import run_plain
from netbuilder.ops.detection.roi_align import RoIAlign
from netbuilder.ops.detection.roi_align_rotated import RoIAlignRotated, RoIAlignRotatedGradient
from netbuilder.proto import ArgumentError
from roi_suites import ForwardOfBoxes, GradientOfBoxes
from suite import f32, refusal


def corners(at, extent):
    at = min(max(at, 0.0), extent - 1.0)
    low = int(at)
    return [(low, 1 - (at - low)), (min(low + 1, extent - 1), at - low)]


def terms(op, rois, shape):
    """Yield (box, row, column, image, y, x, share) of every product; shape is channels-first."""
    for r, roi in enumerate(rois.astype(np.float64)):
        image = int(roi[0]) if len(roi) == 6 else 0
        x, y, width, height = (v * op.spatial_scale for v in roi[-5:-1])
        if op.aligned:
            x, y = x - 0.5, y - 0.5
        else:
            width, height = max(width, 1.0), max(height, 1.0)
        bins = height / op.pooled_h, width / op.pooled_w
        counts = [op.sampling_ratio if op.sampling_ratio > 0 else math.ceil(b) for b in bins]
        cos, sin = math.cos(math.radians(roi[-1])), math.sin(math.radians(roi[-1]))
        for i, j, k, m in np.ndindex(op.pooled_h, op.pooled_w, *counts):
            down = (i + (k + 0.5) / counts[0]) * bins[0] - height / 2
            right = (j + (m + 0.5) / counts[1]) * bins[1] - width / 2
            sy, sx = down * cos - right * sin + y, right * cos + down * sin + x
            if -1 <= sy <= shape[2] and -1 <= sx <= shape[3]:
                for a, p in corners(sy, shape[2]):
                    for b, q in corners(sx, shape[3]):
                        yield r, i, j, image, a, b, p * q / counts[0] / counts[1]


class _Boxes:
    rtol, atol = 1e-3, 1e-4
    least_samples = 0
    terms = staticmethod(terms)

    def draw_boxes(self, rng):
        parts = [rng.uniform(-1, 4, (3, 2)), rng.uniform(0.1, 5, (3, 2)), rng.uniform(-180, 180, (3, 1))]
        return np.concatenate(parts, axis=1)


class TestRoIAlignRotated(_Boxes, ForwardOfBoxes):
    operator = RoIAlignRotated
    refusals = (
        refusal(RoIAlignRotated(), [f32(2, 3, 4), f32(1, 6)], r"X must have shape \(N, C, H, W\)"),
        refusal(
            RoIAlignRotated(),
            [f32(2, 3, 4, 4), f32(1, 4)],
            r"RoIs must have shape \(1, 5\) or \(1, 6\) = \(R, numbers\) or \(R, numbers \+ 1\)",
        ),
        refusal(RoIAlignRotated(), [f32(2, 3, 0, 4), f32(1, 6)], "X must have pixels to sample from"),
        refusal(RoIAlignRotated(pooled_h=0), [f32(2, 3, 4, 4), f32(1, 6)], "must be 1 or more", ArgumentError),
        refusal(RoIAlignRotated(order="HW"), [f32(2, 3, 4, 4), f32(1, 6)], "NCHW or NHWC", ArgumentError),
    )


class TestRoIAlignRotatedGradient(_Boxes, GradientOfBoxes):
    operator = RoIAlignRotatedGradient
    refusals = (
        refusal(
            RoIAlignRotatedGradient(),
            [f32(2, 3, 4, 4), f32(1, 6), f32(1, 3, 2, 1)],
            r"dY must have shape \(1, 3, 1, 1\)",
        ),
    )


@pytest.mark.parametrize("ratio", [0, 2])
def test_boxes_that_are_not_turned_are_those_of_roi_align(ratio):
    x = np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype(np.float32)
    straight = np.float32([[0, 1, 1, 6, 5], [1, 0.5, 2, 3.5, 7]])
    turned = np.float32([[0, 3.5, 3, 5, 4, 0], [1, 2, 4.5, 3, 5, 0]])
    args = {"pooled_h": 2, "pooled_w": 3, "sampling_ratio": ratio}
    found, wanted = run_plain(RoIAlignRotated(**args), [x, turned]), run_plain(RoIAlign(**args), [x, straight])
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-4, atol=1e-5)


def test_boxes_of_no_image():
    x = np.ones((1, 1, 4, 4), np.float32)
    with pytest.raises(IndexError, match=r"images of RoIs must lie in \[0, 1\), got 1"):
        run_plain(RoIAlignRotated(), [x, np.float32([[1, 2, 2, 2, 2, 0]])])
    assert run_plain(RoIAlignRotated(), [x, np.zeros((0, 6), np.float32)])[0].shape == (0, 1, 1, 1)
    assert run_plain(RoIAlignRotated(), [x[:, :0], np.zeros((2, 6), np.float32)])[0].shape == (2, 0, 1, 1)
