"""Vectors divided by their norm (Normalize, NormalizeL1), and norms of whole tensors (LpNorm); with gradients."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import BatchMean, InBatch, Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["LpNorm", "LpNormGradient", "Normalize", "NormalizeGradient", "NormalizeL1"]

_TINY = 1e-12  # norms are clamped to this minimum, as in Caffe2


@dataclass(frozen=True)
class _AlongAxis(Operator):
    axis: int = -1


@dataclass(frozen=True)
class _Normalized(_AlongAxis):
    """Base of normalization by a norm along ``axis``."""

    signature = "X (*A, N @ axis, *B): float -> Y: as X"
    flops_per_element = 3


@register
@dataclass(frozen=True)
class Normalize(_Normalized):
    """Y = X / max(the Euclidean norm of X along ``axis``, 1e-12)."""

    in_batch = InBatch.ROW_BY_ROW

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("NormalizeGradient", [g.input("X"), g.d_output("Y")], [g.d_input("X")])]


@register
@dataclass(frozen=True)
class NormalizeL1(_Normalized):
    """Y = X / the sum of abs(X) along ``axis``, 0 where that is 0. No gradient."""

    in_batch = InBatch.ROW_BY_ROW


@register
@dataclass(frozen=True)
class NormalizeGradient(_AlongAxis):
    """dX = dY / n - X * sum(X * dY) / n^3, where n is the norm that Normalize divides by."""

    signature = "X, dY -> dX"
    flops_per_element = 7


def _norms(op: _AlongAxis, ctx: RunContext, values: Any) -> Any:
    squares = (values * values).sum(axis=op.axis, keepdims=True)
    return ctx.xp.maximum(ctx.xp.sqrt(squares), values.dtype.type(_TINY))


@kernel(Normalize)
def normalize(op: Normalize, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    values = widen(x)
    return (narrow(values / _norms(op, ctx, values), x),)


@kernel(NormalizeGradient)
def normalize_gradient(op: NormalizeGradient, ctx: RunContext, x: Any, dy: Any) -> tuple[Any, ...]:
    values, d_normal = widen(x), widen(dy)
    n = _norms(op, ctx, values)
    normal = values / n  # divided one by one: n^3 may underflow
    return (narrow((d_normal - normal * (normal * d_normal).sum(axis=op.axis, keepdims=True)) / n, x),)


@kernel(NormalizeL1)
def normalize_l1(op: NormalizeL1, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    values = widen(x)
    sums = abs(values).sum(axis=op.axis, keepdims=True)
    return (narrow(values / ctx.xp.where(sums == 0, values.dtype.type(1), sums), x),)


@dataclass(frozen=True)
class _Power(Operator):
    p: int = 2
    average: bool = False

    def check(self) -> None:
        if self.p not in (1, 2):
            raise ArgumentError(f"{self.type}: p must be 1 or 2, got {self.p}")


@register
@dataclass(frozen=True)
class LpNorm(_Power):
    """Y = the sum of abs(X) (``p`` = 1) or of X * X (``p`` = 2) over all elements; with ``average`` their mean.

    As in Caffe2, no square root is taken of the sum of squares.
    """

    signature = "X (...): float -> Y (1): as X"
    in_batch = InBatch.SUM
    flops_per_element = 2

    def batch_mean(self) -> BatchMean | None:
        return BatchMean("elements", (0,)) if self.average else None

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("LpNormGradient", [g.input("X"), g.d_output("Y")], [g.d_input("X")])]


@register
@dataclass(frozen=True)
class LpNormGradient(_Power):
    """dX = dY * sign(X), or dY * 2 * X for ``p`` = 2; with ``average`` divided by the number of elements."""

    signature = "X, dY -> dX"


def _share(op: _Power, x: Any) -> float:
    return 1.0 / max(x.size, 1) if op.average else 1.0


@kernel(LpNorm)
def lp_norm(op: LpNorm, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    flat = widen(x).reshape(-1)
    total = abs(flat).sum() if op.p == 1 else ctx.xp.vdot(flat, flat)
    return (narrow((total * flat.dtype.type(_share(op, x))).reshape(1), x),)


@kernel(LpNormGradient)
def lp_norm_gradient(op: LpNormGradient, ctx: RunContext, x: Any, dy: Any) -> tuple[Any, ...]:
    values = widen(x)
    direction = ctx.xp.sign(values) if op.p == 1 else 2 * values
    return (narrow(direction * (widen(dy).reshape(()) * values.dtype.type(_share(op, x))), x),)
