"""TopK: the largest elements along an axis; and its gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.given_numbers import check_extents, one_integer
from netbuilder.ops.core.indexing import checked_indices
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, OperatorDef, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["LONG", "TopK", "TopKGradient"]

_INT64 = np.dtype(np.int64)
LONG = 256  # on a longer axis the k-th element is selected first, and only elements not below it are sorted


@dataclass(frozen=True)
class _AlongAxis(Operator):
    k: int = -1
    axis: int = -1

    def axis_of(self, shape: Sequence[int]) -> int:
        """Return the axis, counted from 0."""
        n = len(shape)
        require(n >= 1, self, "X must have an axis to take elements from, got a scalar; reshape it to (1,)")
        require(
            -n <= self.axis < n, self, f"axis must lie in [{-n}, {n}) for X of shape {tuple(shape)}, got {self.axis}"
        )
        return self.axis % n

    def around(self, shape: Sequence[int]) -> tuple[int, int, int]:
        """Return the number of elements before the axis, along it and after it."""
        axis = self.axis_of(shape)
        return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])

    def result_shape(self, shape: Sequence[int], k: int) -> tuple[int, ...]:
        axis = self.axis_of(shape)
        return (*shape[:axis], k, *shape[axis + 1 :])


@register
@dataclass(frozen=True)
class TopK(_AlongAxis):
    """The ``k`` largest elements along ``axis``, in descending order, and their indices; ties go to the lower index.

    ``k`` may be given as an input of one element, then also 0. Flattened_indices are the positions in the flattened X.
    If the axis is shorter than ``k``, the outputs are padded with values of 0 and indices of -1.
    """

    signature = """
        X (*A, N @ axis, *B): float|int
        k? {1}: int32|int64
        -> Values (*A, K, *B) if k else (*A, k, *B): as X
        -> Indices (*A, K, *B) if k else (*A, k, *B): int64
        -> Flattened_indices? (M) if k else (prod(A) * k * prod(B)): int64
    """
    flops_per_element = 2

    def with_arity(self, n_in: int, n_out: int) -> Any:
        object.__setattr__(self, "dynamic", n_in > 1)
        return super().with_arity(n_in, n_out)

    def check(self) -> None:
        if self.n_in < 2 and self.k < 1:
            raise ArgumentError(f"TopK: k must be at least 1, got {self.k}")

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if index else "here"

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.d_output("Values"), g.output("Indices"), g.input("X")]
        return [make_op("TopKGradient", inputs, [g.d_input("X")])]


@register
@dataclass(frozen=True)
class TopKGradient(_AlongAxis):
    """dX = dV at the indices of the elements, else 0."""

    signature = "dV, Indices, X -> dX"

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "any" if index == 2 else "here"  # only the shape of X is used

    def infer(self, dv: TensorSpec, indices: TensorSpec, x: TensorSpec) -> tuple[TensorSpec, ...]:
        require(dv.shape == indices.shape, self, f"dV {dv.shape} and Indices {indices.shape} must have the same shape")
        require(indices.dtype.kind in "iu", self, f"Indices must be integers, got {indices.dtype}")
        axis = self.axis_of(x.shape)
        k = dv.shape[axis] if dv.ndim == x.ndim else 0
        shape = self.result_shape(x.shape, k)
        require(dv.shape == shape, self, f"dV must have the shape of X {x.shape} except along the axis, got {dv.shape}")
        return (x.plain,)


def _positions(xp: Any, rows: Any, k: int) -> Any:
    """Return the indices of the ``k`` largest elements of each row, (rows, k), the largest first, ties by lower index.

    NaN comes last.
    """
    n = rows.shape[1]
    if xp is np and n >= LONG and 0 < 8 * k <= n:
        found = _positions_by_bound(rows, k)
        if found is not None:
            return found
    return xp.argsort(_opposite(rows), axis=1, kind="stable")[:, :k]


def _opposite(x: Any) -> Any:
    """Return elements in the opposite order."""
    return -x if x.dtype.kind == "f" else ~x


def _positions_by_bound(rows: Any, k: int) -> Any:
    """Return ``_positions``, found by the k-th largest element of each row; None if there are NaNs."""
    bound = np.partition(rows, rows.shape[1] - k, axis=1)[:, rows.shape[1] - k, None]
    if np.isnan(rows).any():
        return None
    above, equal = rows > bound, rows == bound
    equal_needed = k - above.sum(axis=1, keepdims=True)
    selected = above | (equal & (np.cumsum(equal, axis=1) <= equal_needed))
    positions = np.flatnonzero(selected).reshape(-1, k) % rows.shape[1]
    order = np.argsort(_opposite(np.take_along_axis(rows, positions, axis=1)), axis=1, kind="stable")
    return np.take_along_axis(positions, order, axis=1)


@kernel(TopK)
def top_k(op: TopK, ctx: RunContext, x: Any, k: Any = None) -> tuple[Any, ...]:
    xp = ctx.xp
    count = op.k if k is None else one_integer(op, ctx, k, "k")
    if count < 0:
        raise ShapeError(f"TopK: k must not be negative, got {count}")
    check_extents("TopK: values", op.result_shape(x.shape, count), np.int64)
    before, n, after = op.around(x.shape)
    lines = xp.moveaxis(x.reshape(before, n, after), 1, 2).reshape(before * after, n)
    available = min(count, n)
    positions = _positions(xp, lines, available)
    starts = (xp.arange(before)[:, None] * (n * after) + xp.arange(after)).reshape(-1, 1)
    columns = [xp.take_along_axis(lines, positions, axis=1), positions, starts + positions * after]
    found = []
    for column, dtype, filler in zip(columns, (x.dtype, _INT64, _INT64), (0, -1, -1)):
        full = xp.full((before * after, count), filler, dtype)
        full[:, :available] = column
        found.append(xp.ascontiguousarray(xp.moveaxis(full.reshape(before, after, count), 1, 2)))
    shape = op.result_shape(x.shape, count)
    return found[0].reshape(shape), found[1].reshape(shape), found[2].reshape(-1)


@kernel(TopKGradient)
def top_k_gradient(op: TopKGradient, ctx: RunContext, dv: Any, indices: Any, x: Any) -> tuple[Any, ...]:
    xp = ctx.xp
    before, n, after = op.around(x.shape)
    available = min(dv.shape[op.axis_of(x.shape)], n)  # the rest is padding, with indices of -1
    d_values = dv.reshape(before, -1, after)[:, :available]
    positions = indices.reshape(before, -1, after)[:, :available]
    positions = checked_indices(ctx, "TopKGradient", positions, n)
    flat = xp.arange(before).reshape(-1, 1, 1) * (n * after) + positions * after + xp.arange(after)
    dx = xp.zeros(x.size, dv.dtype)
    dx[flat.reshape(-1)] = d_values.reshape(-1)
    return (dx.reshape(x.shape),)
