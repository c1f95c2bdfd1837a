"""Distances between the samples of two tensors: SquaredL2Distance, with its gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from netbuilder.ops.contexts import GradientContext, RunContext
from netbuilder.ops.half import narrow, require_one_float_type, widen
from netbuilder.ops.operator import Operator, TensorSpec, require
from netbuilder.ops.registry import kernel, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op

__all__ = ["SquaredL2Distance", "SquaredL2DistanceGradient"]


def _check_pair(op: Operator, x: TensorSpec, y: TensorSpec) -> int:
    """Return the number of samples; raise ShapeError unless both tensors have the same ones."""
    require(x.ndim >= 1, op, "X must have a first axis of samples, got a scalar")
    require(x.shape == y.shape, op, f"X and Y must have one shape, got {x.shape} and {y.shape}")
    return x.shape[0]


@register
@dataclass(frozen=True)
class SquaredL2Distance(Operator):
    """Z[i] = sum((X[i] - Y[i])^2) / 2, for each sample i of the first axis."""

    inputs = ("X", "Y")
    outputs = ("Z",)

    def infer(self, x: TensorSpec, y: TensorSpec) -> tuple[TensorSpec, ...]:
        require_one_float_type(self, X=x, Y=y)
        return (x.with_shape((_check_pair(self, x, y),)),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("X"), g.input("Y"), g.d_output("Z")]
        return [make_op("SquaredL2DistanceGradient", inputs, [g.d_input("X"), g.d_input("Y")])]

    def flops(self, x: TensorSpec, y: TensorSpec) -> int:
        return 3 * x.size


@kernel(SquaredL2Distance)
def squared_l2_distance(op: SquaredL2Distance, ctx: RunContext, x: Any, y: Any) -> tuple[Any, ...]:
    apart = (widen(x) - widen(y)).reshape(x.shape[0], math.prod(x.shape[1:]))
    return (narrow((apart * apart).sum(axis=1) / 2, x),)


@register
@dataclass(frozen=True)
class SquaredL2DistanceGradient(Operator):
    """dX[i] = (X[i] - Y[i]) * dZ[i], and dY = -dX."""

    inputs = ("X", "Y", "dZ")
    outputs = ("dX", "dY")

    def infer(self, x: TensorSpec, y: TensorSpec, dz: TensorSpec) -> tuple[TensorSpec, ...]:
        require_one_float_type(self, X=x, Y=y, dZ=dz)
        samples = _check_pair(self, x, y)
        require(dz.size == samples, self, f"dZ must have one number per sample of X, {samples}, got shape {dz.shape}")
        return (x.plain, y.plain)

    def flops(self, x: TensorSpec, y: TensorSpec, dz: TensorSpec) -> int:
        return 3 * x.size


@kernel(SquaredL2DistanceGradient)
def squared_l2_distance_gradient(
    op: SquaredL2DistanceGradient, ctx: RunContext, x: Any, y: Any, dz: Any
) -> tuple[Any, ...]:
    dx = (widen(x) - widen(y)) * widen(dz).reshape(x.shape[0], *[1] * (x.ndim - 1))
    return narrow(dx, x), narrow(-dx, y)
