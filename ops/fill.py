"""Fills: tensors of a constant, of given values, or of random numbers, of a given shape or shaped like an input."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from netbuilder.ops.contexts import GradientContext, PlanContext, Prepared, RunContext
from netbuilder.ops.data_types import numpy_type
from netbuilder.ops.operator import STRING, Operator, TensorSpec, require
from netbuilder.ops.registry import CPU, kernel, prepare, register
from netbuilder.proto import ArgumentError, OperatorDef, ShapeError

__all__ = [
    "ConstantFill",
    "DiagonalFill",
    "Fill",
    "GaussianFill",
    "MSRAFill",
    "UniformFill",
    "UniformIntFill",
    "XavierFill",
]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Fill(Operator):
    """Base of fills: the shape is ``shape``, or that of the input and behind it ``extra_shape``.

    With ``input_as_shape`` the input holds the shape. ``run_once`` is read by no one; nets carry it.
    """

    inputs: ClassVar[tuple[str, ...]] = ("shape?",)
    outputs = ("Y",)
    inplace = ((0, 0),)
    dtype_made: ClassVar[np.dtype[Any]] = np.dtype(np.float32)
    shape: tuple[int, ...] = ()
    extra_shape: tuple[int, ...] = ()
    input_as_shape: bool = False
    run_once: bool = True

    def with_arity(self, n_in: int, n_out: int) -> Any:
        object.__setattr__(self, "dynamic", self.input_as_shape and n_in > 0)
        return super().with_arity(n_in, n_out)

    def check(self) -> None:
        if self.n_in and self.shape:
            raise ArgumentError(f"{self.type}: give the argument shape or an input, not both; got {self.shape}")
        if not self.n_in and (self.extra_shape or self.input_as_shape):
            raise ArgumentError(f"{self.type}: extra_shape and input_as_shape need an input")
        if any(n < 0 for n in self.shape + self.extra_shape):
            raise ArgumentError(f"{self.type}: extents must not be negative, got {self.shape + self.extra_shape}")

    def made(self) -> np.dtype[Any]:
        """The dtype of the output."""
        return self.dtype_made

    def infer(self, like: TensorSpec | None = None, *values: TensorSpec) -> tuple[TensorSpec, ...]:
        if like is None:
            shape = self.shape
        elif self.input_as_shape:
            raise ShapeError(f"{self.type}: with input_as_shape the shape is known only when the net runs")
        else:
            shape = like.shape + self.extra_shape
        return (TensorSpec(tuple(shape), self.made()),)

    def target(self, ctx: RunContext, like: Any) -> Shape:
        """Return the shape to make, at run time."""
        if like is None:
            return self.shape
        if not self.input_as_shape:
            return tuple(like.shape) + self.extra_shape
        given = ctx.host(like)
        if given.ndim != 1 or given.dtype.kind != "i":
            raise ShapeError(
                f"{self.type}: with input_as_shape the input must be a vector of integers, "
                f"got shape {given.shape} of {given.dtype}"
            )
        return tuple(given.tolist()) + self.extra_shape

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return []  # no gradient passes: the output does not depend on what the input holds


def _constant(op_type: str, value: Any, dtype: Any) -> tuple[np.dtype[Any], Any]:
    """Return the dtype that ``value`` and ``dtype`` ask for, and the value in it."""
    if dtype is None:
        if isinstance(value, bytes):
            raise ArgumentError(f"{op_type}: value {value!r} is text; give dtype (string) with it")
        kind = np.dtype(np.int64) if isinstance(value, int) else np.dtype(np.float32)
    else:
        kind = numpy_type(dtype, f"{op_type}: dtype")
    if kind == STRING:
        if isinstance(value, (bytes, str)):
            return kind, value.encode() if isinstance(value, str) else value
    elif isinstance(value, (int, float)) and (kind.kind not in "iu" or value == int(value)):
        try:
            return kind, kind.type(int(value) if kind.kind in "iu" else value)
        except OverflowError:
            pass
    raise ArgumentError(f"{op_type}: value {value!r} cannot be held by elements of type {kind}")


@dataclass(frozen=True)
class _ConstantLike(Fill):
    """Base of the fills with one ``value``; without ``dtype`` its kind decides: float32 or, if whole, int64."""

    value: Any = 0.0
    dtype: Any = None

    def check(self) -> None:
        super().check()
        _constant(self.type, self.value, self.dtype)

    def made(self) -> np.dtype[Any]:
        return _constant(self.type, self.value, self.dtype)[0]

    def element(self) -> Any:
        """The value, in the output's dtype."""
        return _constant(self.type, self.value, self.dtype)[1]

    def flops(self, *inputs: TensorSpec) -> int:
        return 0


