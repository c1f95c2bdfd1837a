"""RoIAlign: parts of images, given by boxes, each sampled down to one size; and its gradient.

What a box samples along one axis is a matrix of weights, so that the mean of the samples is a product from the left
and one from the right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.indexing import add_rows
from netbuilder.ops.core.operator import require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.detection.sampled_boxes import BoxSamples, BoxSamplesGradient, SampledBoxes
from netbuilder.ops.windows.conv_windows import channels_first, from_channels_first

__all__ = ["RoIAlign", "RoIAlignGradient"]

Array = Any
_PART = 1 << 26  # chunk size, bytes


@register
@operator_class(frozen=True)
class RoIAlign(BoxSamples):
    """Y = for each box the means of a grid of samples, (boxes, C, pooled_h, pooled_w).

    A row of RoIs is a box: number of the image (left out: 0), left, top, right, bottom, which ``spatial_scale`` turns
    into pixels of X. A bin of the result is the mean of ``sampling_ratio`` times as many samples, bilinear between
    pixels; 0 or less: as many as the bin has pixels, rounded up. With ``aligned`` boxes are half a pixel further up
    and left, and may be narrower than 1.

    Source: He et al., "Mask R-CNN", 2017, arXiv:1703.06870, section 3.
    """

    numbers = 4


@register
@operator_class(frozen=True)
class RoIAlignGradient(BoxSamplesGradient):
    """dX = each element of dY, shared out to the pixels of X that it was made from."""

    numbers = 4


def _images_of(
    op: SampledBoxes, rois: np.ndarray[Any, Any], count: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the number of each box's image, and the boxes: left, top, right, bottom."""
    images = rois[:, 0].astype(np.int64) if rois.shape[1] == 5 else np.zeros(len(rois), np.int64)
    if images.size and not 0 <= int(images.min()) <= int(images.max()) < count:
        raise IndexError(f"{op.type}: images of RoIs must lie in [0, {count}), got {images.min()} to {images.max()}")
    return images, rois[:, -4:].astype(np.float64 if rois.dtype == np.float64 else np.float32)


def _weights(op: SampledBoxes, first: Any, last: Any, bins: int, extent: int) -> np.ndarray[Any, Any]:
    """Return what each pixel has in each bin along one axis, (boxes, bins, extent).

    Args:
        first, last: where the boxes begin and end.
    """
    scale, offset = first.dtype.type(op.spatial_scale), first.dtype.type(0.5 if op.aligned else 0)
    start = first * scale - offset
    length = last * scale - offset - start
    if not op.aligned:
        length = np.maximum(length, 1)
    require(
        not length.size or float(length.min()) >= 0, op, "with aligned, boxes of RoIs must not end before they begin"
    )
    size = length / bins
    samples = np.full(len(first), op.sampling_ratio) if op.sampling_ratio > 0 else np.ceil(size).astype(np.int64)
    weights = np.zeros((len(first), bins, extent), first.dtype)
    positions, bin_starts = np.arange(extent), start[:, None] + np.arange(bins, dtype=first.dtype) * size[:, None]
    counts = np.maximum(samples, 1).astype(first.dtype)
    for k in range(int(samples.max(initial=0))):
        at = bin_starts + (first.dtype.type(k + 0.5) * size / counts)[:, None]
        seen = (at >= -1) & (at <= extent) & (k < samples)[:, None]
        tent = 1 - np.abs(np.clip(at, 0, extent - 1)[:, :, None] - positions)
        weights += np.where(seen[:, :, None], np.maximum(tent, 0), 0)
    return weights / counts[:, None, None]


def _parts(
    op: SampledBoxes, xp: Any, rois: Any, shape: tuple[int, ...], dtype: Any
) -> Iterator[tuple[slice, Any, Any, Any]]:
    """Yield for some boxes at a time: which, their images' numbers, and weights for rows and columns.

    Args:
        shape: of the images, channels first.
    """
    images, boxes = _images_of(op, rois, shape[0])
    step = max(1, _PART // max(1, int(np.prod(shape[1:])) * dtype.itemsize))
    for begin in range(0, len(boxes), step):
        part = slice(begin, begin + step)
        left, top, right, bottom = boxes[part].T
        down = _weights(op, top, bottom, op.pooled_h, shape[2])
        across = _weights(op, left, right, op.pooled_w, shape[3])
        yield part, xp.asarray(images[part]), *(xp.asarray(w.astype(dtype)[:, None]) for w in (down, across))


@kernel(RoIAlign)
def roi_align(op: RoIAlign, ctx: RunContext, x: Array, rois: Array) -> tuple[Array, ...]:
    xp, images = ctx.xp, channels_first(ctx.xp, widen(x), op.order)
    y = xp.empty((rois.shape[0], images.shape[1], op.pooled_h, op.pooled_w), images.dtype)
    for part, numbers, down, across in _parts(op, xp, ctx.host(rois), images.shape, images.dtype):
        y[part] = xp.matmul(xp.matmul(down, images[numbers]), across.swapaxes(2, 3))
    return (from_channels_first(xp, narrow(y, x), op.order),)


@kernel(RoIAlignGradient)
def roi_align_gradient(op: RoIAlignGradient, ctx: RunContext, x: Array, rois: Array, dy: Array) -> tuple[Array, ...]:
    xp, slopes = ctx.xp, channels_first(ctx.xp, widen(dy), op.order)
    height, width = x.shape[2:] if op.order == "NCHW" else x.shape[1:3]
    dx = xp.zeros((x.shape[0], slopes.shape[1], height, width), slopes.dtype)
    for part, numbers, down, across in _parts(op, xp, ctx.host(rois), dx.shape, dx.dtype):
        add_rows(xp, dx, numbers, xp.matmul(xp.matmul(down.swapaxes(2, 3), slopes[part]), across))
    return (from_channels_first(xp, narrow(dx, dy), op.order),)
