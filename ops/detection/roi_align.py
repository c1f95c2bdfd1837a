"""RoIAlign: regions of images, given by boxes, resampled to a fixed size; and its gradient.

The weights of pixels in bins factor into one matrix per axis, so that the means of the samples are a matrix product
from the left and one from the right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.indexing import add_rows, check_indices
from netbuilder.ops.core.operator import require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.detection.sampled_boxes import BoxSamples, BoxSamplesGradient, SampledBoxes
from netbuilder.ops.windows.conv_windows import channels_first, from_channels_first
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["RoIAlign", "RoIAlignGradient"]

Array = Any
_CHUNK_BYTES = 1 << 26


@register
@dataclass(frozen=True)
class RoIAlign(BoxSamples):
    """Y = the means of a grid of bins of each box, from bilinear samples.

    A row of RoIs is the index of an image (omitted: 0) and a box: left, top, right, bottom, which are multiplied by
    ``spatial_scale``. A bin has ``sampling_ratio`` samples along each axis; 0 or less: as many as it has pixels,
    rounded up. With ``aligned``, boxes are shifted half a pixel up and to the left, and may be narrower than 1.

    Source: He et al., "Mask R-CNN", 2017, arXiv:1703.06870, section 3.
    """

    numbers = 4


@register
@dataclass(frozen=True)
class RoIAlignGradient(BoxSamplesGradient):
    """dX = each element of dY added to the pixels of X that it was sampled from, by their weights."""

    numbers = 4


def _images_of(
    op: SampledBoxes, rois: np.ndarray[Any, Any], count: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the image index of each box, and the boxes: left, top, right, bottom."""
    images = rois[:, 0].astype(np.int64) if rois.shape[1] == 5 else np.zeros(len(rois), np.int64)
    check_indices(op.type, images, count, named="images of RoIs")
    return images, rois[:, -4:].astype(np.float64 if rois.dtype == np.float64 else np.float32)


def _weights(op: SampledBoxes, first: Any, last: Any, bins: int, extent: int) -> np.ndarray[Any, Any]:
    """Return the weight of each pixel in each bin along one axis, (boxes, bins, extent).

    Args:
        first, last: the begin and the end of the boxes.
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
        inside = (at >= -1) & (at <= extent) & (k < samples)[:, None]
        tent = 1 - np.abs(np.clip(at, 0, extent - 1)[:, :, None] - positions)
        weights += np.where(inside[:, :, None], np.maximum(tent, 0), 0)
    return weights / counts[:, None, None]


def _parts(
    op: SampledBoxes, xp: Any, rois: Any, shape: tuple[int, ...], dtype: Any
) -> Iterator[tuple[slice, Any, Any, Any]]:
    """Yield for each chunk of boxes its slice, the image indices, and the weights of rows and columns.

    Args:
        shape: of the images, channels-first.
    """
    images, boxes = _images_of(op, rois, shape[0])
    step = max(1, _CHUNK_BYTES // max(1, int(np.prod(shape[1:])) * dtype.itemsize))
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
    xp, d_bins = ctx.xp, channels_first(ctx.xp, widen(dy), op.order)
    height, width = x.shape[2:] if op.order == "NCHW" else x.shape[1:3]
    dx = xp.zeros((x.shape[0], d_bins.shape[1], height, width), d_bins.dtype)
    for part, numbers, down, across in _parts(op, xp, ctx.host(rois), dx.shape, dx.dtype):
        d_pixels = xp.matmul(xp.matmul(down.swapaxes(2, 3), d_bins[part]), across)
        add_rows(xp, dx, numbers, d_pixels, ctx.add_in_order)
    return (from_channels_first(xp, narrow(dx, dy), op.order),)
