"""RoIAlignRotated: regions of images, given by rotated boxes, resampled to a fixed size; and its gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.given_numbers import check_extents
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.indexing import add_rows, check_indices
from netbuilder.ops.core.operator import require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.detection.sampled_boxes import BoxSamples, BoxSamplesGradient, SampledBoxes
from netbuilder.ops.images.bilinear import bilinear_corners
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["RoIAlignRotated", "RoIAlignRotatedGradient"]

Array = Any
_CHUNK_BYTES = 1 << 26


@register
@dataclass(frozen=True)
class RoIAlignRotated(BoxSamples):
    """Y = the means of a grid of bins of each rotated box, from bilinear samples.

    A row of RoIs is the index of an image (omitted: 0) and a box: x and y of its center, width and height, which are
    multiplied by ``spatial_scale``, and the counterclockwise angle in degrees. Samples, ``sampling_ratio`` and
    ``aligned`` are those of RoIAlign.

    Source: Ma et al., "Arbitrary-Oriented Scene Text Detection via Rotation Proposals", 2017, arXiv:1703.01086.
    """

    numbers = 5


@register
@dataclass(frozen=True)
class RoIAlignRotatedGradient(BoxSamplesGradient):
    """dX = each element of dY added to the pixels of X that it was sampled from, by their weights."""

    numbers = 5


def _offsets(op: SampledBoxes, length: Any, bins: int) -> tuple[Any, Any]:
    """Return the offsets of the samples from the center along one axis, (boxes, bins, samples), and their weights."""
    size = length / bins
    samples = np.full(len(size), op.sampling_ratio) if op.sampling_ratio > 0 else np.ceil(size).astype(np.int64)
    counts = np.maximum(samples, 1).astype(length.dtype)[:, None, None]
    k, bin_starts = np.arange(max(1, int(samples.max(initial=1)))), np.arange(bins, dtype=length.dtype)[:, None]
    half = length.dtype.type(0.5)
    at = (bin_starts + (k + half) / counts) * size[:, None, None] - (length * half)[:, None, None]
    return at, np.broadcast_to((k < samples[:, None, None]) / counts, at.shape)


def _samples(op: SampledBoxes, boxes: Any) -> tuple[Any, Any, Any]:
    """Return the y, x and weights of the samples of boxes (n, 5), each (n, bins, samples per bin)."""
    like = boxes.dtype.type
    center = boxes[:, :2] * like(op.spatial_scale) - like(0.5 if op.aligned else 0)
    size = boxes[:, 2:4] * like(op.spatial_scale)
    if not op.aligned:
        size = np.maximum(size, 1)
    down, weight_down = _offsets(op, size[:, 1], op.pooled_h)
    right, weight_right = _offsets(op, size[:, 0], op.pooled_w)
    # boxes, rows of bins, columns of bins, samples down, samples right
    down, weight_down = down[:, :, None, :, None], weight_down[:, :, None, :, None]
    right, weight_right = right[:, None, :, None, :], weight_right[:, None, :, None, :]
    angle = np.deg2rad(boxes[:, 4]).reshape(-1, 1, 1, 1, 1)
    cos, sin, (x, y) = np.cos(angle), np.sin(angle), (c.reshape(-1, 1, 1, 1, 1) for c in center.T)
    shape = (len(boxes), op.pooled_h * op.pooled_w, -1)
    ys, xs = down * cos - right * sin + y, right * cos + down * sin + x
    return tuple(a.reshape(shape) for a in (ys, xs, weight_down * weight_right))


def _parts(op: SampledBoxes, rois: Any, shape: tuple[int, ...], dtype: Any) -> Iterator[tuple[slice, Any, Any]]:
    """Yield for each chunk of boxes its slice, the pixels that are sampled, and their weights.

    Pixels, indices into those of all images, and weights are (boxes, bins, samples).
    """
    require(bool(np.isfinite(rois * op.spatial_scale).all()), op, "rois must be finite numbers")
    images = rois[:, 0].astype(np.int64) if rois.shape[1] == 6 else np.zeros(len(rois), np.int64)
    check_indices(op.type, images, shape[0], named="images of RoIs")
    boxes = rois[:, -5:].astype(np.float64 if rois.dtype == np.float64 else np.float32)
    bins = np.array([op.pooled_w, op.pooled_h])
    widest = (boxes[:, 2:4] * op.spatial_scale).max(axis=0, initial=1)
    samples = bins * (op.sampling_ratio if op.sampling_ratio > 0 else np.ceil(widest / bins))
    check_extents(f"{op.type}: samples of a box", [int(n) for n in samples], np.float64)
    bytes_per_box = 4 * shape[1] * dtype.itemsize * float(samples.prod())
    step = max(1, int(_CHUNK_BYTES / max(bytes_per_box, 1.0)))
    for begin in range(0, len(boxes), step):
        part = slice(begin, begin + step)
        ys, xs, of_samples = _samples(op, boxes[part])
        corners = bilinear_corners(ys, xs, *shape[2:])
        first = images[part, None, None] * (shape[2] * shape[3])
        rows = np.concatenate([first + position for position, _ in corners], axis=-1)
        weights = np.concatenate([of_samples * of_corner for _, of_corner in corners], axis=-1)
        yield part, rows, weights.astype(dtype)


@kernel(RoIAlignRotated)
def roi_align_rotated(op: RoIAlignRotated, ctx: RunContext, x: Array, rois: Array) -> tuple[Array, ...]:
    xp, images = ctx.xp, widen(x)
    if op.order == "NCHW":
        images = xp.moveaxis(images, 1, -1)
    n, height, width, channels = images.shape
    table = xp.ascontiguousarray(images).reshape(n * height * width, channels)
    y = xp.empty((rois.shape[0], op.pooled_h, op.pooled_w, channels), images.dtype)
    for part, rows, weights in _parts(op, ctx.host(rois), (n, channels, height, width), images.dtype):
        pixels = table[xp.asarray(rows)]
        pooled = xp.matmul(xp.asarray(weights)[:, :, None], pixels)[:, :, 0]
        y[part] = pooled.reshape(y[part].shape)
    return (xp.ascontiguousarray(narrow(xp.moveaxis(y, -1, 1) if op.order == "NCHW" else y, x)),)


@kernel(RoIAlignRotatedGradient)
def roi_align_rotated_gradient(
    op: RoIAlignRotatedGradient, ctx: RunContext, x: Array, rois: Array, dy: Array
) -> tuple[Array, ...]:
    xp, d_bins = ctx.xp, widen(dy)
    first = op.order == "NCHW"
    if first:
        d_bins = xp.moveaxis(d_bins, 1, -1)
    n, (height, width) = x.shape[0], x.shape[2:] if first else x.shape[1:3]
    channels = d_bins.shape[-1]
    table = xp.zeros((n * height * width, channels), d_bins.dtype)
    for part, rows, weights in _parts(op, ctx.host(rois), (n, channels, height, width), d_bins.dtype):
        of_bins = d_bins[part].reshape(*rows.shape[:2], 1, channels)
        add_rows(xp, table, xp.asarray(rows), xp.asarray(weights)[..., None] * of_bins, ctx.add_in_order)
    dx = table.reshape(n, height, width, channels)
    return (xp.ascontiguousarray(narrow(xp.moveaxis(dx, -1, 1) if first else dx, dy)),)
