"""RoIAlign and its gradient."""

import math

import numpy as np
import pytest

from checks import run_plain
from netbuilder.ops.detection.roi_align import RoIAlign, RoIAlignGradient
from netbuilder.proto import ArgumentError, ShapeError
from roi_suites import ForwardOfBoxes, GradientOfBoxes
from suite import f32, refusal


def corners(at, extent):
    """Return the places next to ``at`` on an axis, and their shares."""
    if at < -1 or at > extent:
        return []
    at = min(max(at, 0.0), extent - 1.0)
    low = min(int(at), extent - 1)
    return [(low, 1 - (at - low)), (min(low + 1, extent - 1), at - low)]


def samples(op, start, end, bins, extent):
    """Return for each bin the places that it sees on an axis, with their shares in its mean."""
    start, end = start * op.spatial_scale, end * op.spatial_scale
    if op.aligned:
        start, end = start - 0.5, end - 0.5
    length = end - start if op.aligned else max(end - start, 1.0)
    count = op.sampling_ratio if op.sampling_ratio > 0 else math.ceil(length / bins)
    found = []
    for b in range(bins):
        ats = [start + b * length / bins + (k + 0.5) * length / bins / count for k in range(count)]
        found.append([(place, share / count) for at in ats for place, share in corners(at, extent)])
    return found


def terms(op, rois, shape):
    """Yield (box, row, column, image, y, x, share) of every product; shape is channels-first."""
    for r, roi in enumerate(rois.astype(np.float64)):
        image = int(roi[0]) if len(roi) == 5 else 0
        left, top, right, bottom = roi[-4:]
        down = samples(op, top, bottom, op.pooled_h, shape[2])
        across = samples(op, left, right, op.pooled_w, shape[3])
        for i, row in enumerate(down):
            for j, column in enumerate(across):
                for y, p in row:
                    for x, q in column:
                        yield r, i, j, image, y, x, p * q


class _Boxes:
    rtol, atol = 1e-4, 1e-5
    terms = staticmethod(terms)

    def draw_boxes(self, rng):
        starts, sizes = rng.uniform(-1, 3, (3, 2)), rng.uniform(0.1, 5, (3, 2))
        return np.concatenate([starts, starts + sizes], axis=1)


class TestRoIAlign(_Boxes, ForwardOfBoxes):
    operator = RoIAlign
    refusals = (
        refusal(RoIAlign(), [f32(2, 3, 4), f32(1, 5)], r"X must have shape \(N, C, H, W\)"),
        refusal(
            RoIAlign(),
            [f32(2, 3, 4, 4), f32(1, 6)],
            r"RoIs must have shape \(1, 4\) or \(1, 5\) = \(R, numbers\) or \(R, numbers \+ 1\)",
        ),
        refusal(RoIAlign(pooled_h=0), [f32(2, 3, 4, 4), f32(1, 5)], "must be 1 or more", ArgumentError),
        refusal(RoIAlign(order="HW"), [f32(2, 3, 4, 4), f32(1, 5)], "NCHW or NHWC", ArgumentError),
    )


class TestRoIAlignGradient(_Boxes, GradientOfBoxes):
    operator = RoIAlignGradient
    refusals = (
        refusal(
            RoIAlignGradient(), [f32(2, 3, 4, 4), f32(1, 5), f32(1, 3, 2, 1)], r"dY must have shape \(1, 3, 1, 1\)"
        ),
    )


def test_as_many_samples_as_a_bin_has_places():
    x = np.arange(64, dtype=np.float32).reshape(1, 1, 8, 8)
    rois = np.float32([[0, 0.3, 0.2, 7.1, 5.4], [0, 1, 1, 2, 2], [0, 9, 9, 9, 9]])
    op = RoIAlign(pooled_h=2, pooled_w=2)
    np.testing.assert_allclose(run_plain(op, [x, rois])[0], TestRoIAlign().reference(op, x, rois)[0], rtol=1e-5)


def test_boxes_of_no_image_and_of_no_size():
    x = np.ones((1, 1, 4, 4), np.float32)
    with pytest.raises(IndexError, match=r"images of RoIs must lie in \[0, 1\), got 1"):
        run_plain(RoIAlign(), [x, np.float32([[1, 0, 0, 2, 2]])])
    with pytest.raises(ShapeError, match="must not end before they begin"):
        run_plain(RoIAlign(aligned=True), [x, np.float32([[0, 2, 0, 1, 2]])])
    assert run_plain(RoIAlign(), [x, np.zeros((0, 5), np.float32)])[0].shape == (0, 1, 1, 1)
