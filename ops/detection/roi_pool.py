"""RoIPool: the maxima of the bins of boxes in images; and its gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.indexing import add_rows, check_indices
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["CHUNK_BYTES", "RoIPool", "RoIPoolF", "RoIPoolFGradient", "RoIPoolGradient"]

CHUNK_BYTES = 1 << 26


@dataclass(frozen=True)
class _Boxes(Operator):
    inputs_on_host = (1,)
    is_test: bool = False
    order: str = "NCHW"
    pooled_h: int = 1
    pooled_w: int = 1
    spatial_scale: float = 1.0

    def check(self) -> None:
        if self.order != "NCHW":
            raise ArgumentError(f"{self.type}: order must be NCHW, got {self.order!r}")
        if min(self.pooled_h, self.pooled_w) < 1 or not self.spatial_scale > 0:
            raise ArgumentError(
                f"{self.type}: pooled_h and pooled_w must be 1 or more and spatial_scale positive, got "
                f"{self.pooled_h}, {self.pooled_w} and {self.spatial_scale}"
            )

    def check_inputs(self, x: TensorSpec, *others: TensorSpec) -> None:
        require(min(x.shape[2:]) >= 1, self, f"X must have pixels, got shape {x.shape}")


@register
@dataclass(frozen=True)
class RoIPool(_Boxes):
    """Y = the maxima of a grid of bins of each box; 0 for an empty bin.

    A row of RoIs is the index of an image and a box: left, top, right, bottom, which are multiplied by
    ``spatial_scale`` and rounded; the edges belong to the box. Bins may overlap. argmaxes, which is omitted with
    ``is_test``, are the positions of the maxima in the image plane, -1 for an empty bin.

    Source: Girshick, "Fast R-CNN", 2015, arXiv:1504.08083, section 2.1.
    """

    signature = """
        X (N, C, H, W): float
        RoIs (R, 5): float|int
        -> Y (R, C, pooled_h, pooled_w): as X
        -> argmaxes? (R, C, pooled_h, pooled_w): int32
    """

    def check(self) -> None:
        super().check()
        if self.n_out != (1 if self.is_test else 2):
            raise ArgumentError(f"{self.type} must have one output with is_test and two without, got {self.n_out}")

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("X"), g.input("RoIs"), g.output("argmaxes"), g.d_output("Y")]
        return [make_op(f"{self.type}Gradient", inputs, [g.d_input("X")])]


@register
@dataclass(frozen=True)
class RoIPoolF(RoIPool):
    """RoIPool under the name that it has in Detectron's nets."""


def _bins(first: Any, last: Any, count: int, extent: int) -> tuple[Any, Any]:
    """Return the begin and the end of ``count`` bins between two pixels, clipped to [0, extent]: (boxes, count)."""
    size = (np.maximum(last - first + 1, 1) / np.float32(count)).astype(np.float32)[:, None]
    steps = np.arange(count, dtype=np.float32)
    begin, end = np.floor(steps * size), np.ceil((steps + 1) * size)
    begin, end = ((first[:, None] + side).clip(0, extent).astype(np.int64) for side in (begin, end))
    return begin, end


def _positions(begin: Any, end: Any) -> tuple[Any, Any]:
    """Return the pixels of each bin, (boxes, bins, pixels), padded to the largest bin, and which of them are in it."""
    most = max(int((end - begin).max(initial=1)), 1)
    positions = begin[..., None] + np.arange(most)
    inside = positions < end[..., None]
    return np.where(inside, positions, 0), inside


