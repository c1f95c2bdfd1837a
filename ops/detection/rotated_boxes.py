"""The intersection over union of rotated boxes."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.detection.boxes import Overlap

__all__ = ["rotated_overlaps"]

Array = np.ndarray[Any, Any]


def rotated_overlaps(boxes: Array) -> Overlap:
    """Return the function of the intersection over union of one of the rotated boxes, (n, 5), with others of them."""
    wide = boxes.astype(np.float64)
    areas, reach = wide[:, 2] * wide[:, 3], np.hypot(wide[:, 2], wide[:, 3]) / 2

    def overlap(i: int, others: Any) -> Any:
        offsets = wide[others, :2] - wide[i, :2]
        near = np.hypot(offsets[:, 0], offsets[:, 1]) < reach[i] + reach[others]
        intersection = np.zeros(len(offsets))
        intersection[near] = _intersection_areas(wide[i], wide[np.asarray(others)[near]])
        union = areas[i] + areas[others] - intersection
        return np.where(union > 0, intersection / np.where(union > 0, union, 1), 0).astype(boxes.dtype)

    return overlap


def _corners(boxes: Array) -> Array:
    """Return the corners of boxes in the order of their outline, (n, 4, 2)."""
    signs = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) / 2
    along = signs * boxes[:, None, 2:4]
    angle = np.deg2rad(boxes[:, 4])[:, None]
    cos, sin = np.cos(angle), np.sin(angle)
    turned = np.stack([cos * along[..., 0] + sin * along[..., 1], cos * along[..., 1] - sin * along[..., 0]], axis=-1)
    return boxes[:, None, :2] + turned


def _inside(points: Array, boxes: Array) -> Array:
    """Return which of the points, (n, k, 2), are in the box of their row, (n, 5), including its edges."""
    offsets = points - boxes[:, None, :2]
    angle = np.deg2rad(boxes[:, 4])[:, None]
    cos, sin = np.cos(angle), np.sin(angle)
    across, down = cos * offsets[..., 0] - sin * offsets[..., 1], sin * offsets[..., 0] + cos * offsets[..., 1]
    limit = boxes[:, 2:4] / 2 + 1e-9 * (1 + boxes[:, 2:4])
    return (abs(across) <= limit[:, :1]) & (abs(down) <= limit[:, 1:])


def _cross(a: Array, b: Array) -> Array:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def _crossings(first: Array, second: Array) -> tuple[Array, Array]:
    """Return the intersections of the outlines of two rows of corners, (n, 4, 2): (n, 16, 2), and which exist."""
    a, b = first[:, :, None], second[:, None]
    along_a, along_b = (np.roll(c, -1, axis=1) - c for c in (first, second))
    along_a, along_b = along_a[:, :, None], along_b[:, None]
    turn = _cross(along_a, along_b)
    scale = np.where(abs(turn) > 1e-12, turn, 1)
    at_a, at_b = _cross(b - a, along_b) / scale, _cross(b - a, along_a) / scale
    exist = (abs(turn) > 1e-12) & (at_a >= 0) & (at_a <= 1) & (at_b >= 0) & (at_b <= 1)
    return (a + at_a[..., None] * along_a).reshape(-1, 16, 2), exist.reshape(-1, 16)


def _intersection_areas(box: Array, others: Array) -> Array:
    """Return the areas of the intersections of a box with each of the others.

    An intersection is convex: its corners are the corners of one box in the other and the intersections of the
    outlines, ordered by the angle around their mean.
    """
    if not len(others):
        return np.zeros(0)
    first, second = np.broadcast_to(_corners(box[None]), (len(others), 4, 2)), _corners(others)
    crossings, crossed = _crossings(first, second)
    points = np.concatenate([first, second, crossings], axis=1)
    exist = np.concatenate(
        [_inside(first, others), _inside(second, np.broadcast_to(box, others.shape)), crossed], axis=1
    )
    count = exist.sum(axis=1)
    middle = (points * exist[..., None]).sum(axis=1) / np.maximum(count, 1)[:, None]
    outline = points - middle[:, None]
    angle = np.where(exist, np.arctan2(outline[..., 1], outline[..., 0]), np.inf)
    order = np.argsort(angle, axis=1)
    outline, exist = np.take_along_axis(outline, order[..., None], axis=1), np.take_along_axis(exist, order, axis=1)
    outline = np.where(exist[..., None], outline, outline[:, :1])  # the other points are the first one, which closes it
    areas: Array = abs(_cross(outline, np.roll(outline, -1, axis=1)).sum(axis=1)) / 2
    return np.where(count > 2, areas, 0)