@register
@dataclass(frozen=True)
class ConstantFill(_ConstantLike):
    """Every element of Y is ``value``, or that of the second input."""

    inputs = ("shape?", "value?")


@kernel(ConstantFill)
def constant_fill(op: ConstantFill, ctx: RunContext, like: Any = None, value: Any = None) -> tuple[Any, ...]:
    shape, dtype = op.target(ctx, like), op.made()
    if dtype == STRING:
        return (np.full(shape, op.element(), object),)
    y = ctx.xp.empty(shape, dtype)
    y[...] = op.element() if value is None else value.astype(dtype).reshape(())
    return (y,)


@prepare(ConstantFill, device=CPU)
def _prepare_constant_fill(
    op: ConstantFill, ctx: PlanContext, like: TensorSpec | None = None, value: TensorSpec | None = None
) -> Prepared | None:
    if op.dynamic or value is not None:
        return None
    out = op.infer(like)[0]
    if out.dtype == STRING:
        return None
    element = op.element()

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        return partial(outputs[0].fill, element)

    unread = () if like is None else (None,)
    return Prepared(unread, (out,), bind, inplace=((0, 0),), name="numpy.fill")


@register
@dataclass(frozen=True)
class DiagonalFill(_ConstantLike):
    """``value`` where all indices are equal, else 0; a matrix, or a cube of more axes."""

    def infer(self, like: TensorSpec | None = None, *values: TensorSpec) -> tuple[TensorSpec, ...]:
        out = super().infer(like)[0]
        _check_diagonal(self, out.shape)
        return (out,)


def _check_diagonal(op: Operator, shape: Shape) -> None:
    require(len(shape) >= 2, op, f"needs two axes or more, got shape {shape}")
    require(len(shape) == 2 or len(set(shape)) == 1, op, f"above two axes, all must be equally long, got {shape}")


@kernel(DiagonalFill)
def diagonal_fill(op: DiagonalFill, ctx: RunContext, like: Any = None) -> tuple[Any, ...]:
    shape = op.target(ctx, like)
    _check_diagonal(op, shape)
    y = ctx.xp.zeros(shape, op.made())
    step = sum(math.prod(shape[i + 1 :]) for i in range(len(shape)))  # from one diagonal element to the next
    y.reshape(-1)[: step * min(shape) : step] = op.element()
    return (y,)


@register
@dataclass(frozen=True)
class XavierFill(Fill):
    """Uniform in [-b, b] with b = sqrt(3 / fan_in), fan_in = elements per index of the first axis.

    Source: Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks", 2010.
    """

    stateful = True

    def infer(self, like: TensorSpec | None = None, *values: TensorSpec) -> tuple[TensorSpec, ...]:
        out = super().infer(like)[0]
        _fan(self, out.shape, 0)
        return (out,)


@register
@dataclass(frozen=True)
class MSRAFill(Fill):
    """Normal with deviation sqrt(2 / fan_out), fan_out = elements per index of the second axis.

    Source: He et al., "Delving deep into rectifiers", 2015, equation 14.
    """

    stateful = True

    def infer(self, like: TensorSpec | None = None, *values: TensorSpec) -> tuple[TensorSpec, ...]:
        out = super().infer(like)[0]
        _fan(self, out.shape, 1)
        return (out,)


