"""Boxes in images: transforming by deltas, clipping to an image, intersection over union, non-maximum suppression.

A box is left, top, right, bottom; a rotated one is x and y of its center, width, height and an angle in degrees. If
``extra`` is 1, the right and lower edge belong to a box, and its size is the difference of its edges plus 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.ops.core.operator import Operator
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["AngleArguments", "clip_boxes", "overlaps", "suppress", "suppress_softly", "transform_boxes"]

Array = Any
Overlap = Callable[[int, Any], Any]
"""``overlap(i, others)``: the intersection over union of box i with each of the other ones."""

_MAX_LOG_SCALE = math.log(1000 / 16)  # upper bound of the logarithm of a factor, so that extreme deltas stay finite


@dataclass(frozen=True)
class AngleArguments(Operator):
    """Base of operators that transform boxes, rotated ones among them.

    With ``angle_bound_on`` an angle outside of [``angle_bound_lo``, ``angle_bound_hi``], in degrees, is changed by the
    difference of the two, toward that range. Rotated boxes are clipped to the image only if their angle is within
    ``clip_angle_thresh`` degrees of 0. With ``legacy_plus_one`` the right and lower edge belong to a box.
    ``correct_transform_coords``, which older scripts set, is ignored.
    """

    angle_bound_on: bool = True
    angle_bound_lo: int = -90
    angle_bound_hi: int = 90
    clip_angle_thresh: float = 1.0
    correct_transform_coords: bool = False
    legacy_plus_one: bool = True

    def check(self) -> None:
        period = self.angle_bound_hi - self.angle_bound_lo
        if self.angle_bound_on and (period <= 0 or period % 180):
            raise ArgumentError(
                f"{self.type}: angle_bound_hi must be a multiple of 180 degrees above angle_bound_lo, got "
                f"{self.angle_bound_lo} to {self.angle_bound_hi}"
            )

    @property
    def extra(self) -> int:
        return int(self.legacy_plus_one)


def transform_boxes(
    xp: Any, op: AngleArguments, boxes: Array, deltas: Array, weights: Sequence[float] = (1, 1, 1, 1)
) -> Array:
    """Return boxes shifted, scaled and turned, in the shape of ``deltas``.

    Args:
        boxes: (..., 4), or (..., 5) for rotated ones.
        deltas: for each box the shift of the center, in widths and heights, the logarithms of the factors of the size
            and, for rotated boxes, the change of the angle in radians; shapes broadcast.
        weights: the divisors of the first four deltas.
    """
    like = boxes.dtype.type
    if boxes.shape[-1] == 5:
        size, center = boxes[..., 2:4], boxes[..., :2]
    else:
        size = boxes[..., 2:] - boxes[..., :2] + like(op.extra)
        center = boxes[..., :2] + like(0.5) * size
    shift, growth = (xp.stack([deltas[..., i] / like(weights[i]) for i in pair], axis=-1) for pair in ((0, 1), (2, 3)))
    center = shift * size + center
    size = xp.exp(xp.minimum(growth, like(_MAX_LOG_SCALE))) * size
    if boxes.shape[-1] == 4:
        return xp.concatenate([center - like(0.5) * size, center + like(0.5) * size - like(op.extra)], axis=-1)
    angle = deltas[..., 4:] * like(180 / math.pi) + boxes[..., 4:]
    if op.angle_bound_on:
        period = like(op.angle_bound_hi - op.angle_bound_lo)
        low, high = angle < op.angle_bound_lo, angle > op.angle_bound_hi
        angle = xp.where(low, angle + period, xp.where(high, angle - period, angle))
    return xp.concatenate([center, size, angle], axis=-1)


def clip_boxes(xp: Any, op: AngleArguments, boxes: Array, extent: Array) -> Array:
    """Return boxes clipped to images.

    Args:
        boxes: (..., 4) or (..., 5).
        extent: width and height of the image, (..., 2); shapes broadcast.
    """
    like = boxes.dtype.type
    last = xp.maximum(extent - like(op.extra), like(0))
    if boxes.shape[-1] == 4:
        first, second = (xp.maximum(xp.minimum(edges, last), like(0)) for edges in (boxes[..., :2], boxes[..., 2:]))
        return xp.concatenate([first, second], axis=-1)
    half = (boxes[..., 2:4] - like(op.extra)) / like(2)
    first, second = (
        xp.maximum(xp.minimum(edges, last), like(0)) for edges in (boxes[..., :2] - half, boxes[..., :2] + half)
    )
    size = xp.minimum(boxes[..., 2:4], second - first + like(op.extra))
    clipped = xp.concatenate([(first + second) / like(2), size, boxes[..., 4:]], axis=-1)
    return xp.where(abs(boxes[..., 4:]) <= op.clip_angle_thresh, clipped, boxes)


def overlaps(boxes: np.ndarray[Any, Any], extra: int) -> Overlap:
    """Return the function of the intersection over union of one of the boxes, (n, 4), with others of them."""
    areas = np.prod(boxes[:, 2:] - boxes[:, :2] + boxes.dtype.type(extra), axis=1)

    def overlap(i: int, others: Any) -> Any:
        box, rest = boxes[i], boxes[others]
        sides = np.minimum(box[2:], rest[:, 2:]) - np.maximum(box[:2], rest[:, :2]) + boxes.dtype.type(extra)
        intersection = np.prod(np.maximum(sides, 0), axis=1)
        return intersection / (areas[i] + areas[others] - intersection)

    return overlap


def suppress(order: np.ndarray[Any, Any], overlap: Overlap, threshold: float, most: int = -1) -> list[int]:
    """Return the boxes that are kept if each, in ``order``, removes those after it with an overlap above ``threshold``.

    Args:
        most: the largest number of boxes to keep; 0 or less: all.
    """
    kept: list[int] = []
    while order.size and not 0 < most <= len(kept):
        kept.append(int(order[0]))
        order = order[1:]
        order = order[overlap(kept[-1], order) <= np.float32(threshold)]
    return kept


def suppress_softly(
    scores: np.ndarray[Any, Any],
    candidates: np.ndarray[Any, Any],
    overlap: Overlap,
    decay: Callable[[Any], Any],
    least: float,
) -> tuple[list[int], np.ndarray[Any, Any]]:
    """Return boxes by descending score, where each one multiplies the scores of those after it by ``decay(overlap)``.

    Args:
        scores: of all boxes.
        candidates: the boxes to choose from.
        least: boxes whose score falls below it are removed.

    Returns:
        The boxes that are kept, and all scores after the multiplications.

    Source: Bodla et al., "Soft-NMS", 2017, arXiv:1704.04503.
    """
    scores, kept = scores.copy(), []
    while candidates.size:
        position = int(scores[candidates].argmax())
        best = int(candidates[position])
        kept.append(best)
        candidates = np.delete(candidates, position)
        scores[candidates] *= decay(overlap(best, candidates)).astype(scores.dtype)
        candidates = candidates[scores[candidates] >= least]
    return kept, scores
