"""Ranges of numbers and one-hot rows, computed from inputs: Range, LengthsRangeFill, OneHot."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.given_numbers import check_extents, one_integer, one_number
from netbuilder.ops.core.indexing import checked_indices
from netbuilder.ops.core.operator import InBatch, Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["LengthsRangeFill", "OneHot", "Range"]


@dataclass(frozen=True)
class _FromNumbers(Operator):
    signature = "-> Y"
    dynamic = True
    flops_per_element = 0

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return []  # not differentiable


@register
@dataclass(frozen=True)
class Range(_FromNumbers):
    """Y = start, start + step, ... before stop; the inputs are stop, or start and stop, or those and step.

    As in Caffe2, descending integers end at the last full step: 5, 3, 1, -1 from 5 to -4 by -2.
    """

    signature = """
        first {1}: float32|float64|int32|int64
        second? {1}: as first
        step? {1}: as first
        -> Y (N): as first
    """
    inputs_on_host = True


@kernel(Range)
def range_(op: Range, ctx: RunContext, *given: Any) -> tuple[Any, ...]:
    for x in given:
        spec = TensorSpec(tuple(x.shape), x.dtype)
        require(spec.size == 1, op, f"inputs must have one element, got shape {spec.shape}")
        require(
            spec.dtype == given[0].dtype, op, f"inputs must have the same type, got {given[0].dtype} and {spec.dtype}"
        )
    values = [one_number(op, ctx, x, "an input") for x in given]
    require(all(map(math.isfinite, values)), op, f"inputs must be finite, got {values}")
    start, stop = (0, values[0]) if len(values) == 1 else values[:2]
    step = values[2] if len(values) == 3 else 1
    require(step != 0, op, "step must not be 0")
    if isinstance(step, int):
        count = (stop - start) // step if step < 0 else -((start - stop) // step)
    else:
        count = math.ceil((stop - start) / step)
    count = max(int(count), 0)
    check_extents("Range: Y", (count,), given[0].dtype)
    kind = given[0].dtype.type
    return (ctx.xp.arange(count).astype(kind) * kind(step) + kind(start),)


@register
@dataclass(frozen=True)
class LengthsRangeFill(_FromNumbers):
    """Y = 0, 1, ..., lengths[i] - 1 for each i, concatenated."""

    signature = "lengths (M): int32 -> Y (N): int32"
    inputs_on_host = True


@kernel(LengthsRangeFill)
def lengths_range_fill(op: LengthsRangeFill, ctx: RunContext, lengths: Any) -> tuple[Any, ...]:
    require(lengths.ndim == 1 and lengths.dtype == np.int32, op, "lengths must be a vector of int32")
    counts = ctx.host(lengths)
    require(not counts.size or counts.min() >= 0, op, f"lengths must not be negative, got {counts.min(initial=0)}")
    check_extents("LengthsRangeFill: Y", (int(counts.sum(dtype=np.int64)),), np.int64)
    starts = np.cumsum(counts) - counts
    return (ctx.xp.asarray((np.arange(counts.sum()) - np.repeat(starts, counts)).astype(np.int32)),)


@register
@dataclass(frozen=True)
class OneHot(_FromNumbers):
    """Y[i] = a row of zeros (float32) with 1 at indices[i]; index_size, of one element, is the length of the rows."""

    signature = "indices (I): int64, index_size (1): int64 -> Y (I, D): float32|uint8|bool"
    in_batch = InBatch.ROW_BY_ROW | InBatch.SAME_ROWS
    inputs_on_host = (1,)


@kernel(OneHot)
def one_hot(op: OneHot, ctx: RunContext, indices: Any, index_size: Any) -> tuple[Any, ...]:
    require(indices.ndim == 1 and indices.dtype == np.int64, op, "indices must be a vector of int64")
    width = one_integer(op, ctx, index_size, "index_size")
    require(width >= 0, op, f"index_size must not be negative, got {width}")
    check_extents("OneHot: Y", (*indices.shape, width), np.float32)
    check_extents("OneHot: the numbers of the columns", (width,), np.int64)
    indices = checked_indices(ctx, "OneHot", indices, width)
    return ((indices[:, None] == ctx.xp.arange(width)[None, :]).astype(np.float32),)
