"""How far rotated boxes overlap."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.detection.boxes import Overlap

__all__ = ["rotated_overlaps"]

Array = np.ndarray[Any, Any]


def rotated_overlaps(boxes: Array) -> Overlap:
    """Return the function that compares one of the rotated boxes, (n, 5), with others of them."""
    wide = boxes.astype(np.float64)
    areas, reach = wide[:, 2] * wide[:, 3], np.hypot(wide[:, 2], wide[:, 3]) / 2

    def overlap(i: int, others: Any) -> Any:
        away = wide[others, :2] - wide[i, :2]
        near = np.hypot(away[:, 0], away[:, 1]) < reach[i] + reach[others]
        common = np.zeros(len(away))
        common[near] = _common_areas(wide[i], wide[np.asarray(others)[near]])
        covered = areas[i] + areas[others] - common
        return np.where(covered > 0, common / np.where(covered > 0, covered, 1), 0).astype(boxes.dtype)

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
    """Say which of the points, (n, k, 2), lie in the box of their row, (n, 5), edges included."""
    away = points - boxes[:, None, :2]
    angle = np.deg2rad(boxes[:, 4])[:, None]
    cos, sin = np.cos(angle), np.sin(angle)
    across, down = cos * away[..., 0] - sin * away[..., 1], sin * away[..., 0] + cos * away[..., 1]
    near = 1e-9 * (1 + boxes[:, 2:4])
    return (abs(across) <= boxes[:, None, 2] / 2 + near[:, :1]) & (abs(down) <= boxes[:, None, 3] / 2 + near[:, 1:])


def _cross(a: Array, b: Array) -> Array:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def _crossings(first: Array, second: Array) -> tuple[Array, Array]:
    """Return where the outlines of two rows of corners, (n, 4, 2), cross: points (n, 16, 2), and which are there."""
    a, b = first[:, :, None], second[:, None]
    along_a, along_b = (np.roll(c, -1, axis=1) - c for c in (first, second))
    along_a, along_b = along_a[:, :, None], along_b[:, None]
    turn = _cross(along_a, along_b)
    scale = np.where(abs(turn) > 1e-12, turn, 1)
    at_a, at_b = _cross(b - a, along_b) / scale, _cross(b - a, along_a) / scale
    there = (abs(turn) > 1e-12) & (at_a >= 0) & (at_a <= 1) & (at_b >= 0) & (at_b <= 1)
    return (a + at_a[..., None] * along_a).reshape(-1, 16, 2), there.reshape(-1, 16)


def _common_areas(box: Array, others: Array) -> Array:
    """Return the area that a box has in common with each of the others.

    What is common is convex: its corners are the corners of one box in the other and the crossings of the outlines, in
    the order of the angle at which they are seen from their mean.
    """
    if not len(others):
        return np.zeros(0)
    first, second = np.broadcast_to(_corners(box[None]), (len(others), 4, 2)), _corners(others)
    crossings, crossed = _crossings(first, second)
    points = np.concatenate([first, second, crossings], axis=1)
    there = np.concatenate(
        [_inside(first, others), _inside(second, np.broadcast_to(box, others.shape)), crossed], axis=1
    )
    count = there.sum(axis=1)
    middle = (points * there[..., None]).sum(axis=1) / np.maximum(count, 1)[:, None]
    seen = points - middle[:, None]
    angle = np.where(there, np.arctan2(seen[..., 1], seen[..., 0]), np.inf)
    order = np.argsort(angle, axis=1)
    seen, there = np.take_along_axis(seen, order[..., None], axis=1), np.take_along_axis(there, order, axis=1)
    seen = np.where(there[..., None], seen, seen[:, :1])  # what is not there closes the outline
    areas: Array = abs(_cross(seen, np.roll(seen, -1, axis=1)).sum(axis=1)) / 2
    return np.where(count > 2, areas, 0)
