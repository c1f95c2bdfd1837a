"""GenerateProposals: boxes that may contain objects, from the outputs of a region proposal network."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.detection.boxes import AngleArguments, clip_boxes, overlaps, suppress, transform_boxes
from netbuilder.ops.detection.rotated_boxes import rotated_overlaps
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["GenerateProposals", "GenerateProposalsCPP"]

Array = np.ndarray[Any, Any]


@register
@dataclass(frozen=True)
class GenerateProposals(AngleArguments):
    """rois = the best boxes of each image after non-maximum suppression, and rois_probs = their scores. No gradient.

    Anchors are boxes around the first position. They are shifted to each position of the plane, with a distance of 1 /
    ``spatial_scale`` pixels in the image, transformed by bbox_deltas as in BBoxTransform, and clipped to the image; a
    row of im_info is the height, width and scale of an image. Of the ``pre_nms_topN`` boxes with the best scores, those
    with a width or height below ``min_size`` (at least 1) times the image's scale and those with a center outside of
    the image are removed, then those whose intersection over union with a better one is above ``nms_thresh``. At most
    ``post_nms_topN`` boxes are kept; 0 or less: all. Anchors with 5 columns are rotated boxes, with 5 A deltas.

    A row of rois is the index of an image and a box, in descending order of scores.

    Source: Ren et al., "Faster R-CNN", 2015, arXiv:1506.01497, section 3.1.
    """

    signature = """
        scores (N, A, H, W): float
        bbox_deltas (N, A * B, H, W): as scores
        im_info (N, 3): as scores
        anchors (A, B): as scores, B = 4 or 5
        -> rois (R, K): float32, K = B + 1
        -> rois_probs (R): float32
    """
    dynamic = True
    inputs_on_host = True
    spatial_scale: float = 0.0625
    pre_nms_topN: int = 6000
    post_nms_topN: int = 300
    nms_thresh: float = 0.7
    min_size: float = 16.0

    def check(self) -> None:
        super().check()
        if not self.spatial_scale > 0:
            raise ArgumentError(f"{self.type}: spatial_scale must be positive, got {self.spatial_scale}")

    def flops(self, scores: TensorSpec, deltas: TensorSpec, im_info: TensorSpec, anchors: TensorSpec) -> int:
        return 8 * deltas.size

    def check_inputs(self, scores: TensorSpec, deltas: TensorSpec, im_info: TensorSpec, anchors: TensorSpec) -> None:
        a = scores.shape[1]
        require(
            anchors.shape[1] in (4, 5),
            self,
            f"anchors must be ({a}, 4) or ({a}, 5) for scores {scores.shape}, got {anchors.shape}",
        )


@register
@dataclass(frozen=True)
class GenerateProposalsCPP(GenerateProposals):
    """GenerateProposals under its old name."""


def _best(scores: Array, most: int) -> Array:
    """Return the indices of the largest scores, in descending order, ties by lower index."""
    order = np.argsort(-scores, kind="stable")
    return order[:most] if most > 0 else order


def _shifted_anchors(op: GenerateProposals, anchors: Array, best: Array, width: int) -> Array:
    """Return the anchors at the indices ``best`` of all (position, anchor) pairs, shifted to their positions."""
    position, anchor = np.divmod(best, len(anchors))
    shift = (np.stack([position % width, position // width], axis=1) / op.spatial_scale).astype(anchors.dtype)
    boxes = anchors[anchor]
    boxes[:, :2] += shift
    if anchors.shape[1] == 4:
        boxes[:, 2:] += shift
    return boxes


def _of_image(op: GenerateProposals, scores: Array, deltas: Array, info: Array, anchors: Array) -> tuple[Array, Array]:
    """Return the boxes of an image that are kept, and their scores."""
    numbers = anchors.shape[1]
    by_position = np.moveaxis(scores, 0, -1).reshape(-1)
    by_anchor = np.moveaxis(deltas.reshape(-1, numbers, *scores.shape[1:]), (0, 1), (-2, -1)).reshape(-1, numbers)
    best = _best(by_position, op.pre_nms_topN)
    extent, like = info[1::-1], scores.dtype.type
    shifted = _shifted_anchors(op, anchors, best, scores.shape[2])
    boxes = clip_boxes(np, op, transform_boxes(np, op, shifted, by_anchor[best]), extent)
    if numbers == 5:
        size, center = boxes[:, 2:4], boxes[:, :2]
    else:
        size = boxes[:, 2:] - boxes[:, :2] + like(op.extra)
        center = boxes[:, :2] + size / like(2)
    least = like(max(op.min_size, 1.0)) * info[2]
    candidates = np.flatnonzero((size >= least).all(axis=1) & (center < extent).all(axis=1))
    overlap = rotated_overlaps(boxes) if numbers == 5 else overlaps(boxes, op.extra)
    kept = suppress(candidates, overlap, op.nms_thresh, op.post_nms_topN)
    return boxes[kept], by_position[best[kept]]


@kernel(GenerateProposals)
@kernel(GenerateProposalsCPP)
def generate_proposals(
    op: GenerateProposals, ctx: RunContext, scores: Any, deltas: Any, im_info: Any, anchors: Any
) -> tuple[Any, ...]:
    op.check_specs(scores, deltas, im_info, anchors)
    *images, around = (ctx.host(a) for a in (scores, deltas, im_info, anchors))
    rois, values = [np.empty((0, anchors.shape[1] + 1), around.dtype)], [np.empty(0, around.dtype)]
    for number, (values_at, by_anchor, info) in enumerate(zip(*images)):
        boxes, probabilities = _of_image(op, values_at, by_anchor, info, around)
        rois.append(np.concatenate([np.full((len(boxes), 1), number, boxes.dtype), boxes], axis=1))
        values.append(probabilities)
    return ctx.xp.asarray(np.concatenate(rois)), ctx.xp.asarray(np.concatenate(values))
