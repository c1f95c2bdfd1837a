"""Distances between the samples of two tensors: SquaredL2Distance and L1Distance, with their gradients."""

from __future__ import annotations

import math
from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import InBatch, Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "L1Distance",
    "L1DistanceGradient",
    "OfSamples",
    "OfSamplesGradient",
    "SquaredL2Distance",
    "SquaredL2DistanceGradient",
    "sample_rows",
]


@dataclass(frozen=True)
class OfSamples(Operator):
    """Base of operators that compute one number per sample of X and Y; ``<type>Gradient`` reads X, Y and dZ."""

    signature = "X (*S): float, Y (*S): as X -> Z (prod(S[:1])): as X"
    flops_per_element = 3

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("X"), g.input("Y"), g.d_output("Z")]
        return [make_op(self.type + "Gradient", inputs, [g.d_input("X"), g.d_input("Y")])]


@dataclass(frozen=True)
class OfSamplesGradient(Operator):
    """Base of the gradients of operators that compute one number per sample."""

    signature = "X, Y, dZ {prod(S[:1])}: as X -> dX, dY"
    flops_per_element = 3


def sample_rows(*arrays: Any) -> tuple[Any, ...]:
    """Return tensors as matrices with one row per sample, float16 as float32."""
    return tuple(widen(a).reshape(a.shape[0] if a.ndim else 1, math.prod(a.shape[1:])) for a in arrays)


@register
@dataclass(frozen=True)
class SquaredL2Distance(OfSamples):
    """Z[i] = sum((X[i] - Y[i])^2) / 2, for each sample i of the first axis."""

    in_batch = InBatch.ROW_BY_ROW


@kernel(SquaredL2Distance)
def squared_l2_distance(op: SquaredL2Distance, ctx: RunContext, x: Any, y: Any) -> tuple[Any, ...]:
    a, b = sample_rows(x, y)
    difference = a - b
    return (narrow((difference * difference).sum(axis=1) / 2, x),)


@register
@dataclass(frozen=True)
class SquaredL2DistanceGradient(OfSamplesGradient):
    """dX[i] = (X[i] - Y[i]) * dZ[i], and dY = -dX."""


@kernel(SquaredL2DistanceGradient)
def squared_l2_distance_gradient(
    op: SquaredL2DistanceGradient, ctx: RunContext, x: Any, y: Any, dz: Any
) -> tuple[Any, ...]:
    a, b = sample_rows(x, y)
    dx = ((a - b) * widen(dz).reshape(-1, 1)).reshape(x.shape)
    return narrow(dx, x), narrow(-dx, y)


@register
@dataclass(frozen=True)
class L1Distance(OfSamples):
    """Z[i] = sum(|X[i] - Y[i]|), for each sample i of the first axis."""

    in_batch = InBatch.ROW_BY_ROW


@kernel(L1Distance)
def l1_distance(op: L1Distance, ctx: RunContext, x: Any, y: Any) -> tuple[Any, ...]:
    a, b = sample_rows(x, y)
    return (narrow(abs(a - b).sum(axis=1), x),)


@register
@dataclass(frozen=True)
class L1DistanceGradient(OfSamplesGradient):
    """dX[i] = sign(X[i] - Y[i]) * dZ[i], and dY = -dX."""


@kernel(L1DistanceGradient)
def l1_distance_gradient(op: L1DistanceGradient, ctx: RunContext, x: Any, y: Any, dz: Any) -> tuple[Any, ...]:
    a, b = sample_rows(x, y)
    dx = (ctx.xp.sign(a - b) * widen(dz).reshape(-1, 1)).reshape(x.shape)
    return narrow(dx, x), narrow(-dx, y)
