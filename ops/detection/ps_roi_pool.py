"""PSRoIPool: the means of the bins of boxes, with different channels for each bin; and its gradient."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.indexing import add_rows, check_indices
from netbuilder.ops.core.operator import Operator, TensorSpec
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["PSRoIPool", "PSRoIPoolGradient"]

_INT32 = np.dtype(np.int32)


@dataclass(frozen=True)
class _Boxes(Operator):
    spatial_scale: float = 1.0
    group_size: int = 1
    output_dim: int = 1

    def check(self) -> None:
        if min(self.group_size, self.output_dim) < 1 or not self.spatial_scale > 0:
            raise ArgumentError(
                f"{self.type}: group_size and output_dim must be 1 or more and spatial_scale positive, got "
                f"{self.group_size}, {self.output_dim} and {self.spatial_scale}"
            )


@register
@dataclass(frozen=True)
class PSRoIPool(_Boxes):
    """Y = the means of a grid of bins of each box; 0 for an empty bin.

    A row of RoIs is the index of an image and a box: left, top, right, bottom, which are rounded, then multiplied by
    ``spatial_scale``. Bin (i, j) of output channel c is the mean of channel (c * ``group_size`` + i) * ``group_size`` +
    j of X, the number in mapping_channel.

    Source: Dai et al., "R-FCN", 2016, arXiv:1605.06409, section 2.
    """

    signature = """
        X (N, output_dim * group_size * group_size, H, W): float
        RoIs (R, 5): as X
        -> Y (R, output_dim, group_size, group_size): as X
        -> mapping_channel (R, output_dim, group_size, group_size): int32
    """

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if index else "here"

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("X"), g.input("RoIs"), g.output("mapping_channel"), g.d_output("Y")]
        return [make_op("PSRoIPoolGradient", inputs, [g.d_input("X")])]


@register
@dataclass(frozen=True)
class PSRoIPoolGradient(_Boxes):
    """dX = each element of dY, divided by the size of its bin, added at all pixels of the bin."""

    signature = "X, RoIs, mapping_channel, dY -> dX"

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return ("any", "host", "any", "here")[index]

    def flops(self, x: TensorSpec, rois: TensorSpec, channels: TensorSpec, dy: TensorSpec) -> int:
        return dy.size + x.size


def _edges(op: _Boxes, first: Any, last: Any, extent: int) -> tuple[Any, Any]:
    """Return the begin and the end of the bins of boxes along one axis, clipped to [0, extent]: (boxes, bins)."""
    scale, like = first.dtype.type(op.spatial_scale), first.dtype.type
    start = (np.floor(first + like(0.5)) * scale)[:, None]
    end = ((np.floor(last + like(0.5)) + like(1)) * scale)[:, None]
    size = np.maximum(end - start, like(0.1)) / like(op.group_size)
    steps = np.arange(op.group_size, dtype=first.dtype)
    begin, stop = np.floor(steps * size + start), np.ceil((steps + like(1)) * size + start)
    return begin.clip(0, extent).astype(np.int64), stop.clip(0, extent).astype(np.int64)


def _corners(op: _Boxes, rois: Any, shape: tuple[int, ...]) -> tuple[list[tuple[int, Any]], Any]:
    """Return the sign and the position of each corner of the bins in integral images, and the sizes of the bins.

    The sum over a bin is the signed sum of its four corners in the integral image, of shape (N, C, H + 1, W + 1).
    Positions and sizes are (boxes, output_dim, bins, bins).
    """
    numbers = rois[:, 0].astype(np.int64)
    check_indices(op.type, numbers, shape[0], named="images of RoIs")
    boxes = rois[:, 1:].astype(np.float64 if rois.dtype == np.float64 else np.float32)
    (top, bottom), (left, right) = (
        _edges(op, boxes[:, k], boxes[:, k + 2], shape[2 + side]) for k, side in ((1, 0), (0, 1))
    )
    channels = np.arange(shape[1]).reshape(1, op.output_dim, op.group_size, op.group_size)
    planes = (numbers[:, None, None, None] * shape[1] + channels) * ((shape[2] + 1) * (shape[3] + 1))
    ends = [(1, bottom[:, None, :, None]), (-1, top[:, None, :, None])]
    sides = [(1, right[:, None, None, :]), (-1, left[:, None, None, :])]
    found = [(p * q, planes + row * (shape[3] + 1) + column) for p, row in ends for q, column in sides]
    sizes = (ends[0][1] - ends[1][1]).clip(0) * (sides[0][1] - sides[1][1]).clip(0)
    return found, np.broadcast_to(sizes, planes.shape)


@kernel(PSRoIPool)
def ps_roi_pool(op: PSRoIPool, ctx: RunContext, x: Any, rois: Any) -> tuple[Any, ...]:
    xp, (n, channels, height, width) = ctx.xp, x.shape
    corners, sizes = _corners(op, ctx.host(rois), x.shape)
    sums = xp.zeros((n, channels, height + 1, width + 1), float)  # float64, for differences of large sums
    sums[:, :, 1:, 1:] = xp.cumsum(xp.cumsum(x.astype(float), axis=2), axis=3)
    flat = sums.reshape(-1)
    total = sum(sign * flat[xp.asarray(positions)] for sign, positions in corners)
    y = xp.where(xp.asarray(sizes > 0), total / xp.asarray(np.maximum(sizes, 1)), 0).astype(x.dtype)
    mapping = xp.arange(channels, dtype=_INT32).reshape(1, *y.shape[1:])
    return y, xp.ascontiguousarray(xp.broadcast_to(mapping, y.shape))


@kernel(PSRoIPoolGradient)
def ps_roi_pool_gradient(
    op: PSRoIPoolGradient, ctx: RunContext, x: Any, rois: Any, mapping: Any, dy: Any
) -> tuple[Any, ...]:
    xp, (n, channels, height, width) = ctx.xp, x.shape
    corners, sizes = _corners(op, ctx.host(rois), x.shape)
    d_pixels = xp.asarray((sizes > 0) / np.maximum(sizes, 1)) * dy
    sums = xp.zeros(n * channels * (height + 1) * (width + 1), float)
    for sign, positions in corners:
        add_rows(xp, sums, xp.asarray(positions).reshape(-1), (sign * d_pixels).reshape(-1), ctx.add_in_order)
    flipped = sums.reshape(n, channels, height + 1, width + 1)[:, :, :0:-1, :0:-1]
    dx = xp.cumsum(xp.cumsum(flipped, axis=2), axis=3)[:, :, ::-1, ::-1]
    return (xp.ascontiguousarray(dx).astype(dy.dtype),)