def _fan(op: Operator, shape: Shape, axis: int) -> int:
    """Return how many elements there are per index of ``axis``, at least 1."""
    require(len(shape) > axis, op, f"the fan is counted along axis {axis}, which shape {shape} does not have")
    return max(math.prod(shape[:axis] + shape[axis + 1 :]), 1)


@kernel(XavierFill)
def xavier_fill(op: XavierFill, ctx: RunContext, like: Any = None) -> tuple[Any, ...]:
    shape = op.target(ctx, like)
    bound = math.sqrt(3.0 / _fan(op, shape, 0))
    return (((ctx.uniform(shape) * 2.0 - 1.0) * bound).astype(np.float32),)


@kernel(MSRAFill)
def msra_fill(op: MSRAFill, ctx: RunContext, like: Any = None) -> tuple[Any, ...]:
    shape = op.target(ctx, like)
    return ((ctx.normal(shape) * math.sqrt(2.0 / _fan(op, shape, 1))).astype(np.float32),)


@register
@dataclass(frozen=True)
class GaussianFill(Fill):
    """Normal with ``mean`` and deviation ``std``."""

    stateful = True
    mean: float = 0.0
    std: float = 1.0

    def check(self) -> None:
        super().check()
        if not self.std > 0:
            raise ArgumentError(f"GaussianFill: std must be above 0, got {self.std}")


@kernel(GaussianFill)
def gaussian_fill(op: GaussianFill, ctx: RunContext, like: Any = None) -> tuple[Any, ...]:
    return ((ctx.normal(op.target(ctx, like)) * op.std + op.mean).astype(np.float32),)


def _check_range(op_type: str, low: float, high: float) -> None:
    if not low < high:
        raise ArgumentError(f"{op_type}: min must be below max, got min={low}, max={high}")


@register
@dataclass(frozen=True)
class UniformFill(Fill):
    """Uniform in [min, max); the bounds may come as the second and third input, of one element each."""

    inputs = ("shape?", "min?", "max?")
    stateful = True
    min: float = 0.0
    max: float = 1.0

    def check(self) -> None:
        super().check()
        _check_range(self.type, self.min, self.max)
        _check_bounds_together(self)


@register
@dataclass(frozen=True)
class UniformIntFill(Fill):
    """Whole numbers (int32) from ``min`` to ``max``, both included, equally likely."""

    inputs = ("shape?", "min?", "max?")
    dtype_made = np.dtype(np.int32)
    stateful = True
    min: int = 0
    max: int = 1

    def check(self) -> None:
        super().check()
        _check_range(self.type, self.min, self.max)
        _check_bounds_together(self)


def _check_bounds_together(op: Fill) -> None:
    if op.n_in == 2:
        raise ArgumentError(f"{op.type}: min and max come as inputs together; got 2 inputs, give 0, 1 or 3")


def _bounds(op: UniformFill | UniformIntFill, ctx: RunContext, low: Any, high: Any) -> tuple[Any, Any]:
    if low is None:
        return op.min, op.max
    bounds = ctx.host(low).item(), ctx.host(high).item()
    _check_range(op.type, *bounds)
    return bounds


@kernel(UniformFill)
def uniform_fill(
    op: UniformFill, ctx: RunContext, like: Any = None, low: Any = None, high: Any = None
) -> tuple[Any, ...]:
    least, most = _bounds(op, ctx, low, high)
    return ((ctx.uniform(op.target(ctx, like)) * (most - least) + least).astype(np.float32),)


@kernel(UniformIntFill)
def uniform_int_fill(
    op: UniformIntFill, ctx: RunContext, like: Any = None, low: Any = None, high: Any = None
) -> tuple[Any, ...]:
    least, most = _bounds(op, ctx, low, high)
    steps = ctx.xp.floor(ctx.uniform(op.target(ctx, like)) * (int(most) - int(least) + 1))
    return ((steps + int(least)).astype(np.int32),)
