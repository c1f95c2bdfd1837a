"""Gather and BatchGather: rows, or slices along an axis, gathered by indices."""

from __future__ import annotations

import abc
import math
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.indexing import add_rows, checked_indices
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["BatchGather", "BatchGatherGradient", "Gather"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class _Gathering(Operator, abc.ABC):
    """Base: slices of a tensor gathered by indices."""

    signature = """
        X (*A, R @ axis, *B): any
        indices (*A, *I) if match_outer else (*I): int32|int64
        -> Y (*A, *I, *B): as X
    """
    flops_per_element = 0
    match_outer: bool = False

    def check_inputs(self, x: TensorSpec, *others: TensorSpec) -> None:
        axis = self.indexed_axis(x.ndim)
        text = f"match_outer is for an axis after the first one, got axis {axis}"
        require(axis > 0 or not self.match_outer, self, text)

    @abc.abstractmethod
    def indexed_axis(self, ndim: int) -> int:
        """Return the axis that is indexed, in an X of ``ndim`` axes."""

    def lowest(self, axis: int, extent: int) -> int:
        """Return the lowest index allowed."""
        return 0


def _outer_indices(xp: Any, x: Shape, indices: Any, axis: int) -> Any:
    """Return indices with outer axes as row numbers of an X flattened to (outer axes and ``axis``, inner axes)."""
    outer = math.prod(x[:axis])
    return indices.reshape(outer, -1) + xp.arange(outer, dtype=np.int64)[:, None] * x[axis]


@register
@dataclass(frozen=True)
class Gather(_Gathering):
    """Y = the slices of X at ``indices`` along ``axis``; the shape of the indices replaces the axis.

    With ``wrap_indices`` a negative index counts from the end; if the argument is not given, along axis 0. With
    ``match_outer`` the indices begin with the axes that X has before ``axis``, so that each sample has its own.

    The gradient for axis 0 is sparse, the indices and the output's gradient; with ``dense_gradient``, and for other
    axes, it is dense.
    """

    axis: int = 0
    dense_gradient: bool = False
    wrap_indices: bool | None = None

    def indexed_axis(self, ndim: int) -> int:
        return self.axis % ndim

    def lowest(self, axis: int, extent: int) -> int:
        wraps = axis == 0 if self.wrap_indices is None else self.wrap_indices
        return -extent if wraps else 0

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        indices, dy = g.input("indices"), g.d_output("Y")
        if self.axis != 0:
            return [make_op("BatchGatherGradient", [g.input("X"), indices, dy], [g.d_input("X")])]
        if self.dense_gradient:
            return [make_op("SparseToDense", [indices, dy, g.input("X")], [g.d_input("X")])]
        g.set_d_input_sparse("X", indices, dy)
        return []


@register
@dataclass(frozen=True)
class BatchGather(_Gathering):
    """Y = the slices of X at ``indices`` along axis 1; with ``match_outer`` each sample has its own indices."""

    signature = "X (N, R, *B): any, indices (N, *I) if match_outer else (*I): int32|int64 -> Y (N, *I, *B): as X"

    def indexed_axis(self, ndim: int) -> int:
        return 1

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("X"), g.input("indices"), g.d_output("Y")]
        return [make_op("BatchGatherGradient", inputs, [g.d_input("X")])]


def _gather(op: _Gathering, ctx: RunContext, x: Any, indices: Any) -> tuple[Any, ...]:
    axis = op.indexed_axis(x.ndim)
    indices = checked_indices(ctx, op.type, indices, x.shape[axis], op.lowest(axis, x.shape[axis]))
    if not op.match_outer:
        return (x.take(indices, axis=axis),)
    inner = x.shape[axis + 1 :]
    rows = x.reshape(math.prod(x.shape[: axis + 1]), math.prod(inner))
    y = rows[_outer_indices(ctx.xp, x.shape, indices, axis)]
    return (y.reshape(indices.shape + inner),)


for _cls in (Gather, BatchGather):
    kernel(_cls)(_gather)


@register
@dataclass(frozen=True)
class BatchGatherGradient(_Gathering):
    """dX = dY summed at ``indices`` along ``axis``, 0 elsewhere; ``match_outer`` as for Gather."""

    signature = "X, indices, dY -> dX"
    gradient_of = Gather
    axis: int = 1

    def indexed_axis(self, ndim: int) -> int:
        return self.axis % ndim


@kernel(BatchGatherGradient)
def batch_gather_gradient(op: BatchGatherGradient, ctx: RunContext, x: Any, indices: Any, dy: Any) -> tuple[Any, ...]:
    axis = op.axis % x.ndim
    indices = checked_indices(ctx, op.type, indices, x.shape[axis])
    if op.match_outer:
        table = ctx.xp.zeros((math.prod(x.shape[: axis + 1]), math.prod(x.shape[axis + 1 :])), x.dtype)
        add_rows(ctx.xp, table, _outer_indices(ctx.xp, x.shape, indices, axis), dy, ctx.add_in_order)
        return (table.reshape(x.shape),)
    # The axis is moved to the front, so that whole rows are added.
    outer, inner = x.shape[:axis], x.shape[axis + 1 :]
    rows = dy.reshape(math.prod(outer), indices.size, math.prod(inner)).transpose(1, 0, 2)
    table = ctx.xp.zeros((x.shape[axis], math.prod(outer), math.prod(inner)), x.dtype)
    add_rows(ctx.xp, table, indices, ctx.xp.ascontiguousarray(rows), ctx.add_in_order)
    return (table.transpose(1, 0, 2).reshape(x.shape),)
