"""Expand: a tensor broadcast with a given shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from netbuilder.ops.core.broadcasting import MOST_AXES, sum_to
from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.given_numbers import check_extents, integer_list
from netbuilder.ops.core.operator import InBatch, Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import OperatorDef, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Expand", "ExpandGradient"]


@register
@dataclass(frozen=True)
class Expand(Operator):
    """Y = X broadcast with ``shape``, as by NumPy; 1 or -1 in ``shape`` keeps the extent of X.

    The shape is an argument, or the second input.
    """

    signature = "X (...): any, shape? (N): int32|int64 -> Y (...): as X"
    copy_arguments = False
    inputs_on_host = (1,)
    flops_per_element = 0
    shape: tuple[int, ...] = ()
    in_batch = InBatch.SAME_ROWS

    def with_arity(self, n_in: int, n_out: int) -> Any:
        object.__setattr__(self, "dynamic", n_in > 1)
        return super().with_arity(n_in, n_out)

    def static_for(self, x: TensorSpec, shape: TensorSpec | None = None) -> bool:
        return shape is None or shape.known is not None

    def target(self, x: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of Y.

        Raises:
            ShapeError: the shapes cannot be broadcast.
        """
        require(min(shape, default=0) >= -1, self, f"extents must not be negative, except -1, got {tuple(shape)}")
        ndim = max(len(x), len(shape))
        require(ndim <= MOST_AXES, self, f"Y must have at most {MOST_AXES} axes, got {ndim}")
        try:
            return tuple(np.broadcast_shapes(tuple(x), tuple(1 if n == -1 else n for n in shape)))
        except ValueError:
            text = f"extents of X {tuple(x)} and shape {tuple(shape)}, aligned at the last axis, must be equal or 1"
            raise ShapeError(f"Expand: {text}") from None

    def infer(self, x: TensorSpec, shape: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        if shape is None:
            return (x.with_shape(self.target(x.shape, self.shape)),)
        require(
            shape.ndim == 1 and shape.dtype.kind == "i",
            self,
            f"shape must be a vector of integers, got shape {shape.shape} of type {shape.dtype}",
        )
        if shape.known is None:
            raise ShapeError("Expand: the shape of the result is known only when the net runs")
        return (x.with_shape(self.target(x.shape, shape.known)),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("ExpandGradient", [g.d_output("Y"), g.input("X")], [g.d_input("X")])]


@register
@dataclass(frozen=True)
class ExpandGradient(Operator):
    """dX = dY summed over the axes along which X was broadcast."""

    signature = "dY, X -> dX"
    flops_per_element = 1

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "any" if index == 1 else "here"

    def check_inputs(self, dy: TensorSpec, x: TensorSpec) -> None:
        view = (1,) * (dy.ndim - x.ndim) + x.shape
        fits = dy.ndim >= x.ndim and all(m in (1, n) for n, m in zip(dy.shape, view))
        require(fits, self, f"X {x.shape} cannot be broadcast to dY {dy.shape}")


@kernel(Expand)
def expand(op: Expand, ctx: RunContext, x: Any, shape: Any = None) -> tuple[Any, ...]:
    target = op.target(x.shape, op.shape if shape is None else integer_list(op, ctx, shape, "shape"))
    check_extents("Expand: Y", target, x.dtype)
    return (ctx.xp.broadcast_to(x, target).copy(),)


@kernel(ExpandGradient)
def expand_gradient(op: ExpandGradient, ctx: RunContext, dy: Any, x: Any) -> tuple[Any, ...]:
    return (sum_to(dy, x.shape, x.shape),)
