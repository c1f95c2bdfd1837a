"""SparseToDense, Unique, and reductions by unsorted segment ids: UnsortedSegmentSum, UnsortedSegmentMean."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.given_numbers import check_extents
from netbuilder.ops.core.indexing import add_rows, checked_indices, count_rows
from netbuilder.ops.core.operator import InBatch, Operator, TensorSpec, require, spec_of
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.segment_groups import per_row
from netbuilder.proto import OperatorDef, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "SparseToDense",
    "Unique",
    "UnsortedSegmentMean",
    "UnsortedSegmentMeanGradient",
    "UnsortedSegmentSum",
    "UnsortedSegmentSumGradient",
]


def _check_vector(op: Operator, name: str, spec: TensorSpec) -> None:
    require(
        spec.ndim == 1 and spec.dtype in (np.int32, np.int64),
        op,
        f"{name} must be a vector of int32 or int64, got shape {spec.shape} of {spec.dtype}",
    )


def _extent(ctx: RunContext, indices: Any) -> int:
    """Return the smallest number of rows for which all indices are valid."""
    return int(ctx.host(indices.max())) + 1 if indices.size else 0


@register
@dataclass(frozen=True)
class SparseToDense(Operator):
    """Y[indices[i]] += values[i], 0 elsewhere.

    Y has as many rows as the third input, or ``output_first_dim``, or as the greatest index requires.
    """

    signature = """
        indices (I): int32|int64
        values (I, *S): float|int
        like? (R, ...): any
        -> Y (R, *S): as values
    """
    output_first_dim: int = 0

    def with_arity(self, n_in: int, n_out: int) -> Any:
        object.__setattr__(self, "dynamic", n_in < 3 and self.output_first_dim <= 0)
        return super().with_arity(n_in, n_out)

    def infer(self, indices: TensorSpec, values: TensorSpec, like: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        _check_scattered(self, indices, values)
        if like is not None:
            require(like.ndim >= 1, self, "the third input must have rows, got a scalar")
            rows = like.shape[0]
        elif self.output_first_dim > 0:
            rows = self.output_first_dim
        else:
            raise ShapeError("SparseToDense: without a third input the number of rows is known only when the net runs")
        return (values.with_shape((rows, *values.shape[indices.ndim :])),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("Gather", [g.d_output("Y"), g.input("indices")], [g.d_input("values")])]

    def flops(self, indices: TensorSpec, values: TensorSpec, like: TensorSpec | None = None) -> int:
        return values.size


def _check_scattered(op: Operator, indices: TensorSpec, values: TensorSpec) -> None:
    require(indices.dtype in (np.int32, np.int64), op, f"indices must be int32 or int64, got {indices.dtype}")
    require(
        values.shape[: indices.ndim] == indices.shape,
        op,
        f"values must begin with the shape of indices, {indices.shape}, got {values.shape}",
    )
    require(values.dtype.kind in "fiu", op, f"values must be numbers, got {values.dtype}")


@kernel(SparseToDense)
def sparse_to_dense(op: SparseToDense, ctx: RunContext, indices: Any, values: Any, like: Any = None) -> tuple[Any, ...]:
    _check_scattered(op, spec_of(indices), spec_of(values))
    if like is not None:
        rows = like.shape[0]
    else:
        rows = op.output_first_dim if op.output_first_dim > 0 else _extent(ctx, indices)
    indices = checked_indices(ctx, op.type, indices, rows)
    shape = (rows, *values.shape[indices.ndim :])
    check_extents(f"{op.type}: Y", shape, values.dtype)
    dense = ctx.xp.zeros(shape, values.dtype)
    add_rows(ctx.xp, dense, indices, values, ctx.add_in_order)
    return (dense,)


@register
@dataclass(frozen=True)
class Unique(Operator):
    """The distinct elements of a vector, ascending, and for each element its position among them. No gradient."""

    signature = "indices (I): int32|int64 -> unique (N): as indices, remapping? (I): int32"
    dynamic = True
    in_batch = InBatch.NOT_ADDITIVE
    flops_per_element = 0

    def static_for(self, indices: TensorSpec) -> bool:
        return indices.shape in ((0,), (1,))

    def infer(self, indices: TensorSpec) -> tuple[TensorSpec, ...]:
        _check_vector(self, "indices", indices)
        if not self.static_for(indices):
            raise NotImplementedError("Unique: the number of distinct elements is known only when the net runs")
        return (indices.plain, TensorSpec(indices.shape, np.dtype(np.int32)))[: self.n_out]


@kernel(Unique)
def unique(op: Unique, ctx: RunContext, indices: Any) -> tuple[Any, ...]:
    _check_vector(op, "indices", TensorSpec(tuple(indices.shape), indices.dtype))
    found, positions = ctx.xp.unique(indices, return_inverse=True)
    return found, positions.reshape(-1).astype(np.int32)


@dataclass(frozen=True)
class _Segments(Operator):
    """Base: reductions of rows by the ids of their segments."""

    signature = "X (N, *S): float, segments (N): int32|int64 -> Y (M, *S): as X"
    flops_per_element = 1
    num_segments: int = -1

    def with_arity(self, n_in: int, n_out: int) -> Any:
        object.__setattr__(self, "dynamic", self.num_segments <= 0)
        return super().with_arity(n_in, n_out)

    def infer(self, x: TensorSpec, segments: TensorSpec) -> tuple[TensorSpec, ...]:
        _check_segments(self, x.shape, x, segments)
        if self.num_segments <= 0:
            raise ShapeError(f"{self.type}: without num_segments their number is known only when the net runs")
        return (x.with_shape((self.num_segments, *x.shape[1:])),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op(self.type + "Gradient", [g.d_output("Y"), g.input("segments")], [g.d_input("X")])]

    def summed(self, ctx: RunContext, x: Any, segments: Any) -> Any:
        """Return the sum of the rows of each segment."""
        _check_segments(self, x.shape, x, segments)
        count = self.num_segments if self.num_segments > 0 else _extent(ctx, segments)
        segments = checked_indices(ctx, self.type, segments, count)
        shape = (count, *x.shape[1:])
        check_extents(f"{self.type}: Y", shape, x.dtype)
        total = ctx.xp.zeros(shape, x.dtype)
        add_rows(ctx.xp, total, segments, x, ctx.add_in_order)
        return total


def _check_segments(op: Operator, shape: tuple[int, ...], x: Any, segments: Any) -> None:
    _check_vector(op, "segments", segments)
    require(
        len(shape) >= 1 and segments.shape[0] == shape[0],
        op,
        f"there must be a segment for each row of X {shape}, got {segments.shape[0]}",
    )
    require(x.dtype.kind == "f", op, f"X must hold floating-point numbers, got {x.dtype}")


@dataclass(frozen=True)
class _SegmentsGradient(Operator):
    signature = "dY, segments -> dX"
    num_segments: int = -1


@register
@dataclass(frozen=True)
class UnsortedSegmentSum(_Segments):
    """Y[s] = the sum of the rows of X whose segment is s, in any order; 0 if there are none.

    There are ``num_segments`` segments, or as many as the greatest id requires.
    """


@kernel(UnsortedSegmentSum)
def unsorted_segment_sum(op: UnsortedSegmentSum, ctx: RunContext, x: Any, segments: Any) -> tuple[Any, ...]:
    return (op.summed(ctx, x, segments),)


@register
@dataclass(frozen=True)
class UnsortedSegmentSumGradient(_SegmentsGradient):
    """dX[i] = dY[segments[i]]."""


@kernel(UnsortedSegmentSumGradient)
def unsorted_segment_sum_gradient(
    op: UnsortedSegmentSumGradient, ctx: RunContext, dy: Any, segments: Any
) -> tuple[Any, ...]:
    segments = checked_indices(ctx, op.type, segments, dy.shape[0])
    return (dy.take(segments, axis=0),)


def _counts(ctx: RunContext, segments: Any, count: int, row: Any) -> Any:
    """Return the number of rows of each segment, at least 1, as a divisor of arrays like ``row``."""
    return per_row(ctx.xp.maximum(count_rows(ctx.xp, segments, count), 1), row)


@register
@dataclass(frozen=True)
class UnsortedSegmentMean(_Segments):
    """Y[s] = the mean of the rows of X whose segment is s, in any order; 0 if there are none."""


@kernel(UnsortedSegmentMean)
def unsorted_segment_mean(op: UnsortedSegmentMean, ctx: RunContext, x: Any, segments: Any) -> tuple[Any, ...]:
    total = op.summed(ctx, x, segments)
    check_extents("UnsortedSegmentMean: the numbers of rows of segments", total.shape[:1], np.int64)
    return (total / _counts(ctx, segments, total.shape[0], x),)


@register
@dataclass(frozen=True)
class UnsortedSegmentMeanGradient(_SegmentsGradient):
    """dX[i] = dY[segments[i]] / number of rows in that segment."""


@kernel(UnsortedSegmentMeanGradient)
def unsorted_segment_mean_gradient(
    op: UnsortedSegmentMeanGradient, ctx: RunContext, dy: Any, segments: Any
) -> tuple[Any, ...]:
    segments = checked_indices(ctx, op.type, segments, dy.shape[0])
    share = dy / _counts(ctx, segments, dy.shape[0], dy)
    return (share.take(segments, axis=0),)
