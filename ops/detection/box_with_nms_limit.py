"""BoxWithNMSLimit: the detections of each class, after non-maximum suppression."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.detection.boxes import overlaps, suppress, suppress_softly
from netbuilder.ops.detection.rotated_boxes import rotated_overlaps
from netbuilder.proto import ArgumentError, ShapeError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["BoxWithNMSLimit"]

_SOFT_METHODS = ("linear", "gaussian")


@register
@dataclass(frozen=True)
class BoxWithNMSLimit(Operator):
    """The boxes of each class with a score above ``score_thresh`` that non-maximum suppression keeps. No gradient.

    Class 0 of scores, (boxes, classes), is the background, which is omitted. A row of boxes_in has one box per class
    or, with ``cls_agnostic_bbox_reg``, one for all classes. Without ``input_boxes_include_bg_cls``, boxes and scores do
    not have the background: class c is in column c - 1, and as in Caffe2 the last column of scores is not read.
    batch_splits are the numbers of boxes per image; without it, all boxes are of one image. A box is left, top, right,
    bottom; with ``rotated``, x and y of the center, width, height and an angle in degrees. With ``legacy_plus_one`` the
    right and lower edge belong to a box.

    A box whose intersection over union with a better one of its class is above ``nms`` is removed. With
    ``soft_nms_enabled`` its score is decreased instead, by ``soft_nms_method`` "linear" (times 1 - IoU where that is
    above ``nms``) or "gaussian" (times exp(-IoU^2 / ``soft_nms_sigma``)), and boxes with scores below
    ``soft_nms_min_score_thres`` are removed. Of each image the ``detections_per_im`` best boxes are kept (0: all).

    The results are ordered by image and class: scores, boxes, classes as floats (from 0 without
    ``output_classes_include_bg_cls``, else from 1), the number of boxes per image, the index of each box among those of
    its image, and the number of boxes per image and class.

    Source of soft suppression: Bodla et al., "Soft-NMS: Improving Object Detection With One Line of Code", 2017,
    arXiv:1704.04503.
    """

    signature = """
        scores (R, C): float
        boxes_in (R, D): as scores, D = 4 or 5 per class
        batch_splits? (N): float|int
        -> scores (K): float32
        -> boxes (K, B): float32, B = 4 or 5
        -> classes (K): float32
        -> batch_splits? (N): float32
        -> keeps? (K): int32
        -> keeps_size? (N, C) or (L): int32
    """
    dynamic = True
    inputs_on_host = True
    score_thresh: float = 0.05
    nms: float = 0.3
    detections_per_im: int = 100
    soft_nms_enabled: bool = False
    soft_nms_method: str = "linear"
    soft_nms_sigma: float = 0.5
    soft_nms_min_score_thres: float = 0.001
    rotated: bool = False
    cls_agnostic_bbox_reg: bool = False
    input_boxes_include_bg_cls: bool = True
    output_classes_include_bg_cls: bool = True
    legacy_plus_one: bool = True

    def check(self) -> None:
        if self.soft_nms_method not in _SOFT_METHODS:
            raise ArgumentError(
                f"{self.type}: soft_nms_method must be one of {', '.join(_SOFT_METHODS)}, got {self.soft_nms_method!r}"
            )
        if not self.soft_nms_sigma > 0:
            raise ArgumentError(f"BoxWithNMSLimit: soft_nms_sigma must be positive, got {self.soft_nms_sigma}")

    def flops(self, scores: TensorSpec, boxes: TensorSpec, splits: TensorSpec | None = None) -> int:
        return 4 * boxes.size

    def check_inputs(self, scores: TensorSpec, boxes: TensorSpec, *splits: TensorSpec) -> None:
        require(
            scores.shape[1] >= 1,
            self,
            f"scores must be (boxes, classes), including the background, got shape {scores.shape}",
        )
        shape = (scores.shape[0], (self.column_of(scores.shape[1] - 1) + 1) * self.numbers)
        require(boxes.shape == shape, self, f"boxes_in must have shape {shape}, got {boxes.shape}")

    @property
    def numbers(self) -> int:
        return 5 if self.rotated else 4

    def column_of(self, number: int) -> int:
        """Return the position of a class's box in a row."""
        return 0 if self.cls_agnostic_bbox_reg else number - self.missing

    @property
    def missing(self) -> int:
        """The number of first classes without columns: 1 if the background has none."""
        return int(not self.input_boxes_include_bg_cls)


