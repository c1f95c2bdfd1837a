"""BBoxTransform."""

import numpy as np
import pytest
from hypothesis import strategies as st

import box_reference
from checks import run_plain
from netbuilder.ops.detection.bbox_transform import BBoxTransform
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, i32, refusal


class TestBBoxTransform(OperatorSuite):
    operator = BBoxTransform
    no_gradient = "it has none"
    rtol, atol = 1e-4, 1e-3
    refusals = (
        refusal(BBoxTransform(), [f32(2, 3), f32(2, 4), f32(1, 3)], "rois must have 4 or 5 columns"),
        refusal(BBoxTransform(), [f32(2, 5), f32(2, 5), f32(1, 3)], r"deltas must be \(2, 4 \* classes\)"),
        refusal(BBoxTransform(), [f32(2, 5), f32(2, 4), f32(1, 2)], r"im_info must be \(images, 3\)"),
        refusal(BBoxTransform(), [f32(2, 4), f32(2, 4), f32(2, 3)], "need exactly one image, got 2"),
        refusal(BBoxTransform(), [f32(2, 5), i32(2, 4), f32(2, 3)], "one floating type"),
        refusal(BBoxTransform(weights=(1, 2)), [f32(2, 5), f32(2, 4), f32(2, 3)], "four numbers", ArgumentError),
        refusal(BBoxTransform(angle_bound_hi=0), [f32(2, 5), f32(2, 4), f32(2, 3)], "a multiple of 180", ArgumentError),
    )

    def draw(self, data):
        draw = data.draw
        rotated, images = draw(st.booleans()), draw(st.integers(1, 3))
        op = BBoxTransform(
            weights=draw(st.sampled_from([(1.0,) * 4, (10.0, 10.0, 5.0, 5.0)])), apply_scale=draw(st.booleans()),
            rotated=rotated, legacy_plus_one=draw(st.booleans()), clip_angle_thresh=draw(st.sampled_from([1.0, 60.0])),
        )  # fmt: skip
        rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        rows = draw(st.integers(0, 4))
        numbered = images > 1 or draw(st.booleans())
        rois = box_reference.draw_boxes(rng, rows, rotated=rotated, images=images * numbered)
        deltas = draw(floats(rows, (5 if rotated else 4) * draw(st.integers(1, 2)), low=-0.5, high=0.5))
        im_info = np.concatenate([rng.uniform(20, 40, (images, 2)), rng.uniform(0.5, 2, (images, 1))], axis=1)
        return op.with_arity(3, draw(st.integers(1, 2))), [rois, deltas, np.float32(im_info)]

    def reference(self, op, rois, deltas, im_info):
        numbers = 5 if op.rotated else 4
        result, counts = np.zeros(deltas.shape), np.zeros(len(im_info))
        for i, roi in enumerate(rois):
            image = int(roi[0]) if len(roi) > numbers else 0
            height, width, scale = im_info[image]
            box = np.where(np.arange(numbers) < 4, roi[-numbers:] / scale, roi[-numbers:])
            for start in range(0, deltas.shape[1], numbers):
                extra = int(op.legacy_plus_one)
                moved = box_reference.move(box, deltas[i, start : start + numbers], op.weights, extra)
                if op.rotated and not -90 <= moved[4] <= 90:
                    moved[4] += -180 if moved[4] > 90 else 180
                extent = [np.floor(n / scale + 0.5) for n in (width, height)]
                found = box_reference.cut(moved, *extent, extra, op.clip_angle_thresh)
                scales = [scale if op.apply_scale else 1.0] * 4 + [1.0]
                result[i, start : start + numbers] = np.multiply(found, scales[:numbers])
            counts[image] += 1
        return [result, counts][: op.n_out]


def test_boxes_of_no_image():
    with pytest.raises(IndexError, match=r"images of rois must lie in \[0, 1\), got 1"):
        run_plain(
            BBoxTransform(), [np.ones((1, 5), np.float32), np.zeros((1, 4), np.float32), np.ones((1, 3), np.float32)]
        )


def test_sizes_do_not_grow_without_end():
    box, deltas = np.float32([[0, 0, 9, 9]]), np.float32([[0, 0, 50, 50]])
    found = run_plain(BBoxTransform(), [box, deltas, np.float32([[1e6, 1e6, 1]])])[0]
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[0, 2] + 1, 5 + 10 * 1000 / 16 / 2, rtol=1e-5)
