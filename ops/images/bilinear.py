"""Bilinear interpolation: the four pixels around each sample, and their weights."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["bilinear_corners"]

Array = np.ndarray[Any, Any]


def bilinear_corners(ys: Array, xs: Array, height: int, width: int) -> list[tuple[Array, Array]]:
    """Return for each of the four pixels around samples its index in the flattened plane, and its weight.

    Samples up to one pixel outside of the plane are taken at its edge; those farther outside have weights of 0.

    Args:
        ys, xs: vertical and horizontal positions of the samples, in pixels, of the same shape.
    """
    inside = (ys >= -1) & (ys <= height) & (xs >= -1) & (xs <= width)
    ys, xs = (np.clip(np.where(inside, at, 0), 0, extent - 1) for at, extent in ((ys, height), (xs, width)))
    top, left = ys.astype(np.int64), xs.astype(np.int64)
    down, right = ys - top, xs - left
    rows = ((top, 1 - down), (np.minimum(top + 1, height - 1), down))
    columns = ((left, 1 - right), (np.minimum(left + 1, width - 1), right))
    return [(i * width + j, np.where(inside, p * q, 0)) for i, p in rows for j, q in columns]