def _counts(op: BoxWithNMSLimit, splits: Any, rows: int) -> list[int]:
    """Return the number of boxes of each image."""
    if splits is not None and not np.isfinite(splits).all():
        raise ShapeError(f"{op.type}: batch_splits must be integers, got {splits.tolist()}")
    counts = [rows] if splits is None else [int(n) for n in splits]
    if sum(counts) != rows or min(counts, default=0) < 0:
        raise ShapeError(f"{op.type}: batch_splits must add up to the {rows} rows of scores, got {counts}")
    return counts


def _of_class(op: BoxWithNMSLimit, scores: Any, boxes: Any) -> tuple[Any, Any]:
    """Return the indices of the boxes of a class that are kept, and their scores."""
    candidates = np.flatnonzero(scores > np.float32(op.score_thresh))
    overlap = rotated_overlaps(boxes) if op.rotated else overlaps(boxes, int(op.legacy_plus_one))

    def decay(iou: Any) -> Any:
        if op.soft_nms_method == "linear":
            return np.where(iou > np.float32(op.nms), 1 - iou, 1)
        return np.exp(-(iou**2) / op.soft_nms_sigma)

    if op.soft_nms_enabled:
        kept, scores = suppress_softly(scores, candidates, overlap, decay, op.soft_nms_min_score_thres)
    else:
        kept = suppress(candidates[np.argsort(-scores[candidates], kind="stable")], overlap, op.nms)
    rows = np.array(kept, np.int32)
    return rows, scores[rows]


def _of_image(op: BoxWithNMSLimit, scores: Any, boxes: Any) -> tuple[Any, Any, Any]:
    """Return the scores, indices and classes of the boxes of an image that are kept, ordered by class."""
    found = []
    for number in range(1, scores.shape[1]):
        rows, values = _of_class(op, scores[:, number - op.missing], boxes[:, op.column_of(number)])
        found.append((values, rows, np.full(len(rows), number)))
    if not found:
        return np.empty(0, scores.dtype), np.empty(0, np.int32), np.empty(0, int)
    values, rows, classes = (np.concatenate(parts) for parts in zip(*found))
    if 0 < op.detections_per_im < len(values):
        best = np.sort(np.argsort(-values, kind="stable")[: op.detections_per_im])
        values, rows, classes = values[best], rows[best], classes[best]
    return values, rows, classes


@kernel(BoxWithNMSLimit)
def box_with_nms_limit(
    op: BoxWithNMSLimit, ctx: RunContext, scores: Any, boxes: Any, splits: Any = None
) -> tuple[Any, ...]:
    op.check_specs(scores, boxes, *([] if splits is None else [splits]))
    counts = _counts(op, None if splits is None else ctx.host(splits), len(scores))
    all_scores, num_classes = ctx.host(scores), scores.shape[1]
    candidates = ctx.host(boxes).reshape(len(all_scores), boxes.shape[1] // op.numbers, op.numbers)
    empty = np.empty(0, np.int32)
    begin, found, sizes = 0, [(all_scores[:0, 0], candidates[:0, 0], empty, empty)], []
    for count in counts:
        part = slice(begin, begin + count)
        values, rows, classes = _of_image(op, all_scores[part], candidates[part])
        columns = np.array([op.column_of(number) for number in range(num_classes)])[classes]
        found.append((values, candidates[part][rows, columns], classes, rows))
        sizes.append(np.bincount(classes, minlength=num_classes))
        begin += count
    values, kept, classes, rows = (np.concatenate(parts) for parts in zip(*found))
    classes = classes - (not op.output_classes_include_bg_cls)
    like = all_scores.dtype
    results = (values, kept, classes.astype(like), np.array([len(f[0]) for f in found[1:]], like), rows)
    return tuple(ctx.xp.asarray(a) for a in (*results, np.array(sizes, np.int32).reshape(len(counts), num_classes)))
