"""RoIAlignRotated: parts of images, given by rotated boxes, each sampled down to one size; and its gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.given_numbers import check_extents
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.indexing import add_rows, check_indices
from netbuilder.ops.core.operator import require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.detection.sampled_boxes import BoxSamples, BoxSamplesGradient, SampledBoxes
from netbuilder.ops.images.bilinear import bilinear_corners

__all__ = ["RoIAlignRotated", "RoIAlignRotatedGradient"]

Array = Any
_PART = 1 << 26  # chunk size, bytes


@register
@operator_class(frozen=True)
class RoIAlignRotated(BoxSamples):
    """Y = for each box the means of a grid of samples, (boxes, C, pooled_h, pooled_w).

    A row of RoIs is a box: number of the image (left out: 0), x and y of its center, width, height, and the angle in
    degrees by which it is turned anticlockwise; all but the angle are multiplied by ``spatial_scale``. Samples are as
    RoIAlign's, and so are ``sampling_ratio`` and ``aligned``.

    Source: Ma et al., "Arbitrary-Oriented Scene Text Detection via Rotation Proposals", 2017, arXiv:1703.01086.
    """

    numbers = 5


@register
@operator_class(frozen=True)
class RoIAlignRotatedGradient(BoxSamplesGradient):
    """dX = each element of dY, shared out to the pixels of X that it was made from."""

    numbers = 5


def _offsets(op: SampledBoxes, length: Any, bins: int) -> tuple[Any, Any]:
    """Return how far from the center samples are along one axis, (boxes, bins, most), and their weights."""
    size = length / bins
    samples = np.full(len(size), op.sampling_ratio) if op.sampling_ratio > 0 else np.ceil(size).astype(np.int64)
    counts = np.maximum(samples, 1).astype(length.dtype)[:, None, None]
    k, bin_starts = np.arange(max(1, int(samples.max(initial=1)))), np.arange(bins, dtype=length.dtype)[:, None]
    half = length.dtype.type(0.5)
    at = (bin_starts + (k + half) / counts) * size[:, None, None] - (length * half)[:, None, None]
    return at, np.broadcast_to((k < samples[:, None, None]) / counts, at.shape)


def _samples(op: SampledBoxes, boxes: Any) -> tuple[Any, Any, Any]:
    """Return where the samples of boxes (n, 5) are, down and right, and their weights: (n, bins, samples of a bin)."""
    like = boxes.dtype.type
    center = boxes[:, :2] * like(op.spatial_scale) - like(0.5 if op.aligned else 0)
    size = boxes[:, 2:4] * like(op.spatial_scale)
    if not op.aligned:
        size = np.maximum(size, 1)
    down, share_down = _offsets(op, size[:, 1], op.pooled_h)
    right, share_right = _offsets(op, size[:, 0], op.pooled_w)
    # boxes, rows of bins, columns of bins, samples down, samples right
    down, share_down = down[:, :, None, :, None], share_down[:, :, None, :, None]
    right, share_right = right[:, None, :, None, :], share_right[:, None, :, None, :]
    angle = np.deg2rad(boxes[:, 4]).reshape(-1, 1, 1, 1, 1)
    cos, sin, (x, y) = np.cos(angle), np.sin(angle), (c.reshape(-1, 1, 1, 1, 1) for c in center.T)
    shape = (len(boxes), op.pooled_h * op.pooled_w, -1)
    ys, xs = down * cos - right * sin + y, right * cos + down * sin + x
    return tuple(a.reshape(shape) for a in (ys, xs, share_down * share_right))


def _parts(op: SampledBoxes, rois: Any, shape: tuple[int, ...], dtype: Any) -> Iterator[tuple[slice, Any, Any]]:
    """Yield for some boxes at a time: which, the rows of the images that they see, and their weights.

    Rows and weights are (boxes, bins, samples); rows count the pixels of all images, channels last.
    """
    require(bool(np.isfinite(rois * op.spatial_scale).all()), op, "rois must be finite numbers")
    images = rois[:, 0].astype(np.int64) if rois.shape[1] == 6 else np.zeros(len(rois), np.int64)
    check_indices(f"{op.type}: numbers of images", images, shape[0])
    boxes = rois[:, -5:].astype(np.float64 if rois.dtype == np.float64 else np.float32)
    bins = np.array([op.pooled_w, op.pooled_h])
    widest = (boxes[:, 2:4] * op.spatial_scale).max(axis=0, initial=1)
    samples = bins * (op.sampling_ratio if op.sampling_ratio > 0 else np.ceil(widest / bins))
    check_extents(f"{op.type}: samples of a box", [int(n) for n in samples], np.float64)
    of_box = 4 * shape[1] * dtype.itemsize * float(samples.prod())
    step = max(1, int(_PART / max(of_box, 1.0)))
    for begin in range(0, len(boxes), step):
        part = slice(begin, begin + step)
        ys, xs, shares = _samples(op, boxes[part])
        corners = bilinear_corners(ys, xs, *shape[2:])
        first = images[part, None, None] * (shape[2] * shape[3])
        rows = np.concatenate([first + position for position, _ in corners], axis=-1)
        weights = np.concatenate([shares * share for _, share in corners], axis=-1)
        yield part, rows, weights.astype(dtype)


@kernel(RoIAlignRotated)
def roi_align_rotated(op: RoIAlignRotated, ctx: RunContext, x: Array, rois: Array) -> tuple[Array, ...]:
    xp, images = ctx.xp, widen(x)
    if op.order == "NCHW":
        images = xp.moveaxis(images, 1, -1)
    n, height, width, channels = images.shape
    table = xp.ascontiguousarray(images).reshape(-1, channels)
    y = xp.empty((rois.shape[0], op.pooled_h, op.pooled_w, channels), images.dtype)
    for part, rows, weights in _parts(op, ctx.host(rois), (n, channels, height, width), images.dtype):
        seen = table[xp.asarray(rows)]
        pooled = xp.matmul(xp.asarray(weights)[:, :, None], seen)[:, :, 0]
        y[part] = pooled.reshape(-1, *y.shape[1:])
    return (xp.ascontiguousarray(narrow(xp.moveaxis(y, -1, 1) if op.order == "NCHW" else y, x)),)


@kernel(RoIAlignRotatedGradient)
def roi_align_rotated_gradient(
    op: RoIAlignRotatedGradient, ctx: RunContext, x: Array, rois: Array, dy: Array
) -> tuple[Array, ...]:
    xp, slopes = ctx.xp, widen(dy)
    first = op.order == "NCHW"
    if first:
        slopes = xp.moveaxis(slopes, 1, -1)
    n, (height, width) = x.shape[0], x.shape[2:] if first else x.shape[1:3]
    channels = slopes.shape[-1]
    table = xp.zeros((n * height * width, channels), slopes.dtype)
    for part, rows, weights in _parts(op, ctx.host(rois), (n, channels, height, width), slopes.dtype):
        of_bins = slopes[part].reshape(*rows.shape[:2], 1, channels)
        add_rows(xp, table, xp.asarray(rows), xp.asarray(weights)[..., None] * of_bins)
    dx = table.reshape(n, height, width, channels)
    return (xp.ascontiguousarray(narrow(xp.moveaxis(dx, -1, 1) if first else dx, dy)),)
