"""GenerateProposals, under both its names."""

import numpy as np
from hypothesis import strategies as st

import box_reference
from checks import run_plain
from netbuilder.ops.detection.generate_proposals import GenerateProposals, GenerateProposalsCPP
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, refusal

FITS = [f32(1, 2, 3, 3), f32(1, 8, 3, 3), f32(1, 3), f32(2, 4)]


class TestGenerateProposals(OperatorSuite):
    operator = GenerateProposals
    no_gradient = "it has none"
    rtol, atol = 1e-4, 1e-3
    refusals = (
        refusal(GenerateProposals(), [f32(2, 3, 3), *FITS[1:]], r"scores must have shape \(N, A, H, W\)"),
        refusal(
            GenerateProposals(),
            [FITS[0], f32(1, 8, 3, 4), *FITS[2:]],
            r"bbox_deltas must have shape \(1, A \* B, 3, 3\) = \(N, A \* B, H, W\)",
        ),
        refusal(GenerateProposals(), [*FITS[:2], f32(2, 3), FITS[3]], r"im_info must have shape \(1, 3\)"),
        refusal(
            GenerateProposals(), [*FITS[:3], f32(3, 4)], r"anchors \(B = 4 or 5\) must have shape \(2, B\) = \(A, B\)"
        ),
        refusal(GenerateProposals(), FITS, "known only when the net runs", NotImplementedError),
        refusal(GenerateProposals(spatial_scale=0), FITS, "spatial_scale must be positive", ArgumentError),
    )

    def draw(self, data):
        draw = data.draw
        op = self.operator(
            spatial_scale=0.25, pre_nms_topN=draw(st.sampled_from([0, 5])), post_nms_topN=draw(st.sampled_from([0, 3])),
            nms_thresh=draw(st.sampled_from([0.3, 0.7])), min_size=draw(st.sampled_from([0.0, 4.0])),
            legacy_plus_one=draw(st.booleans()),
        )  # fmt: skip
        rng, numbers = np.random.default_rng(draw(st.integers(0, 2**32 - 1))), draw(st.sampled_from([4, 5]))
        n, anchors, height, width = draw(st.integers(0, 2)), draw(st.integers(1, 2)), 2, draw(st.integers(1, 2))
        size = rng.uniform(2, 8, (anchors, 2))
        boxes = [size * 0, size, rng.uniform(-80, 80, (anchors, 1))] if numbers == 5 else [-size / 2, size / 2]
        deltas = draw(floats(n, numbers * anchors, height, width, low=-0.3, high=0.3))
        scores = rng.permutation(np.arange(n * anchors * height * width)).reshape(n, anchors, height, width)
        im_info = np.concatenate([rng.uniform(6, 12, (n, 2)), rng.uniform(0.5, 2, (n, 1))], axis=1)
        return op, [np.float32(scores), deltas, np.float32(im_info), np.float32(np.concatenate(boxes, axis=1))]

    def reference(self, op, scores, deltas, im_info, anchors):
        numbers, extra = anchors.shape[1], int(op.legacy_plus_one)
        found = []
        for image, (height, width, scale) in enumerate(im_info):
            ranked = sorted(np.ndindex(scores.shape[1:]), key=lambda at: -scores[image][at])
            boxes, values = [], []
            for a, i, j in ranked[: op.pre_nms_topN or None]:
                shift = np.array([j, i, *((j, i) if numbers == 4 else (0, 0, 0))]) / op.spatial_scale
                delta = deltas[image, a * numbers : (a + 1) * numbers, i, j]
                moved = box_reference.move(anchors[a] + shift, delta, (1, 1, 1, 1), extra)
                if numbers == 5 and not -90 <= moved[4] <= 90:
                    moved[4] += -180 if moved[4] > 90 else 180
                box = box_reference.cut(moved, width, height, extra)
                size = box[2:4] if numbers == 5 else [box[2] - box[0] + extra, box[3] - box[1] + extra]
                center = box[:2] if numbers == 5 else [box[0] + size[0] / 2, box[1] + size[1] / 2]
                if min(size) >= max(op.min_size, 1) * scale and center[0] < width and center[1] < height:
                    boxes.append(box)
                    values.append(scores[image, a, i, j])
            kept = box_reference.greedy(boxes, range(len(boxes)), op.nms_thresh, extra)
            found += [(image, *boxes[k], values[k]) for k in kept[: op.post_nms_topN or None]]
        table = np.array(found).reshape(-1, numbers + 2)
        return [table[:, :-1], table[:, -1]]


class TestGenerateProposalsCPP(TestGenerateProposals):
    operator = GenerateProposalsCPP


def test_no_box_is_left():
    inputs = [np.ones((1, 1, 1, 1)), np.zeros((1, 4, 1, 1)), np.ones((1, 3)), np.array([[0, 0, 3, 3]])]
    rois, scores = run_plain(GenerateProposals(), [a.astype(np.float32) for a in inputs])
    assert (rois.shape, scores.shape) == ((0, 5), (0,))
