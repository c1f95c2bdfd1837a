"""Windows of images, for NumPy and CuPy: padding, im2col and its reverse.

Images are channels-first here, (N, C, *extents); other orders are converted by views.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from netbuilder.engines.gpu import gpu
from netbuilder.ops.core.conv_geometry import Geometry

__all__ = [
    "IM2COL_BYTES",
    "accumulate",
    "batch_parts",
    "channels_first",
    "column_matrices",
    "crop",
    "from_channels_first",
    "pad_images",
    "padded_extents",
    "taps",
    "windows",
]

IM2COL_BYTES = 1 << 26  # upper bound of the im2col buffer on the host, in bytes
_SHARE_OF_GPU = 16  # on a GPU it may take this part of the memory: few large products are faster than many small ones


def channels_first(xp: Any, x: Any, order: str) -> Any:
    """Return images or filters with the channels on axis 1, as a view."""
    return x if order == "NCHW" else xp.moveaxis(x, -1, 1)


def from_channels_first(xp: Any, y: Any, order: str) -> Any:
    """Return channels-first images in ``order``, contiguous."""
    return xp.ascontiguousarray(y if order == "NCHW" else xp.moveaxis(y, 1, -1))


def pad_images(xp: Any, x: Any, geometry: Geometry, value: float = 0.0) -> Any:
    """Return images padded with ``value``, or cropped where pads are negative; X itself if there are no pads."""
    extents, before = x.shape[2:], [max(0, b) for b in geometry.begin]
    seen = x[_inside(_skipped(geometry), extents)] if min(geometry.begin) < 0 else x
    lengths = padded_extents(extents, geometry)
    if lengths == seen.shape[2:]:
        return seen
    padded = xp.full((*x.shape[:2], *lengths), value, x.dtype)
    padded[_inside(before, [b + n for b, n in zip(before, seen.shape[2:])])] = seen
    return padded


def padded_extents(extents: Sequence[int], geometry: Geometry) -> tuple[int, ...]:
    """Return the image extents of padded images."""
    return tuple(n + b + max(0, e) for n, b, e in zip(extents, geometry.begin, geometry.end))


def _skipped(geometry: Geometry) -> list[int]:
    return [max(0, -b) for b in geometry.begin]


def _inside(first: Sequence[int], last: Sequence[int]) -> tuple[slice, ...]:
    return (slice(None), slice(None), *(slice(a, z) for a, z in zip(first, last)))


def crop(xp: Any, padded: Any, extents: Sequence[int], geometry: Geometry) -> Any:
    """Return padded images without the pads, and with zeros for the elements that were skipped: undo ``pad_images``."""
    skipped = _skipped(geometry)
    first = [max(0, b) for b in geometry.begin]
    inside = padded[_inside(first, [f + n - s for f, n, s in zip(first, extents, skipped)])]
    if not any(skipped):
        return inside
    images = xp.zeros((*padded.shape[:2], *extents), padded.dtype)
    images[_inside(skipped, extents)] = inside
    return images


def taps(geometry: Geometry, small: Sequence[int]) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
    """Yield for each element of the window its position, and the index of this element of all windows in padded images.

    Args:
        small: the number of windows along each image axis.
    """
    for position in itertools.product(*(range(k) for k in geometry.kernel)):
        starts = [k * d for k, d in zip(position, geometry.dilations)]
        along = [slice(a, a + (n - 1) * s + 1, s) for a, n, s in zip(starts, small, geometry.strides)]
        yield position, (slice(None), slice(None), *along)


def windows(xp: Any, padded: Any, geometry: Geometry, small: Sequence[int]) -> Any:
    """Return all windows of padded images as a view, (N, C, *kernel, *small)."""
    steps = padded.strides[2:]
    return xp.lib.stride_tricks.as_strided(
        padded,
        shape=(*padded.shape[:2], *geometry.kernel, *small),
        strides=(
            *padded.strides[:2],
            *(s * d for s, d in zip(steps, geometry.dilations)),
            *(s * t for s, t in zip(steps, geometry.strides)),
        ),
    )


def column_matrices(xp: Any, x: Any, geometry: Geometry, small: Sequence[int]) -> Any:
    """Return a matrix with one column per window for each image and group, (N, groups, C / groups * kernel, small)."""
    view = windows(xp, pad_images(xp, x, geometry), geometry, small)
    rows = x.shape[1] // geometry.groups * math.prod(geometry.kernel)
    return view.reshape(x.shape[0], geometry.groups, rows, math.prod(small))


def accumulate(xp: Any, columns: Any, extents: Sequence[int], geometry: Geometry, small: Sequence[int]) -> Any:
    """Return images (N, C, *extents), at each position the sum over all windows that cover it.

    The adjoint of ``column_matrices``.
    """
    n, channels = columns.shape[0], columns.shape[1] * columns.shape[2] // math.prod(geometry.kernel)
    if math.prod(geometry.kernel) == math.prod(geometry.strides) == 1 and not any(geometry.begin + geometry.end):
        return columns.reshape(n, channels, *extents)
    parts = columns.reshape(n, channels, *geometry.kernel, *small)
    padded = xp.zeros((n, channels, *padded_extents(extents, geometry)), columns.dtype)
    for position, index in taps(geometry, small):
        padded[index] += parts[(slice(None), slice(None)) + position]
    return crop(xp, padded, extents, geometry)


def batch_parts(x: Any, bytes_per_image: int) -> Iterator[slice]:
    """Yield slices of a batch of images, of which each has im2col columns that fit the memory of its device.

    Args:
        x: the images; on the host their columns may take about 64 MiB, on a GPU a sixteenth of its memory.
        bytes_per_image: of the columns.
    """
    most = IM2COL_BYTES if isinstance(x, np.ndarray) else gpu(x.device.id).memory // _SHARE_OF_GPU
    step = max(1, most // max(1, bytes_per_image))
    for start in range(0, len(x), step):
        yield slice(start, min(len(x), start + step))
