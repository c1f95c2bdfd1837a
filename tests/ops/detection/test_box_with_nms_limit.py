"""BoxWithNMSLimit, and what boxes have in common."""

import numpy as np
import pytest
from hypothesis import strategies as st

import box_reference
from checks import run_plain
from netbuilder.ops.detection.box_with_nms_limit import BoxWithNMSLimit
from netbuilder.ops.detection.boxes import overlaps
from netbuilder.ops.detection.rotated_boxes import rotated_overlaps
from netbuilder.proto import ArgumentError, ShapeError
from suite import OperatorSuite, f32, i32, refusal


class TestBoxWithNMSLimit(OperatorSuite):
    operator = BoxWithNMSLimit
    no_gradient = "it has none"
    refusals = (
        refusal(BoxWithNMSLimit(), [f32(3), f32(3, 4)], r"scores must have shape \(R, C\)", n_out=3),
        refusal(BoxWithNMSLimit(), [f32(3, 2), f32(3, 4)], r"boxes_in must have shape \(3, 8\)", n_out=3),
        refusal(BoxWithNMSLimit(rotated=True), [f32(3, 2), f32(3, 8)], r"must have shape \(3, 10\)", n_out=3),
        refusal(BoxWithNMSLimit(), [f32(3, 2), i32(3, 8)], "one floating type", n_out=3),
        refusal(BoxWithNMSLimit(), [f32(3, 2), f32(3, 8), f32(1, 3)], r"batch_splits must have shape \(N,\)", n_out=3),
        refusal(
            BoxWithNMSLimit(), [f32(3, 2), f32(3, 8)], "known only when the net runs", NotImplementedError, n_out=3
        ),
        refusal(
            BoxWithNMSLimit(soft_nms_method="hard"), [f32(3, 2), f32(3, 8)], "linear, gaussian", ArgumentError, n_out=3
        ),
        refusal(BoxWithNMSLimit(soft_nms_sigma=0), [f32(3, 2), f32(3, 8)], "must be positive", ArgumentError, n_out=3),
    )

    def draw(self, data):
        draw = data.draw
        op = BoxWithNMSLimit(
            nms=draw(st.sampled_from([0.1, 0.3])), detections_per_im=draw(st.sampled_from([0, 3])),
            rotated=draw(st.booleans()), soft_nms_enabled=draw(st.booleans()), soft_nms_min_score_thres=0.2,
            soft_nms_method=draw(st.sampled_from(["linear", "gaussian"])), cls_agnostic_bbox_reg=draw(st.booleans()),
            output_classes_include_bg_cls=draw(st.booleans()), legacy_plus_one=draw(st.booleans()),
        )  # fmt: skip
        rng, classes = np.random.default_rng(draw(st.integers(0, 2**32 - 1))), draw(st.integers(2, 3))
        counts = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
        rows, columns = sum(counts), 1 if op.cls_agnostic_bbox_reg else classes
        boxes = [box_reference.draw_boxes(rng, rows, rotated=op.rotated) for _ in range(columns)]
        scores = rng.permutation(np.linspace(0, 1, rows * classes, dtype=np.float32)).reshape(rows, classes)
        return op.with_arity(3, 6), [scores, np.concatenate(boxes, axis=1), np.float32(counts)]

    def reference(self, op, scores, boxes, splits):
        numbers, begin, found, sizes, counts = 5 if op.rotated else 4, 0, [], [], []
        for count in splits.astype(int):
            of_image = []
            for number in range(1, scores.shape[1]):
                column = 0 if op.cls_agnostic_bbox_reg else number
                own = boxes[begin : begin + count, column * numbers : (column + 1) * numbers]
                for row, score in self.of_class(op, scores[begin : begin + count, number], own):
                    of_image.append((score, own[row], number - (not op.output_classes_include_bg_cls), row, number))
            if op.detections_per_im:
                best = sorted(range(len(of_image)), key=lambda i: -of_image[i][0])[: op.detections_per_im]
                of_image = [of_image[i] for i in sorted(best)]
            found += of_image
            counts.append(len(of_image))
            sizes.append([sum(f[4] == number for f in of_image) for number in range(scores.shape[1])])
            begin += count
        columns = [np.array([f[i] for f in found]) for i in range(4)]
        return [
            columns[0],
            columns[1].reshape(-1, numbers),
            *columns[2:3],
            np.array(counts),
            columns[3],
            np.array(sizes),
        ]

    def of_class(self, op, scores, boxes):
        extra, chosen = int(op.legacy_plus_one), [i for i, score in enumerate(scores) if score > 0.05]
        if not op.soft_nms_enabled:
            order = sorted(chosen, key=lambda i: -scores[i])
            return [(i, scores[i]) for i in box_reference.greedy(boxes, order, op.nms, extra)]
        left, kept = {i: scores[i] for i in chosen}, []
        while left:
            best = max(left, key=left.get)
            kept.append((best, left.pop(best)))
            for i in list(left):
                share = box_reference.overlap(boxes[best], boxes[i], extra)
                if op.soft_nms_method == "gaussian":
                    left[i] *= np.exp(-(share**2) / op.soft_nms_sigma)
                elif share > op.nms:
                    left[i] *= 1 - share
                if left[i] < op.soft_nms_min_score_thres:
                    del left[i]
        return kept


def test_splits_must_count_all_boxes():
    inputs = [np.ones((3, 2), np.float32), np.ones((3, 8), np.float32), np.float32([1, 1])]
    with pytest.raises(ShapeError, match=r"must add up to the 3 rows of scores, got \[1, 1\]"):
        run_plain(BoxWithNMSLimit().with_arity(3, 3), inputs)


@pytest.mark.parametrize("rotated", [False, True])
def test_what_boxes_have_in_common(rotated):
    boxes = box_reference.draw_boxes(np.random.default_rng(5), 40, rotated=rotated).astype(np.float64)
    of = rotated_overlaps(boxes) if rotated else overlaps(boxes, 0)
    for i in range(len(boxes)):
        wanted = [box_reference.overlap(boxes[i], other, 0) for other in boxes]
        np.testing.assert_allclose(of(i, np.arange(len(boxes))), wanted, atol=1e-9)


def test_rotated_boxes_that_share_edges():
    """The same box, turned by half and by a quarter, another size, and one without extent."""
    boxes = np.array([[5.0, 5, 4, 2, 30], [5, 5, 4, 2, 210], [5, 5, 2, 4, 120], [5, 5, 8, 4, 30], [5, 5, 0, 0, 0]])
    np.testing.assert_allclose(rotated_overlaps(boxes)(0, np.arange(5)), [1, 1, 1, 0.25, 0], atol=1e-9)
    straight = np.array([[2.0, 2, 4, 4, 0], [6, 2, 4, 4, 0], [4, 2, 4, 4, 0]])
    np.testing.assert_allclose(rotated_overlaps(straight)(0, np.arange(3)), [1, 0, 1 / 3], atol=1e-9)


def test_no_images():
    nothing = [np.zeros((0, 3), np.float32), np.zeros((0, 12), np.float32), np.zeros(0, np.float32)]
    scores, boxes, classes, splits, rows, sizes = run_plain(BoxWithNMSLimit().with_arity(3, 6), nothing)
    assert scores.shape == classes.shape == rows.shape == splits.shape == (0,)
    assert boxes.shape == (0, 4) and sizes.shape == (0, 3)
