"""Sparse rows made dense and back, membership and duplicates: BatchSparseToDense, IsMemberOf and others."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.data_types import numpy_type
from netbuilder.ops.core.indexing import checked_indices, with_rows
from netbuilder.ops.core.operator import STRING, Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.segment_groups import check_integers, counts_of_lengths, segment_numbers
from netbuilder.proto import ArgumentError, OperatorDef, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["BatchDenseToSparse", "BatchSparseToDense", "FindDuplicateElements", "IsMemberOf"]


@dataclass(frozen=True)
class _Rows(Operator):
    """Base: ``lengths`` has the number of elements of each row, ``indices`` the columns of the elements."""

    flops_per_element = 0

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if index == 0 else "any" if index == 3 else "here"

    def check_positions(self, lengths: TensorSpec, indices: TensorSpec) -> None:
        check_integers(self, "lengths", lengths)
        check_integers(self, "indices", indices)


@register
@dataclass(frozen=True)
class BatchSparseToDense(_Rows):
    """Y[r, indices[i]] = values[i] for the elements i of row r, ``default_value`` elsewhere.

    Y has ``dense_last_dim`` columns, or the shape of the fourth input.
    """

    signature = """
        lengths (N): int32|int64
        indices (I): int32|int64
        values (I): float|int
        like? (N, D): any
        -> Y (N, D): as values
    """
    dense_last_dim: int = -1
    default_value: float = 0.0

    def check(self) -> None:
        if self.dense_last_dim < 1 and self.n_in < 4:
            raise ArgumentError(
                f"{self.type}: dense_last_dim must be positive, or a fourth input must give the shape, "
                f"got {self.dense_last_dim}"
            )

    def infer(
        self, lengths: TensorSpec, indices: TensorSpec, values: TensorSpec, like: TensorSpec | None = None
    ) -> tuple[TensorSpec, ...]:
        self.check_positions(lengths, indices)
        require(
            values.shape == indices.shape and values.dtype.kind in "fiu",
            self,
            f"values must be numbers of the shape of indices, {indices.shape}, got {values.shape} of {values.dtype}",
        )
        if like is not None:
            require(like.ndim == 2, self, f"the fourth input must be a matrix, got shape {like.shape}")
        shape = (lengths.shape[0], self.dense_last_dim if like is None else like.shape[1])
        require(
            like is None or (like.shape == shape and self.dense_last_dim in (-1, shape[1])),
            self,
            f"the fourth input must have a row for each of the {lengths.shape[0]} lengths, and dense_last_dim columns "
            "if that is given",
        )
        return (values.with_shape(shape),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("lengths"), g.input("indices"), g.d_output("Y")]
        return [make_op("BatchDenseToSparse", inputs, [g.d_input("values")])]


@kernel(BatchSparseToDense)
def batch_sparse_to_dense(
    op: BatchSparseToDense, ctx: RunContext, lengths: Any, indices: Any, values: Any, like: Any = None
) -> tuple[Any, ...]:
    counts = counts_of_lengths(op, ctx, lengths, indices.shape[0])
    columns = op.dense_last_dim if like is None else like.shape[-1]
    indices = checked_indices(ctx, op.type, indices, columns)
    y = ctx.xp.full((counts.size, columns), op.default_value, values.dtype)
    positions = segment_numbers(ctx, counts) * columns + indices
    return (with_rows(ctx.xp, y.reshape(-1), positions, values).reshape(y.shape),)


@register
@dataclass(frozen=True)
class BatchDenseToSparse(_Rows):
    """Y[i] = X[r, indices[i]] for the elements i of row r."""

    signature = """
        lengths (N): int32|int64
        indices (I): int32|int64
        X (N, D): any
        like? (...): any
        -> Y (I): as X
    """
    dense_last_dim: int = -1
    default_value: float = 0.0

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("lengths"), g.input("indices"), g.d_output("Y"), g.input("X")]
        return [make_op("BatchSparseToDense", inputs, [g.d_input("X")])]


@kernel(BatchDenseToSparse)
def batch_dense_to_sparse(
    op: BatchDenseToSparse, ctx: RunContext, lengths: Any, indices: Any, x: Any, like: Any = None
) -> tuple[Any, ...]:
    counts = counts_of_lengths(op, ctx, lengths, indices.shape[0])
    indices = checked_indices(ctx, op.type, indices, x.shape[1])
    return (x[segment_numbers(ctx, counts), indices],)


@register
@dataclass(frozen=True)
class IsMemberOf(Operator):
    """Y = whether each element of X is one of the values of the argument ``value``, bool."""

    signature = "X (*S): int8|int16|int32|int64|bool|string -> Y (*S): bool"
    value: Any = None
    dtype: Any = None

    def check(self) -> None:
        if self.dtype is not None:
            numpy_type(self.dtype, f"{self.type}: dtype")
        if self.value is None:
            raise ArgumentError("IsMemberOf: the argument value must be given: the values to look for")

    def check_inputs(self, x: TensorSpec) -> None:
        if self.dtype is not None:
            kind = numpy_type(self.dtype, f"{self.type}: dtype")
            require(kind == x.dtype, self, f"X must have the type of the argument dtype, {kind}, got {x.dtype}")

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return []  # not differentiable

    @property
    def expected(self) -> list[Any]:
        """The values to look for."""
        return list(self.value) if isinstance(self.value, (list, tuple)) else [self.value]


@kernel(IsMemberOf)
def is_member_of(op: IsMemberOf, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    if x.dtype == STRING:
        return (np.isin(x, np.array([*op.expected, None], object)[:-1]),)
    expected = np.array(op.expected)
    require(expected.dtype.kind in "biuf", op, f"value must be numbers for X of type {x.dtype}, got {op.expected}")
    converted = expected.astype(x.dtype)
    if x.dtype.kind in "iu" and not np.array_equal(converted, expected):
        raise ShapeError(f"IsMemberOf: value {op.expected} must fit into the type of X, {x.dtype}")
    return (ctx.xp.isin(x, ctx.xp.asarray(converted)),)


@register
@dataclass(frozen=True)
class FindDuplicateElements(Operator):
    """Y = the indices of the elements of a vector that occurred before, int64, ascending."""

    signature = "X (N): any -> Y (M): int64"
    dynamic = True
    inputs_on_host = True
    flops_per_element = 0


@kernel(FindDuplicateElements)
def find_duplicate_elements(op: FindDuplicateElements, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    if x.ndim != 1:
        raise ShapeError(f"FindDuplicateElements: X must be a vector, got shape {x.shape}")
    is_duplicate = np.ones(x.size, bool)
    is_duplicate[np.unique(ctx.host(x), return_index=True)[1]] = False
    return (ctx.xp.asarray(np.flatnonzero(is_duplicate)),)
