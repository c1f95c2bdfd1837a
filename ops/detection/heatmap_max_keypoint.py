"""HeatmapMaxKeypoint: the positions of the maxima of keypoint heatmaps, with subpixel precision."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["HeatmapMaxKeypoint"]

_FLAT = 1e-4  # below this determinant the parabola is flat, and the maximum is not refined
_FARTHEST = 1.5  # the largest distance of the refined maximum from the largest pixel, in pixels


@register
@dataclass(frozen=True)
class HeatmapMaxKeypoint(Operator):
    """keypoints = x, y, value and probability of each heatmap's maximum. No gradient.

    The heatmaps, (boxes, keypoints, S, S), cover the boxes of bboxes_in, whose first four columns are left, top, right,
    bottom. The maximum is that of the quadratic function through the largest pixel and its neighbors, at most 1.5
    pixels away. The probability is the softmax of the heatmap at its largest pixel, or 0 without
    ``should_output_softmax``.
    """

    signature = """
        heatmaps (R, K, S, S): float
        bboxes_in (R, D): as heatmaps, D is 4 or more
        -> keypoints (R, 4, K): as heatmaps
    """
    should_output_softmax: bool = False

    def check_inputs(self, heatmaps: TensorSpec, boxes: TensorSpec) -> None:
        require(heatmaps.shape[3] >= 1, self, f"heatmaps must have elements, got shape {heatmaps.shape}")
        require(boxes.shape[1] >= 4, self, f"bboxes_in must have rows of 4 numbers or more, got shape {boxes.shape}")

    def flops(self, heatmaps: TensorSpec, boxes: TensorSpec) -> int:
        return heatmaps.size * (5 if self.should_output_softmax else 1)


def _around(xp: Any, maps: Any, row: Any, column: Any) -> dict[tuple[int, int], Any]:
    """Return the pixel of each map and its neighbors, by their offsets (down, right); maps are mirrored at edges."""
    size = maps.shape[-1]

    def at(position: Any, step: int) -> Any:
        moved = abs(position + step)
        return xp.clip(xp.where(moved >= size, 2 * size - 2 - moved, moved), 0, size - 1)

    flat = maps.reshape(maps.shape[0], size * size)
    steps = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
    return {
        (i, j): xp.take_along_axis(flat, (at(row, i) * size + at(column, j))[:, None], axis=1)[:, 0] for i, j in steps
    }


def _refined(xp: Any, maps: Any, row: Any, column: Any) -> tuple[Any, Any, Any]:
    """Return the offsets of the maximum from a pixel, down and to the right, and its value."""
    v, like = _around(xp, maps, row, column), maps.dtype.type
    right, down = (v[0, 1] - v[0, -1]) / like(2), (v[1, 0] - v[-1, 0]) / like(2)
    across, along = v[0, 1] - like(2) * v[0, 0] + v[0, -1], v[1, 0] - like(2) * v[0, 0] + v[-1, 0]
    mixed = (v[1, 1] - v[1, -1] - v[-1, 1] + v[-1, -1]) / like(4)
    determinant = across * along - mixed * mixed
    flat = abs(determinant) < like(_FLAT)
    divisor = xp.where(flat, like(1), determinant)
    x = xp.where(flat, like(0), (mixed * down - along * right) / divisor)
    y = xp.where(flat, like(0), (mixed * right - across * down) / divisor)
    far = xp.maximum(xp.maximum(abs(x), abs(y)) / like(_FARTHEST), like(1))
    x, y = x / far, y / far
    height = v[0, 0] + right * x + down * y + (across * x * x + like(2) * mixed * x * y + along * y * y) / like(2)
    return y, x, height


@kernel(HeatmapMaxKeypoint)
def heatmap_max_keypoint(op: HeatmapMaxKeypoint, ctx: RunContext, heatmaps: Any, boxes: Any) -> tuple[Any, ...]:
    xp, like = ctx.xp, heatmaps.dtype.type
    n, keypoints, size = heatmaps.shape[:3]
    maps = heatmaps.reshape(n * keypoints, size, size)
    flat = maps.reshape(n * keypoints, size * size)
    best = flat.argmax(axis=1)
    down, right, height = _refined(xp, maps, best // size, best % size)
    extent = xp.maximum(boxes[:, 2:4] - boxes[:, :2], like(1))
    positions = (
        xp.stack([best % size + right, best // size + down], axis=0).reshape(2, n, keypoints).astype(heatmaps.dtype)
    )
    along = (positions + like(0.5)) * (extent.T[:, :, None] / like(size)) + boxes[:, :2].T[:, :, None]
    probability = xp.zeros(n * keypoints, heatmaps.dtype)
    if op.should_output_softmax:
        probability = 1 / xp.exp(flat - flat.max(axis=1, keepdims=True)).sum(axis=1)
    rest = [values.reshape(n, keypoints).astype(heatmaps.dtype) for values in (height, probability)]
    return (xp.stack([along[0], along[1], *rest], axis=1),)
