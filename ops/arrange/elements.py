"""Elements and slices chosen by index tensors: GatherElements, GatherND, ScatterElements, ScatterND; and gradients."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.indexing import add_rows, checked_indices, with_rows
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "GatherElements",
    "GatherElementsGradient",
    "GatherND",
    "GatherNDGradient",
    "ScatterElements",
    "ScatterElementsGradient",
    "ScatterND",
    "ScatterNDGradient",
]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class _Chosen(Operator, abc.ABC):
    """Base: rows of a tensor, seen as a matrix, chosen by an index tensor; a negative index counts from the end."""

    flops_per_element = 0

    @abc.abstractmethod
    def chosen_shape(self, x: Shape, indices: Shape) -> Shape:
        """Return the shape of what is chosen from an X of this shape.

        Raises:
            ShapeError: the shapes do not fit.
        """

    @abc.abstractmethod
    def rows(self, ctx: RunContext, shape: Shape, indices: Any) -> tuple[int, Any]:
        """Return the number of rows in X, and which are chosen, int64, one-dimensional.

        Raises:
            IndexError: an index is out of range.
        """


@dataclass(frozen=True)
class _Elements(_Chosen):
    """Base: single elements; the indices replace the coordinate along ``axis``."""

    axis: int = 0

    def chosen_shape(self, x: Shape, indices: Shape) -> Shape:
        ndim = len(x)
        require(-ndim <= self.axis < ndim, self, f"axis must lie in [{-ndim}, {ndim}), got {self.axis}")
        fits = len(indices) == ndim and all(m <= n for i, (n, m) in enumerate(zip(x, indices)) if i != self.axis % ndim)
        text = f"indices must have the axes of X {x}, no longer except along axis {self.axis}, got shape {indices}"
        require(fits, self, text)
        return indices

    def rows(self, ctx: RunContext, shape: Shape, indices: Any) -> tuple[int, Any]:
        axis, xp = self.axis % len(shape), ctx.xp
        places: Any = 0
        for i, (extent, count) in enumerate(zip(shape, indices.shape)):
            if i == axis:
                at = checked_indices(ctx, self.type, indices, extent, -extent).astype(np.int64)
                at = xp.where(at < 0, at + extent, at)
            else:
                at = xp.arange(count, dtype=np.int64).reshape(-1, *(1,) * (len(shape) - 1 - i))
            places = places * extent + at
        return math.prod(shape), places.reshape(-1)


@dataclass(frozen=True)
class _Slices(_Chosen):
    """Base: slices; the last axis of the indices holds coordinates along the axes after the first ``batch_dims``."""

    batch_dims: int = 0

    def chosen_shape(self, x: Shape, indices: Shape) -> Shape:
        b = self.batch_dims
        fits = 0 <= b < len(indices) and indices[:b] == x[:b] and b + indices[-1] <= len(x)
        text = (
            f"indices {indices} must have the first {b} extents of X {x}, and as their last axis at most as many "
            f"coordinates as X has axes after these"
        )
        require(fits, self, text)
        return indices[:-1] + x[b + indices[-1] :]

    def rows(self, ctx: RunContext, shape: Shape, indices: Any) -> tuple[int, Any]:
        b, count, xp = self.batch_dims, indices.shape[-1], ctx.xp
        places = xp.zeros(indices.shape[:-1], np.int64)
        for i, extent in enumerate(shape[: b + count]):
            if i < b:
                at = xp.arange(extent, dtype=np.int64).reshape(-1, *(1,) * (indices.ndim - 2 - i))
            else:
                column = xp.ascontiguousarray(indices[..., i - b])
                at = checked_indices(ctx, self.type, column, extent, -extent).astype(np.int64)
                at = xp.where(at < 0, at + extent, at)
            places = places * extent + at
        return math.prod(shape[: b + count]), places.reshape(-1)


@register
@dataclass(frozen=True)
class GatherElements(_Elements):
    """Y[i, j] = X[indices[i, j], j] for ``axis`` 0, X[i, indices[i, j]] for axis 1, and so on.

    Source: ONNX's operator of this name; ``torch.gather``.
    """

    signature = "X (...): any, indices (...): int32|int64 -> Y (...): as X"

    def infer(self, x: TensorSpec, indices: TensorSpec) -> tuple[TensorSpec, ...]:
        return (x.with_shape(self.chosen_shape(x.shape, indices.shape)),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("X"), g.input("indices"), g.d_output("Y")]
        return [make_op("GatherElementsGradient", inputs, [g.d_input("X")])]


@register
@dataclass(frozen=True)
class GatherND(_Slices):
    """Y[i] = X[indices[i, 0], indices[i, 1], ...]: an element, or a slice if X has more axes.

    The first ``batch_dims`` axes are those of both, and each has its own indices.
    Source: ONNX's operator of this name.
    """

    signature = "X (...): any, indices (...): int32|int64 -> Y (...): as X"

    def infer(self, x: TensorSpec, indices: TensorSpec) -> tuple[TensorSpec, ...]:
        return (x.with_shape(self.chosen_shape(x.shape, indices.shape)),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("X"), g.input("indices"), g.d_output("Y")]
        return [make_op("GatherNDGradient", inputs, [g.d_input("X")])]


def _gather(op: _Chosen, ctx: RunContext, x: Any, indices: Any) -> tuple[Any, ...]:
    shape = op.chosen_shape(x.shape, indices.shape)
    count, rows = op.rows(ctx, x.shape, indices)
    return (x.reshape(count, math.prod(x.shape) // max(count, 1))[rows].reshape(shape),)


@register
@dataclass(frozen=True)
class GatherElementsGradient(_Elements):
    """dX = dY added to the elements that were gathered, 0 elsewhere."""

    signature = "X, indices, dY -> dX"
    gradient_of = GatherElements


@register
@dataclass(frozen=True)
class GatherNDGradient(_Slices):
    """dX = dY added to the slices that were gathered, 0 elsewhere."""

    signature = "X, indices, dY -> dX"
    gradient_of = GatherND


def _gather_gradient(op: _Chosen, ctx: RunContext, x: Any, indices: Any, dy: Any) -> tuple[Any, ...]:
    count, rows = op.rows(ctx, x.shape, indices)
    table = ctx.xp.zeros((count, math.prod(x.shape) // max(count, 1)), dy.dtype)
    add_rows(ctx.xp, table, rows, dy, ctx.add_in_order)
    return (table.reshape(x.shape),)


@dataclass(frozen=True)
class _Scattering(_Chosen):
    """Base: a copy of X in which what the indices choose is replaced by updates, or has them added."""

    signature = "X (...): any, indices (...): int32|int64, updates (...): as X -> Y (...): as X"
    reduction: str = "none"

    def check(self) -> None:
        if self.reduction not in ("none", "add", "max", "min"):
            raise ArgumentError(f"{self.type}: reduction must be none, add, max or min, got {self.reduction!r}")

    def infer(self, x: TensorSpec, indices: TensorSpec, updates: TensorSpec) -> tuple[TensorSpec, ...]:
        shape = self.chosen_shape(x.shape, indices.shape)
        require(updates.shape == shape, self, f"updates must have shape {shape}, got {updates.shape}")
        require(
            self.reduction == "none" or x.dtype.kind in "fiu", self, f"{self.reduction} needs numbers, got {x.dtype}"
        )
        return (x.plain,)

    def _gradient(self, g: GradientContext, gather: str) -> list[OperatorDef]:
        if self.reduction not in ("none", "add"):
            raise NotImplementedError(f"{self.type} has no gradient with reduction {self.reduction}")
        dy, indices = g.d_output("Y"), g.input("indices")
        ops = [make_op(gather, [dy, indices], [g.d_input("updates")])]
        if self.reduction == "add":
            return [*ops, make_op("Copy", [dy], [g.d_input("X")])]
        return [*ops, make_op(f"{self.type}Gradient", [indices, dy], [g.d_input("X")])]


@register
@dataclass(frozen=True)
class ScatterElements(_Scattering, _Elements):
    """Y = X, but Y[indices[i, j], j] = updates[i, j] for ``axis`` 0, Y[i, indices[i, j]] for axis 1, and so on.

    With the ``reduction`` add, max or min, it is the sum, maximum or minimum with what was there; without, of several
    updates of one element the last counts, and gradients are right only if there are no such.
    Source: ONNX's operator of this name; ``torch.scatter``.
    """

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return self._gradient(g, "GatherElements")


@register
@dataclass(frozen=True)
class ScatterND(_Scattering, _Slices):
    """Y = X, but Y[indices[i, 0], indices[i, 1], ...] = updates[i], an element or a slice.

    ``reduction``, and several updates of one place: as for ScatterElements.
    Source: ONNX's operator of this name.
    """

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return self._gradient(g, "GatherND")


def _scatter(op: _Scattering, ctx: RunContext, x: Any, indices: Any, updates: Any) -> tuple[Any, ...]:
    count, rows = op.rows(ctx, x.shape, indices)
    table = x.reshape(count, math.prod(x.shape) // max(count, 1))
    updates = updates.reshape(rows.size, table.shape[1])
    if op.reduction == "none":
        return (with_rows(ctx.xp, table, rows, updates).reshape(x.shape),)
    table = table.copy()
    if op.reduction == "add":
        add_rows(ctx.xp, table, rows, updates, ctx.add_in_order)
    else:
        (ctx.xp.maximum if op.reduction == "max" else ctx.xp.minimum).at(table, rows, updates)
    return (table.reshape(x.shape),)


@dataclass(frozen=True)
class _ScatteringGradient(_Chosen):
    signature = "indices, dY -> dX"
    reduction: str = "none"

    def infer(self, indices: TensorSpec, dy: TensorSpec) -> tuple[TensorSpec, ...]:
        self.chosen_shape(dy.shape, indices.shape)
        return (dy.plain,)


@register
@dataclass(frozen=True)
class ScatterElementsGradient(_ScatteringGradient, _Elements):
    """dX = dY, but 0 where an update took the element's place."""


@register
@dataclass(frozen=True)
class ScatterNDGradient(_ScatteringGradient, _Slices):
    """dX = dY, but 0 where an update took the element's place."""


def _scatter_gradient(op: _ScatteringGradient, ctx: RunContext, indices: Any, dy: Any) -> tuple[Any, ...]:
    count, rows = op.rows(ctx, dy.shape, indices)
    table = dy.reshape(count, math.prod(dy.shape) // max(count, 1)).copy()
    table[rows] = 0
    return (table.reshape(dy.shape),)


_KERNELS: Sequence[tuple[Any, tuple[Any, ...]]] = (
    (_gather, (GatherElements, GatherND)),
    (_gather_gradient, (GatherElementsGradient, GatherNDGradient)),
    (_scatter, (ScatterElements, ScatterND)),
    (_scatter_gradient, (ScatterElementsGradient, ScatterNDGradient)),
)
for _function, _classes in _KERNELS:
    for _cls in _classes:
        kernel(_cls)(_function)
