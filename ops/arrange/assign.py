"""NumpyTile, which repeats a tensor along its axes; Scatter, CopyRowsToTensor, which replace elements and rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.given_numbers import check_extents
from netbuilder.ops.core.indexing import checked_indices, with_rows
from netbuilder.ops.core.operator import InBatch, Operator, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.segment_groups import check_integers
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["CopyRowsToTensor", "CopyRowsToTensorGradient", "NumpyTile", "Scatter"]


@register
@dataclass(frozen=True)
class NumpyTile(Operator):
    """Y = X repeated ``repeats[i]`` times along each axis i, as numpy.tile does. No gradient."""

    signature = "X (*S): any, repeats (len(S)): int32|int64 -> Y (*T): as X"
    dynamic = True
    in_batch = InBatch.SAME_ROWS
    inputs_on_host = (1,)
    flops_per_element = 0


@kernel(NumpyTile)
def numpy_tile(op: NumpyTile, ctx: RunContext, x: Any, repeats: Any) -> tuple[Any, ...]:
    check_integers(op, "repeats", repeats)
    times = ctx.host(repeats).tolist()
    require(len(times) == x.ndim, op, f"repeats must have one number per axis of X {x.shape}, got {times}")
    require(min(times, default=0) >= 0, op, f"repeats must not be negative, got {times}")
    check_extents("NumpyTile: Y", [n * k for n, k in zip(x.shape, times)], x.dtype)
    return ((np if isinstance(x, np.ndarray) else ctx.xp).tile(x, times),)


@register
@dataclass(frozen=True)
class Scatter(Operator):
    """Y = X with elements replaced along ``axis``: Y[i, indices[i, j]] = updates[i, j] for axis 1. No gradient.

    At repeated positions the last update is used.
    """

    signature = "X (*A, N @ axis, *B): any, indices (*A, M, *B): int32|int64, updates (*A, M, *B): as X -> Y: as X"
    inplace = ((0, 0),)
    flops_per_element = 0
    axis: int = 1


@kernel(Scatter)
def scatter(op: Scatter, ctx: RunContext, x: Any, indices: Any, updates: Any) -> tuple[Any, ...]:
    axis = op.axis % x.ndim
    indices = checked_indices(ctx, op.type, indices, x.shape[axis])
    positions = ctx.xp.arange(x.size).reshape(x.shape)
    where = ctx.xp.take_along_axis(positions, indices.astype(np.int64), axis).reshape(-1)
    return (with_rows(ctx.xp, x.reshape(-1), where, updates.reshape(-1)).reshape(x.shape),)


@register
@dataclass(frozen=True)
class CopyRowsToTensor(Operator):
    """Y = X with the rows ``indices`` replaced by ``row``, in place. The gradient of X is that of Y itself."""

    signature = "X (R, *S): any, indices (I): int32|int64, row {prod(S)}: as X -> Y (R, *S): as X"
    must_inplace = ((0, 0),)
    flops_per_element = 0

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("CopyRowsToTensorGradient", [g.d_output("Y")], [g.d_input("X")])]


@kernel(CopyRowsToTensor)
def copy_rows_to_tensor(op: CopyRowsToTensor, ctx: RunContext, x: Any, indices: Any, row: Any) -> tuple[Any, ...]:
    indices = checked_indices(ctx, op.type, indices, x.shape[0])
    y = x.copy()
    y[indices] = row.reshape(x.shape[1:])
    return (y,)


@register
@dataclass(frozen=True)
class CopyRowsToTensorGradient(Operator):
    """dX = dY."""

    signature = "dY -> dX"
    inplace = ((0, 0),)
    flops_per_element = 0


@kernel(CopyRowsToTensorGradient)
def copy_rows_to_tensor_gradient(op: CopyRowsToTensorGradient, ctx: RunContext, dy: Any) -> tuple[Any, ...]:
    return (dy.copy(),)
