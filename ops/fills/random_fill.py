"""Fills with random numbers: XavierFill, MSRAFill, GaussianFill, UniformFill, UniformIntFill."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from netbuilder.engines.random import Draw, filled, normal, uniform
from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.given_numbers import one_number
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.fills.fill import Fill
from netbuilder.proto import ArgumentError
from netbuilder.proto.errors import counted
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["GaussianFill", "MSRAFill", "UniformFill", "UniformIntFill", "XavierFill"]

Shape = tuple[int, ...]


@register
@dataclass(frozen=True)
class XavierFill(Fill):
    """Y is uniform in [-b, b) with b = sqrt(3 / fan_in), fan_in the number of elements per index of the first axis.

    Source: Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks", 2010.
    """

    stateful = True
    draws = True

    def infer(self, like: TensorSpec | None = None, *values: TensorSpec) -> tuple[TensorSpec, ...]:
        out = super().infer(like)[0]
        _fan(self, _whole(self, out.shape), 0)
        return (out,)


@register
@dataclass(frozen=True)
class MSRAFill(Fill):
    """Y is normal with standard deviation sqrt(2 / fan_out), fan_out the number of elements per index of axis 1.

    Source: He et al., "Delving deep into rectifiers", 2015, equation 14.
    """

    stateful = True
    draws = True

    def infer(self, like: TensorSpec | None = None, *values: TensorSpec) -> tuple[TensorSpec, ...]:
        out = super().infer(like)[0]
        _fan(self, _whole(self, out.shape), 1)
        return (out,)


def _whole(op: Fill, shape: Shape) -> Shape:
    """Return the shape of all rows of a table of which Y may be a part."""
    return op.shape if op.shards else shape


def _fan(op: Operator, shape: Shape, axis: int) -> int:
    """Return the number of elements per index of ``axis``, at least 1."""
    require(len(shape) > axis, op, f"shape must have at least {counted(axis + 1, 'axis', 'axes')}, got {shape}")
    return max(math.prod(shape[:axis] + shape[axis + 1 :]), 1)


def _filled(
    op: Fill, ctx: RunContext, draw: Draw, shape: Shape, finish: Callable[[Any], Any], dtype: Any = np.float32
) -> Any:
    key, start = ctx.position(shape)
    start += op.first_element
    threads = 1 if ctx.workspace is None else ctx.workspace.threads
    return filled(ctx.xp, draw, key, shape, finish, dtype, start=start, threads=threads)


@kernel(XavierFill)
def xavier_fill(op: XavierFill, ctx: RunContext, like: Any = None) -> tuple[Any, ...]:
    shape = op.target(ctx, like)
    bound = math.sqrt(3.0 / _fan(op, _whole(op, shape), 0))
    return (_filled(op, ctx, uniform, shape, lambda u: (u * 2.0 - 1.0) * bound),)


@kernel(MSRAFill)
def msra_fill(op: MSRAFill, ctx: RunContext, like: Any = None) -> tuple[Any, ...]:
    shape = op.target(ctx, like)
    deviation = math.sqrt(2.0 / _fan(op, _whole(op, shape), 1))
    return (_filled(op, ctx, normal, shape, lambda z: z * deviation),)


@register
@dataclass(frozen=True)
class GaussianFill(Fill):
    """Y is normal with mean ``mean`` and standard deviation ``std``."""

    stateful = True
    draws = True
    mean: float = 0.0
    std: float = 1.0

    def check(self) -> None:
        super().check()
        if not self.std > 0:
            raise ArgumentError(f"GaussianFill: std must be positive, got {self.std}")


@kernel(GaussianFill)
def gaussian_fill(op: GaussianFill, ctx: RunContext, like: Any = None) -> tuple[Any, ...]:
    return (_filled(op, ctx, normal, op.target(ctx, like), lambda z: z * op.std + op.mean),)


def _bounds_on_host(op: Fill, index: int) -> Literal["here", "host", "any"]:
    return "host" if index > 0 else Fill.input_location(op, index)


def _check_range(op_type: str, low: float, high: float) -> None:
    if not low < high:
        raise ArgumentError(f"{op_type}: min must be below max, got min={low}, max={high}")


@register
@dataclass(frozen=True)
class UniformFill(Fill):
    """Y is uniform in [min, max); the bounds may be given as the second and third input, of one element each.

    If these have min above max, Y has no rows.
    """

    signature = """
        shape? (...): any, as of ConstantFill
        min? (1): float32
        max? (1): float32
        -> Y (...): float32
    """
    stateful = True
    draws = True
    input_location = _bounds_on_host
    min: float = 0.0
    max: float = 1.0

    def check(self) -> None:
        super().check()
        _check_range(self.type, self.min, self.max)
        _check_bounds_together(self)


@register
@dataclass(frozen=True)
class UniformIntFill(Fill):
    """Y is uniform over the integers from ``min`` to ``max``, both included, int32; bounds as for UniformFill."""

    signature = """
        shape? (...): any, as of ConstantFill
        min? (1): int32
        max? (1): int32
        -> Y (...): int32
    """
    fixed_dtype = np.dtype(np.int32)
    input_location = _bounds_on_host
    stateful = True
    draws = True
    min: int = 0
    max: int = 1

    def check(self) -> None:
        super().check()
        _check_range(self.type, self.min, self.max)
        _check_bounds_together(self)


def _check_bounds_together(op: Fill) -> None:
    if op.n_in == 2:
        raise ArgumentError(f"{op.type}: min and max must both be inputs, or both arguments; got 2 inputs, one bound")


def _range(op: UniformFill | UniformIntFill, ctx: RunContext, like: Any, low: Any, high: Any) -> tuple[Any, Any, Shape]:
    """Return the bounds, and the shape of Y: without rows if the inputs have min above max."""
    shape = op.target(ctx, like)
    if low is None:
        return op.min, op.max, shape
    least, most = one_number(op, ctx, low, "min"), one_number(op, ctx, high, "max")
    if least > most:
        if not shape:
            _check_range(op.type, least, most)
        shape = (0, *shape[1:])
    return least, most, shape


@kernel(UniformFill)
def uniform_fill(
    op: UniformFill, ctx: RunContext, like: Any = None, low: Any = None, high: Any = None
) -> tuple[Any, ...]:
    least, most, shape = _range(op, ctx, like, low, high)
    return (_filled(op, ctx, uniform, shape, lambda u: u * (most - least) + least),)


@kernel(UniformIntFill)
def uniform_int_fill(
    op: UniformIntFill, ctx: RunContext, like: Any = None, low: Any = None, high: Any = None
) -> tuple[Any, ...]:
    least, most, shape = _range(op, ctx, like, low, high)
    first, count, xp = int(least), int(most) - int(least) + 1, ctx.xp
    return (_filled(op, ctx, uniform, shape, lambda u: xp.floor(u * count) + first, np.int32),)
