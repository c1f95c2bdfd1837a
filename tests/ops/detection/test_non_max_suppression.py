"""NonMaxSuppression."""

import numpy as np
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.detection.non_max_suppression import NonMaxSuppression
from suite import OperatorSuite, f32, i64, refusal


def overlap(a, b):
    sides = [min(a[i + 2], b[i + 2]) - max(a[i], b[i]) for i in (0, 1)]
    inner = max(sides[0], 0) * max(sides[1], 0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
    return inner / (sum(areas) - inner)


class TestNonMaxSuppression(OperatorSuite):
    operator = NonMaxSuppression
    no_gradient = "it chooses"
    refusals = (
        refusal(NonMaxSuppression(), [f32(1, 2, 5), f32(1, 1, 2), i64(1), f32(1), f32(1)], r"boxes must have shape"),
        refusal(NonMaxSuppression(), [f32(1, 2, 4), f32(2, 1, 2), i64(1), f32(1), f32(1)], r"scores must have shape"),
    )

    def draw(self, data):
        rng = data.draw(st.integers(0, 2**32 - 1).map(np.random.default_rng))
        images, boxes, classes = rng.integers(1, 3), rng.integers(0, 8), rng.integers(1, 3)
        op = NonMaxSuppression(center_point_box=data.draw(st.booleans()))
        corners = rng.uniform(0.5, 4, (images, boxes, 4)).astype(np.float32)
        if not op.center_point_box:  # opposite corners, in any order
            corners[..., 2:] = corners[..., :2] + rng.choice([-1, 1], (images, boxes, 2)) * corners[..., 2:]
        scores = rng.permuted(np.linspace(0, 1, images * classes * boxes)).astype(np.float32)
        limits = [np.int64(rng.integers(0, 4)), np.float32(rng.uniform(0, 0.6)), np.float32(rng.uniform(0, 0.5))]
        return op, [corners, scores.reshape(images, classes, boxes), *(np.array([each]) for each in limits)]

    def reference(self, op, boxes, scores, most, iou, least):
        found = []
        for image, number in np.ndindex(scores.shape[:2]):
            kept = []
            for i in np.argsort(-scores[image, number], kind="stable"):
                if scores[image, number, i] <= least[0]:
                    continue
                a = self.corners(op, boxes[image, i])
                if all(overlap(a, self.corners(op, boxes[image, j])) <= iou[0] for j in kept):
                    kept.append(i)
            found += [(image, number, i) for i in kept[: most[0]]]
        return [np.array(found, np.int64).reshape(-1, 3)]

    @staticmethod
    def corners(op, box):
        box = box.astype(np.float64)
        if op.center_point_box:
            return [*(box[:2] - box[2:] / 2), *(box[:2] + box[2:] / 2)]
        return [*np.minimum(box[:2], box[2:]), *np.maximum(box[:2], box[2:])]


def test_boxes_without_an_area_overlap_no_other():
    boxes = np.float32([[[0, 0, 0, 2], [0, 0, 0, 2], [0, 0, 2, 2]]])
    given = [boxes, np.float32([[[3, 2, 1]]]), np.int64([9]), np.float32([0.0]), np.float32([0.0])]
    (selected,) = run_plain(NonMaxSuppression().with_arity(5, 1), given)
    assert selected.tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 2]]
