"""Rows selected by masks: BooleanMask and its gradient, BooleanUnmask, BooleanMaskLengths."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import NetError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.errors import counted
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["BooleanMask", "BooleanMaskGradient", "BooleanMaskLengths", "BooleanUnmask"]

_BOOL = np.dtype(np.bool_)


def _check_mask(op: Operator, mask: Any, length: int | None = None) -> None:
    """Raise ShapeError unless a mask, or its spec, is a vector of bools, of ``length`` if that is given."""
    fits = len(mask.shape) == 1 and mask.dtype == _BOOL and length in (None, mask.shape[0])
    text = "" if length is None else f" of length {length}"
    require(fits, op, f"mask must be a vector of bools{text}, got shape {tuple(mask.shape)} of type {mask.dtype}")


@register
@dataclass(frozen=True)
class BooleanMask(Operator):
    """The rows of ``data`` where ``mask`` is true; the second output is their indices."""

    signature = """
        data (N, *S): any
        mask (N): bool
        -> masked_data (M, *S): as data
        -> masked_indices? (M): int64
    """
    dynamic = True
    rows_chosen_by = 1
    flops_per_element = 0

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("BooleanMaskGradient", [g.input("mask"), g.d_output("masked_data")], [g.d_input("data")])]


@register
@dataclass(frozen=True)
class BooleanMaskGradient(Operator):
    """dX = the rows of dY where ``mask`` is true, zeros elsewhere."""

    signature = "mask, dmasked_data -> ddata"
    flops_per_element = 0


@kernel(BooleanMask)
def boolean_mask(op: BooleanMask, ctx: RunContext, data: Any, mask: Any) -> tuple[Any, ...]:
    require(data.ndim >= 1, op, "data must have rows, got a scalar")
    _check_mask(op, mask, data.shape[0])
    positions = ctx.xp.flatnonzero(mask)
    return (data[positions], positions.astype(np.int64, copy=False))[: op.n_out]


@kernel(BooleanMaskGradient)
def boolean_mask_gradient(op: BooleanMaskGradient, ctx: RunContext, mask: Any, dy: Any) -> tuple[Any, ...]:
    positions = ctx.xp.flatnonzero(mask)
    text = f"dY must have one row for each of the {positions.size} rows where mask is true, got shape {dy.shape}"
    require(dy.shape[0] == positions.size, op, text)
    dx = ctx.xp.zeros((mask.shape[0], *dy.shape[1:]), dy.dtype)
    dx[positions] = dy
    return (dx,)


@register
@dataclass(frozen=True)
class BooleanUnmask(Operator):
    """Merge the rows of several tensors by their masks: the inverse of several BooleanMask. No gradient.

    The inputs are pairs of a mask and the rows for which it is true. Each row of the output comes from the first mask
    that is true there.
    """

    signature = """
        mask_and_data+ (...): any, a mask (N), bool, and its rows (M, *S), alternating
        -> unmasked_data (...): any, (N, *S), the type of the rows
    """
    flops_per_element = 0

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        require(len(inputs) % 2 == 0, self, f"inputs must be pairs of a mask and its rows, got {len(inputs)} inputs")
        masks, rows = inputs[::2], inputs[1::2]
        for mask in masks:
            _check_mask(self, mask, masks[0].shape[0] if masks[0].shape else None)
        for data in rows:
            fits = data.ndim >= 1 and data.shape[1:] == rows[0].shape[1:] and data.dtype == rows[0].dtype
            require(
                fits, self, f"rows must have the same shape and type, got {[(r.shape, str(r.dtype)) for r in rows]}"
            )
        return (rows[0].with_shape(masks[0].shape + rows[0].shape[1:]),)


@kernel(BooleanUnmask)
def boolean_unmask(op: BooleanUnmask, ctx: RunContext, *inputs: Any) -> tuple[Any, ...]:
    xp, masks, rows = ctx.xp, inputs[::2], inputs[1::2]
    covered = xp.zeros(masks[0].shape, np.bool_)
    result = xp.empty((masks[0].shape[0], *rows[0].shape[1:]), rows[0].dtype)
    for i, (mask, data) in enumerate(zip(masks, rows)):
        count = int(mask.sum())
        if count != data.shape[0]:
            raise NetError(
                f"BooleanUnmask: there must be one row for each position where a mask is true; mask {i} is true at "
                f"{counted(count, 'position')} and has {counted(data.shape[0], 'row')}"
            )
        result[mask & ~covered] = data[~covered[mask]]
        covered |= mask
    if not covered.all():
        raise NetError(f"BooleanUnmask: no mask is true at position {int(xp.argmin(covered))}")
    return (result,)


@register
@dataclass(frozen=True)
class BooleanMaskLengths(Operator):
    """masked_lengths[i] = the number of true elements of ``mask`` in segment i, of lengths[i] elements. No gradient."""

    signature = "lengths (S): int32|int64, mask (N): bool -> masked_lengths (S): as lengths"


@kernel(BooleanMaskLengths)
def boolean_mask_lengths(op: BooleanMaskLengths, ctx: RunContext, lengths: Any, mask: Any) -> tuple[Any, ...]:
    xp = ctx.xp
    ends = xp.cumsum(lengths.astype(np.int64))
    total = int(ends[-1]) if ends.size else 0
    require(
        total == mask.shape[0] and (not lengths.size or int(lengths.min()) >= 0),
        op,
        f"lengths must not be negative and must add up to the length of mask, {mask.shape[0]}; they add up to {total}",
    )
    counts = xp.zeros(mask.shape[0] + 1, np.int64)
    counts[1:] = xp.cumsum(mask.astype(np.int64))
    return ((counts[ends] - counts[ends - lengths]).astype(lengths.dtype),)
