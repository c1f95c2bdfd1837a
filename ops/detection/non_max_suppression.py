"""NonMaxSuppression: the boxes of each class that do not overlap a better one, as ONNX defines it."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import Operator, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.detection.boxes import overlaps, suppress
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["NonMaxSuppression"]


@register
@dataclass(frozen=True)
class NonMaxSuppression(Operator):
    """selected = (image, class, box) of the boxes that are kept, by image, by class, by descending score.

    Of the boxes of a class with scores above ``score_threshold``, each removes those after it whose intersection over
    union with it is above ``iou_threshold``; at most ``max_boxes`` of each class are kept. A box is two opposite
    corners or, with ``center_point_box``, the x and y of its center, width and height; boxes without an area overlap no
    other. No gradient.

    Source: ONNX's operator NonMaxSuppression.
    """

    signature = """
        boxes (N, B, 4): float32|float64
        scores (N, K, B): as boxes
        max_boxes {1}: int64
        iou_threshold {1}: as boxes
        score_threshold {1}: as boxes
        -> selected (M, 3): int64
    """
    dynamic = True
    outputs_on_host = True
    inputs_on_host = True
    center_point_box: bool = False


@kernel(NonMaxSuppression)
def non_max_suppression(
    op: NonMaxSuppression, ctx: RunContext, boxes: Any, scores: Any, most: Any, iou: Any, least: Any
) -> tuple[Any]:
    op.check_specs(boxes, scores, most, iou, least)
    count, threshold = int(most.item()), float(iou.item())
    require(0 <= threshold <= 1, op, f"iou_threshold must be from 0 to 1, got {threshold}")
    found = [np.zeros((0, 3), np.int64)]
    for image, corners in enumerate(_corners(op, boxes)):
        with_others = overlaps(corners, 0)

        def overlap(i: int, others: Any, with_others: Any = with_others) -> Any:
            return np.nan_to_num(with_others(i, others), nan=0.0)  # boxes without an area

        for number, row in enumerate(scores[image]) if count > 0 else ():
            order = np.flatnonzero(row > least.item())
            order = order[np.argsort(-row[order], kind="stable")]
            with np.errstate(invalid="ignore"):
                kept = suppress(order, overlap, threshold, count)
            found.append(np.array([(image, number, box) for box in kept], np.int64).reshape(-1, 3))
    return (np.concatenate(found),)


def _corners(op: NonMaxSuppression, boxes: Any) -> Any:
    """Return boxes as left, top, right, bottom, in whichever order the axes are."""
    if op.center_point_box:
        half = boxes[..., 2:] / 2
        return np.concatenate([boxes[..., :2] - half, boxes[..., :2] + half], axis=-1)
    first, second = boxes[..., :2], boxes[..., 2:]
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], axis=-1)
