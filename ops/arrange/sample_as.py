"""SpatialNarrowAs and SampleAs: a part of a tensor, selected by another tensor; with their gradients."""

from __future__ import annotations

from typing import Any, Literal

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["SampleAs", "SampleAsGradient", "SpatialNarrowAs", "SpatialNarrowAsGradient"]


@dataclass(frozen=True)
class _Narrowing(Operator):
    signature = "A, B -> C"
    flops_per_element = 0

    def check_inputs(self, a: TensorSpec, b: TensorSpec, *others: TensorSpec) -> None:
        fits = all(n >= m for n, m in zip(a.shape[2:], b.shape[2:]))
        require(fits, self, f"A must be no smaller than B in H and W, got shapes {a.shape} and {b.shape}")


@register
@dataclass(frozen=True)
class SpatialNarrowAs(_Narrowing):
    """C = the upper left corner of each image plane of A, of the size of the planes of B."""

    signature = """
        A (N, C, H, W): any
        B (M, K, P, Q): any, P <= H and Q <= W
        -> C (N, C, P, Q): as A
    """

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "any" if index else "here"  # only the shape of B is used

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("A"), g.input("B"), g.d_output("C")]
        return [make_op("SpatialNarrowAsGradient", inputs, [g.d_input("A")])]


@register
@dataclass(frozen=True)
class SpatialNarrowAsGradient(_Narrowing):
    """dA = dC in the upper left corner, 0 elsewhere."""

    signature = "A, B, dC -> dA"

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "here" if index == 2 else "any"  # only the shapes of A and B are used


@kernel(SpatialNarrowAs)
def spatial_narrow_as(op: SpatialNarrowAs, ctx: RunContext, a: Any, b: Any) -> tuple[Any, ...]:
    return (a[:, :, : b.shape[2], : b.shape[3]].copy(),)


@kernel(SpatialNarrowAsGradient)
def spatial_narrow_as_gradient(
    op: SpatialNarrowAsGradient, ctx: RunContext, a: Any, b: Any, dc: Any
) -> tuple[Any, ...]:
    da = ctx.xp.zeros(a.shape, dc.dtype)
    da[:, :, : b.shape[2], : b.shape[3]] = dc
    return (da,)


@register
@dataclass(frozen=True)
class SampleAs(Operator):
    """Y = the samples of X whose label is positive."""

    signature = "X (N, *S): any, labels {N}: int32 -> Y (M, *S): as X"
    dynamic = True
    flops_per_element = 0

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("X"), g.input("labels"), g.d_output("Y")]
        return [make_op("SampleAsGradient", inputs, [g.d_input("X")])]


@register
@dataclass(frozen=True)
class SampleAsGradient(Operator):
    """dX = dY for the samples whose label is positive, 0 for the others."""

    signature = "X, labels, dY -> dX"
    flops_per_element = 0

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "here" if index else "any"  # only the shape of X is used


@kernel(SampleAs)
def sample_as(op: SampleAs, ctx: RunContext, x: Any, labels: Any) -> tuple[Any, ...]:
    op.check_specs(x, labels)
    return (x[ctx.xp.flatnonzero(labels.reshape(-1) > 0)],)


@kernel(SampleAsGradient)
def sample_as_gradient(op: SampleAsGradient, ctx: RunContext, x: Any, labels: Any, dy: Any) -> tuple[Any, ...]:
    positions = ctx.xp.flatnonzero(labels.reshape(-1) > 0)
    require(
        len(dy) == positions.size, op, f"dY must have one sample per positive label, {positions.size}, got {len(dy)}"
    )
    dx = ctx.xp.zeros(x.shape, dy.dtype)
    dx[positions] = dy
    return (dx,)
