"""CollectRpnProposals, DistributeFpnProposals, and both in one."""

import math

import numpy as np
from hypothesis import strategies as st

import box_reference
from checks import run_plain
from netbuilder.ops.detection.fpn_proposals import (
    CollectAndDistributeFpnRpnProposals,
    CollectRpnProposals,
    DistributeFpnProposals,
)
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, i32, refusal


def draw_levels(data):
    """Return boxes of two levels, and their scores, no two equal."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    counts = [data.draw(st.integers(0, 4)) for _ in range(2)]
    scores = np.split(rng.permutation(sum(counts)).astype(np.float32), [counts[0]])
    return [*(box_reference.draw_boxes(rng, n, images=2) for n in counts), *scores]


def collected(op, inputs):
    rows = [(score, roi) for rois, scores in zip(inputs[:2], inputs[2:]) for roi, score in zip(rois, scores)]
    rows.sort(key=lambda row: -row[0])
    return np.array([roi for _, roi in rows[: op.rpn_post_nms_topN]]).reshape(-1, 5)


def dealt(op, rois):
    levels = []
    for roi in rois:
        width, height = (roi[i - 2] - roi[i - 4] + op.legacy_plus_one for i in range(2))
        level = math.floor(op.roi_canonical_level + math.log2(math.sqrt(width * height) / op.roi_canonical_scale))
        levels.append(min(max(level, op.roi_min_level), op.roi_max_level))
    order = [
        i for level in range(op.roi_min_level, op.roi_max_level + 1) for i in range(len(rois)) if levels[i] == level
    ]
    parts = [rois[[v == level for v in levels]] for level in range(op.roi_min_level, op.roi_max_level + 1)]
    return [*(part.reshape(-1, rois.shape[1]) for part in parts), np.array([order.index(i) for i in range(len(rois))])]


class TestCollectRpnProposals(OperatorSuite):
    operator = CollectRpnProposals
    no_gradient = "it has none"
    refusals = (
        refusal(
            CollectRpnProposals(rpn_max_level=2, rpn_post_nms_topN=-1),
            [f32(2, 5), f32(2)],
            "rpn_post_nms_topN must not be negative, got -1",
            ArgumentError,
        ),
        refusal(CollectRpnProposals(), [f32(2, 5), f32(2)], "levels 2 to 6 need 10 inputs", ArgumentError),
        refusal(CollectRpnProposals(rpn_max_level=2), [f32(2, 4), f32(2)], r"boxes must be \(n, 5\)"),
        refusal(CollectRpnProposals(rpn_max_level=2), [f32(2, 5), f32(3)], r"their scores \(n,\)"),
        refusal(CollectRpnProposals(rpn_max_level=2), [f32(2, 5), i32(2)], "one floating type"),
        refusal(
            CollectRpnProposals(rpn_max_level=2),
            [f32(2, 5), f32(2)],
            "known only when the net runs",
            NotImplementedError,
        ),
    )

    def draw(self, data):
        most = data.draw(st.sampled_from([3, 2000]))
        return CollectRpnProposals(rpn_max_level=3, rpn_post_nms_topN=most).with_arity(4, 1), draw_levels(data)

    def reference(self, op, *inputs):
        return [collected(op, inputs)]


class TestDistributeFpnProposals(OperatorSuite):
    operator = DistributeFpnProposals
    no_gradient = "it has none"
    refusals = (
        refusal(DistributeFpnProposals(), [f32(2, 5)], "levels 2 to 5 need 4 outputs", ArgumentError),
        refusal(DistributeFpnProposals(roi_min_level=6), [f32(2, 5)], "levels 6 to 5 need 0 outputs", ArgumentError),
        refusal(DistributeFpnProposals(roi_max_level=2), [f32(2, 6)], "4 or 5 columns"),
        refusal(
            DistributeFpnProposals(roi_max_level=2, roi_canonical_scale=0),
            [f32(2, 5)],
            "positive, got 0",
            ArgumentError,
        ),
    )

    def draw(self, data):
        scale, plus_one = data.draw(st.sampled_from([5, 224])), data.draw(st.booleans())
        op = DistributeFpnProposals(roi_max_level=4, roi_canonical_scale=scale, legacy_plus_one=plus_one)
        rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
        images = data.draw(st.integers(0, 2))
        rois = box_reference.draw_boxes(rng, data.draw(st.integers(0, 5)), images=images, extent=200)
        return op.with_arity(1, 4), [rois]

    def reference(self, op, rois):
        return dealt(op, rois)


class TestCollectAndDistributeFpnRpnProposals(OperatorSuite):
    operator = CollectAndDistributeFpnRpnProposals
    no_gradient = "it has none"
    refusals = (
        refusal(
            CollectAndDistributeFpnRpnProposals(), [f32(2, 5), f32(2)], "need 10 inputs", ArgumentError, n_out=3
        ),
        refusal(
            CollectAndDistributeFpnRpnProposals(rpn_max_level=2), [f32(2, 5), f32(2)], "need 4 outputs besides 2",
            ArgumentError, n_out=3,
        ),
        refusal(
            CollectAndDistributeFpnRpnProposals(rpn_max_level=2, roi_max_level=2), [f32(2, 5), f32(2, 2)],
            r"their scores \(n,\)", n_out=3,
        ),
    )  # fmt: skip

    def draw(self, data):
        op = CollectAndDistributeFpnRpnProposals(
            rpn_max_level=3, rpn_post_nms_topN=data.draw(st.sampled_from([3, 2000])), roi_max_level=4,
            roi_canonical_scale=5,
        )  # fmt: skip
        return op.with_arity(4, 5), draw_levels(data)

    def reference(self, op, *inputs):
        rois = collected(op, inputs)
        return [rois, *dealt(op, rois)]


def test_restoring_the_order():
    rois = box_reference.draw_boxes(np.random.default_rng(1), 20, images=3, extent=400)
    *levels, restore = run_plain(DistributeFpnProposals(roi_canonical_scale=8).with_arity(1, 5), [rois])
    assert sum(len(level) > 0 for level in levels) > 1
    np.testing.assert_array_equal(np.concatenate(levels)[restore], rois)