def _chunks(boxes: int, bytes_per_box: int) -> Iterator[slice]:
    step = max(1, CHUNK_BYTES // max(bytes_per_box, 1))
    for begin in range(0, boxes, step):
        yield slice(begin, min(begin + step, boxes))


@kernel(RoIPool)
@kernel(RoIPoolF)
def roi_pool(op: RoIPool, ctx: RunContext, x: Any, rois: Any) -> tuple[Any, ...]:
    xp, (count, channels, height, width) = ctx.xp, x.shape
    boxes = ctx.host(rois).astype(np.float32)
    require(bool(np.isfinite(boxes).all()), op, "rois must be finite numbers")
    images = boxes[:, 0].astype(np.int64)
    check_indices(op.type, images, count, named="images of RoIs")
    scaled = boxes[:, 1:] * np.float32(op.spatial_scale)
    left, top, right, bottom = (np.sign(scaled) * np.floor(abs(scaled) + 0.5)).T
    rows = _bins(top, bottom, op.pooled_h, height)
    columns = _bins(left, right, op.pooled_w, width)
    y = xp.empty((len(boxes), channels, op.pooled_h, op.pooled_w), x.dtype)
    where = xp.empty(y.shape, np.int32)
    sizes = [int((end - begin).max(initial=1)) for begin, end in (rows, columns)]
    bytes_per_box = channels * op.pooled_h * op.pooled_w * max(sizes[0] * sizes[1], 1) * x.dtype.itemsize
    for part in _chunks(len(boxes), bytes_per_box):
        i, in_rows = _positions(*(side[part] for side in rows))
        j, in_columns = _positions(*(side[part] for side in columns))
        # boxes, rows of bins, columns of bins, pixels in a bin
        inside = (in_rows[:, :, None, :, None] & in_columns[:, None, :, None, :]).reshape(*i.shape[:2], j.shape[1], -1)
        position = (i[:, :, None, :, None] * width + j[:, None, :, None, :]).reshape(inside.shape)
        image = xp.asarray(images[part][:, None, None, None, None])
        pixels = x[image, :, xp.asarray(i[:, :, None, :, None]), xp.asarray(j[:, None, :, None, :])]
        pixels = xp.moveaxis(pixels, -1, 1).reshape(len(i), channels, *inside.shape[1:])
        pixels = xp.where(xp.asarray(inside[:, None]), pixels, x.dtype.type(-np.inf))
        best = pixels.argmax(axis=-1)[..., None]
        not_empty = xp.asarray(inside.any(axis=-1)[:, None])
        positions = xp.broadcast_to(xp.asarray(position[:, None]), pixels.shape)
        y[part] = xp.where(not_empty, xp.take_along_axis(pixels, best, axis=-1)[..., 0], x.dtype.type(0))
        where[part] = xp.where(not_empty, xp.take_along_axis(positions, best, axis=-1)[..., 0], -1)
    return y, where


@register
@dataclass(frozen=True)
class RoIPoolGradient(_Boxes):
    """dX = each element of dY added at the maximum of its bin."""

    signature = "X, RoIs, argmaxes, dY -> dX"


@register
@dataclass(frozen=True)
class RoIPoolFGradient(RoIPoolGradient):
    """RoIPoolGradient under the name that it has in Detectron's nets."""


@kernel(RoIPoolGradient)
@kernel(RoIPoolFGradient)
def roi_pool_gradient(
    op: RoIPoolGradient, ctx: RunContext, x: Any, rois: Any, argmaxes: Any, dy: Any
) -> tuple[Any, ...]:
    xp, plane = ctx.xp, x.shape[2] * x.shape[3]
    images = ctx.host(rois)[:, 0].astype(np.int64)
    check_indices(op.type, images, x.shape[0], named="images of RoIs")
    first = xp.asarray((images[:, None] * x.shape[1] + np.arange(x.shape[1])) * plane)[:, :, None, None]
    not_empty = argmaxes >= 0
    dx = xp.zeros(x.size, x.dtype)
    positions, shares = xp.where(not_empty, first + argmaxes, 0), xp.where(not_empty, dy, dy.dtype.type(0))
    add_rows(xp, dx, positions.reshape(-1), shares.reshape(-1), ctx.add_in_order)
    return (dx.reshape(x.shape),)
