"""Fills in float16: Float16ConstantFill and Float16UniformFill."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from netbuilder.engines.random import filled, uniform
from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Float16ConstantFill", "Float16UniformFill"]

_LARGEST = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class _HalfFill(Operator):
    """Base: Y has the shape ``shape``, by default ()."""

    signature = "-> Y (*shape): float16"
    shape: tuple[int, ...] = ()

    def check(self) -> None:
        if any(n < 0 for n in self.shape):
            raise ArgumentError(f"{self.type}: extents must not be negative, got {self.shape}")

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return []  # there are no inputs


@register
@dataclass(frozen=True)
class Float16ConstantFill(_HalfFill):
    """Y = ``value`` in float16, of ``shape``."""

    value: float = 0.0

    def check(self) -> None:
        super().check()
        if _LARGEST < abs(self.value) < math.inf:
            raise ArgumentError(f"{self.type}: float16 holds at most 65504, got value {self.value}")


@register
@dataclass(frozen=True)
class Float16UniformFill(_HalfFill):
    """Y is uniform in [min, max], drawn in float32 and rounded to float16, which may give ``max`` itself."""

    stateful = True
    draws = True
    min: float = 0.0
    max: float = 1.0

    def check(self) -> None:
        super().check()
        if not self.min < self.max:
            raise ArgumentError(f"{self.type}: min must be below max, got min={self.min}, max={self.max}")
        if max(-self.min, self.max) > _LARGEST:
            raise ArgumentError(f"{self.type}: float16 holds at most 65504, got min={self.min}, max={self.max}")


@kernel(Float16ConstantFill)
def float16_constant_fill(op: Float16ConstantFill, ctx: RunContext) -> tuple[Any, ...]:
    return (ctx.xp.full(op.shape, op.value, dtype=np.float16),)


@kernel(Float16UniformFill)
def float16_uniform_fill(op: Float16UniformFill, ctx: RunContext) -> tuple[Any, ...]:
    key, start = ctx.position(op.shape)
    found = filled(ctx.xp, uniform, key, op.shape, lambda u: u * (op.max - op.min) + op.min, np.float16, start=start)
    return (found,)
