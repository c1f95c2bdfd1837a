"""MaxPoolWithIndex: the maximum of each window and its position; and its gradient."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.half import require_one_float_type
from netbuilder.ops.core.indexing import add_rows, checked_indices
from netbuilder.ops.core.operator import TensorSpec, spec_of
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.windows.conv_windows import pad_images, taps
from netbuilder.ops.windows.pool import PoolArguments
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["MaxPoolWithIndex", "MaxPoolWithIndexGradient"]

_INT32 = np.dtype(np.int32)


@dataclass(frozen=True)
class _Arguments(PoolArguments):
    def check(self) -> None:
        super().check()
        if self.order != "NCHW":
            raise ArgumentError(f"{self.type}: order must be NCHW, got {self.order!r}; put NHWC2NCHW before it")


@register
@dataclass(frozen=True)
class MaxPoolWithIndex(_Arguments):
    """Y = the maximum of each window; Index = its position in the image plane, the first of ties. Pads are ignored."""

    signature = "X (N, C, H, W): float -> Y (N, C, P, Q): as X, Index (N, C, P, Q): int32"

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        require_one_float_type(self, X=x)
        y = self.pooled(x)
        return (y, y.with_dtype(_INT32))

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("X"), g.d_output("Y"), g.output("Index")]
        return [make_op("MaxPoolWithIndexGradient", inputs, [g.d_input("X")])]

    def flops(self, x: TensorSpec) -> int:
        return self.visits(x)


@register
@dataclass(frozen=True)
class MaxPoolWithIndexGradient(_Arguments):
    """dX = each element of dY added at its Index in the image plane."""

    signature = "X, dY, Index -> dX"

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "here" if index else "any"  # only the shape of X is used

    def flops(self, x: TensorSpec, dy: TensorSpec, index: TensorSpec) -> int:
        return dy.size


@kernel(MaxPoolWithIndex)
def max_pool_with_index(op: MaxPoolWithIndex, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    xp, n, channels, extents = ctx.xp, x.shape[0], x.shape[1], x.shape[2:]
    if op.global_pooling:
        planes = x.reshape(n, channels, math.prod(extents))
        ones = (n, channels) + (1,) * len(extents)
        return planes.max(axis=2).reshape(ones), planes.argmax(axis=2).reshape(ones).astype(_INT32)
    geometry = op.geometry(spec_of(x))
    positions = xp.arange(math.prod(extents), dtype=_INT32).reshape(1, 1, *extents)
    padded, padded_positions = pad_images(xp, x, geometry, -xp.inf), pad_images(xp, positions, geometry, -1)
    best = xp.full((n, channels, *geometry.out), -xp.inf, x.dtype)
    where = xp.full(best.shape, -1, _INT32)
    for _, index in taps(geometry, geometry.out):
        values, here = padded[index], padded_positions[index]
        better = ((values > best) | (where < 0)) & (here >= 0)
        best, where = xp.where(better, values, best), xp.where(better, here, where)
    return best, where


@kernel(MaxPoolWithIndexGradient)
def max_pool_with_index_gradient(
    op: MaxPoolWithIndexGradient, ctx: RunContext, x: Any, dy: Any, index: Any
) -> tuple[Any, ...]:
    xp, plane = ctx.xp, math.prod(x.shape[2:])
    index = checked_indices(ctx, op.type, index, plane)
    first = xp.arange(x.shape[0] * x.shape[1]).reshape(x.shape[:2] + (1,) * (x.ndim - 2)) * plane
    dx = xp.zeros(x.size, dy.dtype)
    add_rows(xp, dx, (first + index).reshape(-1), dy.reshape(-1), ctx.add_in_order)
    return (dx.reshape(x.shape),)
