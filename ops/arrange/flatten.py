"""The same elements in another shape: Flatten, FlattenToVec, ResizeLike."""

from __future__ import annotations

import math
from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import InBatch, Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Flatten", "FlattenToVec", "ResizeLike"]


def _like(g: GradientContext) -> list[OperatorDef]:
    return [make_op("ResizeLike", [g.d_output(0), g.input(0)], [g.d_input(0)])]


@register
@dataclass(frozen=True)
class Flatten(Operator):
    """Y = X as a matrix: the axes before ``axis`` are its rows, the others its columns."""

    signature = "X (*A, *B @ axis): any -> Y (prod(A), prod(B)): as X"
    in_batch = InBatch.ROW_BY_ROW
    flops_per_element = 0
    axis: int = 1

    def check(self) -> None:
        if self.axis < 0:
            raise ArgumentError(f"{self.type}: axis must not be negative, got {self.axis}")

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return _like(g)


@kernel(Flatten)
def flatten(op: Flatten, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    return (x.reshape(math.prod(x.shape[: op.axis]), math.prod(x.shape[op.axis :])),)


@register
@dataclass(frozen=True)
class FlattenToVec(Operator):
    """Y = X as a vector."""

    signature = "X (*S): any -> Y (prod(S)): as X"
    in_batch = InBatch.LINEAR | InBatch.ROW_BY_ROW
    flops_per_element = 0

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return _like(g)


@kernel(FlattenToVec)
def flatten_to_vec(op: FlattenToVec, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    return (x.reshape(-1),)


@register
@dataclass(frozen=True)
class ResizeLike(Operator):
    """Y = X in the shape of the second input, which must have the same number of elements."""

    signature = "X (*S): any, like (*T): any -> Y (*T): as X"
    flops_per_element = 0

    def check_inputs(self, x: TensorSpec, like: TensorSpec) -> None:
        require(x.size == like.size, self, f"X {x.shape} and like {like.shape} must have the same number of elements")


@kernel(ResizeLike)
def resize_like(op: ResizeLike, ctx: RunContext, x: Any, like: Any) -> tuple[Any, ...]:
    return (x.reshape(like.shape),)
