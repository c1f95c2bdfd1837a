"""Boxes the slow way: one after another, in float64, for the tests of detection operators."""

from __future__ import annotations

import math

import numpy as np

__all__ = ["cut", "draw_boxes", "greedy", "move", "overlap", "polygon_overlap"]


def draw_boxes(rng, count, *, rotated=False, images=0, extent=30):
    """Return random boxes, float32; with ``images``, the number of one of them as first column, in rising order."""
    if rotated:
        parts = [rng.uniform(0, extent, (count, 2)), rng.uniform(2, 15, (count, 2)), rng.uniform(-85, 85, (count, 1))]
    else:
        starts = rng.uniform(0, extent - 5, (count, 2))
        parts = [starts, starts + rng.uniform(2, 15, (count, 2))]
    if images:
        parts = [np.sort(rng.integers(0, images, count))[:, None], *parts]
    return np.concatenate(parts, axis=1).astype(np.float32)


def move(box, delta, weights, extra):
    """Return a box, or a rotated one, moved by its deltas."""
    dx, dy, dw, dh = (d / w for d, w in zip(delta[:4], weights))
    dw, dh = min(dw, math.log(1000 / 16)), min(dh, math.log(1000 / 16))
    if len(box) == 5:
        x, y, w, h, angle = box
        return [x + dx * w, y + dy * h, w * math.exp(dw), h * math.exp(dh), angle + math.degrees(delta[4])]
    w, h = box[2] - box[0] + extra, box[3] - box[1] + extra
    x, y = box[0] + w / 2 + dx * w, box[1] + h / 2 + dy * h
    w, h = w * math.exp(dw), h * math.exp(dh)
    return [x - w / 2, y - h / 2, x + w / 2 - extra, y + h / 2 - extra]


def cut(box, width, height, extra, threshold=1.0):
    """Return a box cut to an image; a rotated one only if its angle is below the threshold."""
    last = [width - extra, height - extra]
    if len(box) == 4:
        return [min(max(edge, 0), last[i % 2]) for i, edge in enumerate(box)]
    if abs(box[4]) > threshold:
        return list(box)
    edges = [box[i % 2] + (-1 if i < 2 else 1) * (box[2 + i % 2] - extra) / 2 for i in range(4)]
    left, top, right, bottom = cut(edges, width, height, extra)
    size = [min(box[2], right - left + extra), min(box[3], bottom - top + extra)]
    return [(left + right) / 2, (top + bottom) / 2, *size, box[4]]


def overlap(a, b, extra):
    """Return what two boxes have in common, as a share of what they cover."""
    if len(a) == 5:
        return polygon_overlap(a, b)
    sides = [min(a[i + 2], b[i + 2]) - max(a[i], b[i]) + extra for i in range(2)]
    common = max(sides[0], 0) * max(sides[1], 0)
    areas = [(c[2] - c[0] + extra) * (c[3] - c[1] + extra) for c in (a, b)]
    return common / (sum(areas) - common)


def _outline(box):
    x, y, w, h, angle = map(float, box)
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    corners = [(-w / 2, -h / 2), (w / 2, -h / 2), (w / 2, h / 2), (-w / 2, h / 2)]
    return [(x + cos * p + sin * q, y - sin * p + cos * q) for p, q in corners]


def _area(points):
    return sum(p[0] * q[1] - p[1] * q[0] for p, q in zip(points, points[1:] + points[:1])) / 2


def polygon_overlap(a, b):
    """``overlap`` of rotated boxes: one outline is cut by each edge of the other in turn."""
    outline, cutter = _outline(a), _outline(b)
    for p, q in zip(cutter, cutter[1:] + cutter[:1]):

        def side(point, p=p, q=q):
            return (q[0] - p[0]) * (point[1] - p[1]) - (q[1] - p[1]) * (point[0] - p[0])

        kept = []
        for here, there in zip(outline, outline[1:] + outline[:1]):
            if side(here) >= 0:
                kept.append(here)
            if (side(here) >= 0) != (side(there) >= 0):
                at = side(here) / (side(here) - side(there))
                kept.append(tuple(h + at * (t - h) for h, t in zip(here, there)))
        outline = kept
    common = _area(outline) if outline else 0.0
    return common / (a[2] * a[3] + b[2] * b[3] - common)


def greedy(boxes, order, threshold, extra):
    """Return the boxes that are kept, in order."""
    kept = []
    for i in order:
        if all(overlap(boxes[k], boxes[i], extra) <= threshold for k in kept):
            kept.append(int(i))
    return kept
