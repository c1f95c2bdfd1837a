"""Samples between the pixels of images: what each takes of the four pixels around it."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["bilinear_corners"]

Array = np.ndarray[Any, Any]


def bilinear_corners(ys: Array, xs: Array, height: int, width: int) -> list[tuple[Array, Array]]:
    """Return for each corner of the square around samples its pixel in a plane read line by line, and its share.

    Samples up to one pixel outside of the plane are taken at its edge; those farther away take nothing.

    Args:
        ys, xs: how far down and right the samples are, in pixels, of one shape.
    """
    seen = (ys >= -1) & (ys <= height) & (xs >= -1) & (xs <= width)
    ys, xs = (np.clip(np.where(seen, at, 0), 0, extent - 1) for at, extent in ((ys, height), (xs, width)))
    top, left = ys.astype(np.int64), xs.astype(np.int64)
    down, right = ys - top, xs - left
    rows = ((top, 1 - down), (np.minimum(top + 1, height - 1), down))
    columns = ((left, 1 - right), (np.minimum(left + 1, width - 1), right))
    return [(i * width + j, np.where(seen, p * q, 0)) for i, p in rows for j, q in columns]
