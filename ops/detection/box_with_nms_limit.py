"""BoxWithNMSLimit: what a detector found, class by class, without boxes that overlap better ones."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.half import require_one_float_type
from netbuilder.ops.core.operator import Operator, TensorSpec, require, spec_of
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.detection.boxes import overlaps, suppress, suppress_softly
from netbuilder.ops.detection.rotated_boxes import rotated_overlaps
from netbuilder.proto import ArgumentError, ShapeError

__all__ = ["BoxWithNMSLimit"]

_SOFT_METHODS = ("linear", "gaussian")


@register
@operator_class(frozen=True)
class BoxWithNMSLimit(Operator):
    """Of the boxes of each class, those whose score is above ``score_thresh`` and that overlap no better one too far.

    Class 0 of scores, (boxes, classes), is the background, which is left out. boxes_in has a box for each class, with
    ``cls_agnostic_bbox_reg`` one for all. Without ``input_boxes_include_bg_cls`` it has none of the background, and the
    scores have none in front, either: class c is in column c - 1, and as in Caffe2 the last one is not read.
    batch_splits counts the boxes of each image; left out, all are of one. A box is left, top, right, bottom; with
    ``rotated`` x and y of the center, width, height and an angle in degrees. With ``legacy_plus_one`` the right and
    lower edge belong to a box.

    Boxes with over ``nms`` in common with a better one of their class, as a share of what both cover, are left out.
    With ``soft_nms_enabled`` their scores fall instead, by ``soft_nms_method`` "linear" (times 1 - the share, above
    ``nms``) or "gaussian" (times exp(-share^2 / ``soft_nms_sigma``)); those below ``soft_nms_min_score_thres`` are
    dropped. Of each image at most ``detections_per_im`` boxes stay (0: all), the best.

    Results are image by image and class by class: scores, boxes, classes as floats (from 0 without
    ``output_classes_include_bg_cls``, else from 1), how many each image has, the rows of the boxes among those of
    their image, and how many each class has, (images, classes). No gradient.

    Inputs:
        scores (R, C) or (R): float32
        boxes_in (R, D): float32, D = 4 or 5 a class
        batch_splits? (N): float32
    Outputs:
        scores (K): float32
        boxes (K, B): float32, B = 4 or 5
        classes (K): float32
        batch_splits? (N): float32
        keeps? (K): int32
        keeps_size? (N, C) or (L): int32

    Source: for soft suppression, Bodla et al., "Soft-NMS: Improving Object Detection With One Line of Code", 2017,
    arXiv:1704.04503.
    """

    inputs = ("scores", "boxes_in", "batch_splits?")
    outputs = ("scores", "boxes", "classes", "batch_splits?", "keeps?", "keeps_size?")
    dynamic = True
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
            raise ArgumentError(f"BoxWithNMSLimit: soft_nms_sigma must be above 0, got {self.soft_nms_sigma}")

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host"

    def infer(self, scores: TensorSpec, boxes: TensorSpec, splits: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        self.check_inputs(scores, boxes, splits)
        raise ShapeError("BoxWithNMSLimit: how many boxes stay depends on their values")

    def flops(self, scores: TensorSpec, boxes: TensorSpec, splits: TensorSpec | None = None) -> int:
        return 4 * boxes.size

    def check_inputs(self, scores: TensorSpec, boxes: TensorSpec, splits: TensorSpec | None) -> None:
        require_one_float_type(self, scores=scores, boxes_in=boxes)
        right = scores.ndim == 2 and scores.shape[1] >= 1
        require(right, self, f"scores must be (boxes, classes), the background among them, got shape {scores.shape}")
        shape = (scores.shape[0], (self.column_of(scores.shape[1] - 1) + 1) * self.numbers)
        require(boxes.shape == shape, self, f"boxes_in must have shape {shape}, got {boxes.shape}")
        require(splits is None or splits.ndim == 1, self, "batch_splits must have one axis")

    @property
    def numbers(self) -> int:
        return 5 if self.rotated else 4

    def column_of(self, number: int) -> int:
        """Return which of a row's boxes is that of a class."""
        return 0 if self.cls_agnostic_bbox_reg else number - self.lacking

    @property
    def lacking(self) -> int:
        """How many classes in front have no columns."""
        return int(not self.input_boxes_include_bg_cls)


def _counts(op: BoxWithNMSLimit, splits: Any, rows: int) -> list[int]:
    """Return how many boxes each image has."""
    if splits is not None and not np.isfinite(splits).all():
        raise ShapeError(f"{op.type}: batch_splits must be integers, got {splits.tolist()}")
    counts = [rows] if splits is None else [int(n) for n in splits]
    if sum(counts) != rows or min(counts, default=0) < 0:
        raise ShapeError(f"{op.type}: batch_splits must add up to the {rows} rows of scores, got {counts}")
    return counts


def _of_class(op: BoxWithNMSLimit, scores: Any, boxes: Any) -> tuple[Any, Any]:
    """Return which boxes of a class stay, and their scores."""
    chosen = np.flatnonzero(scores > np.float32(op.score_thresh))
    overlap = rotated_overlaps(boxes) if op.rotated else overlaps(boxes, int(op.legacy_plus_one))
    if not op.soft_nms_enabled:
        kept = suppress(chosen[np.argsort(-scores[chosen], kind="stable")], overlap, op.nms)
    elif op.soft_nms_method == "linear":
        weigh = lambda share: np.where(share > np.float32(op.nms), 1 - share, 1)  # noqa: E731
        kept, scores = suppress_softly(scores, chosen, overlap, weigh, op.soft_nms_min_score_thres)
    else:
        weigh = lambda share: np.exp(-(share**2) / op.soft_nms_sigma)  # noqa: E731
        kept, scores = suppress_softly(scores, chosen, overlap, weigh, op.soft_nms_min_score_thres)
    rows = np.array(kept, np.int32)
    return rows, scores[rows]


def _of_image(op: BoxWithNMSLimit, scores: Any, boxes: Any) -> tuple[Any, Any, Any]:
    """Return scores, rows and classes of the boxes of an image that stay, class by class."""
    found = []
    for number in range(1, scores.shape[1]):
        rows, values = _of_class(op, scores[:, number - op.lacking], boxes[:, op.column_of(number)])
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
    op.check_inputs(spec_of(scores), spec_of(boxes), None if splits is None else spec_of(splits))
    counts = _counts(op, None if splits is None else ctx.host(splits), len(scores))
    every, of_classes = ctx.host(scores), scores.shape[1]
    candidates = ctx.host(boxes).reshape(len(every), boxes.shape[1] // op.numbers, op.numbers)
    nothing = np.empty(0, np.int32)
    begin, found, sizes = 0, [(every[:0, 0], candidates[:0, 0], nothing, nothing)], []
    for count in counts:
        part = slice(begin, begin + count)
        values, rows, classes = _of_image(op, every[part], candidates[part])
        columns = np.array([op.column_of(number) for number in range(of_classes)])[classes]
        found.append((values, candidates[part][rows, columns], classes, rows))
        sizes.append(np.bincount(classes, minlength=of_classes))
        begin += count
    values, kept, classes, rows = (np.concatenate(parts) for parts in zip(*found))
    classes = classes - (not op.output_classes_include_bg_cls)
    like = every.dtype
    results = (values, kept, classes.astype(like), np.array([len(f[0]) for f in found[1:]], like), rows)
    return tuple(ctx.xp.asarray(a) for a in (*results, np.array(sizes, np.int32).reshape(len(counts), of_classes)))
