"""Fills: tensors of a given shape, or shaped like an input; those of one constant, and the base of all."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, PlanContext, Prepared, RunContext
from netbuilder.ops.core.data_types import exact_reciprocal, numpy_type
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.given_numbers import check_extents
from netbuilder.ops.core.operator import STRING, Operator, TensorSpec, require
from netbuilder.ops.core.registry import CPU, kernel, prepare, register
from netbuilder.proto import ArgumentError, OperatorDef, ShapeError

__all__ = ["ConstantFill", "DiagonalFill", "Fill", "RangeFill"]

Shape = tuple[int, ...]


@operator_class(frozen=True)
class Fill(Operator):
    """Base of fills: the shape is ``shape``, or that of the input and after it ``extra_shape``.

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

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        if index > 0:
            return "here"
        return "host" if self.input_as_shape else "any"

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
        shape = tuple(given.tolist()) + self.extra_shape
        check_extents(f"{self.type}: Y", shape, self.made())
        return shape

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return []  # not differentiable: the output does not depend on what the input holds


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
        if value == 0.0:  # the default, which other types have
            return kind, b""
    elif isinstance(value, (int, float)) and (kind.kind not in "iu" or math.isfinite(value) and value == int(value)):
        try:
            return kind, kind.type(int(value) if kind.kind in "iu" else value)
        except OverflowError:
            pass
    raise ArgumentError(f"{op_type}: value {value!r} cannot be held by elements of type {kind}")


@operator_class(frozen=True)
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
@operator_class(frozen=True)
class ConstantFill(_ConstantLike):
    """Every element of Y is ``value``, or that of the second input.

    Without ``dtype``, Y of the shape of a float64 input is float64 too, as the gradient of such a loss has to be; a
    value that is the float32 nearest to 1/n, as the share of a micro-batch is, is 1/n then.

    Inputs:
        shape? (...): any, whose shape Y has, or with input_as_shape whose elements are the shape
        value? (1): any
    Outputs:
        Y (...): any
    """

    inputs = ("shape?", "value?")

    def follows(self, like: Any) -> bool:
        """Whether Y has the type of the first input."""
        is_float64 = like is not None and like.dtype == np.float64 and not self.input_as_shape
        return is_float64 and self.dtype is None and isinstance(self.value, float)

    def element_like(self, like: Any) -> Any:
        """The value, in the type that Y has with this first input."""
        return np.float64(exact_reciprocal(self.value)) if self.follows(like) else self.element()

    def infer(self, like: TensorSpec | None = None, *values: TensorSpec) -> tuple[TensorSpec, ...]:
        (y,) = super().infer(like, *values)
        return (y.with_dtype(np.float64),) if self.follows(like) else (y,)


@kernel(ConstantFill)
def constant_fill(op: ConstantFill, ctx: RunContext, like: Any = None, value: Any = None) -> tuple[Any, ...]:
    shape, dtype = op.target(ctx, like), np.dtype(np.float64) if op.follows(like) else op.made()
    if dtype == STRING:
        return (np.full(shape, op.element(), object),)
    if value is not None:
        require(value.size == 1, op, f"value must have one element, got shape {value.shape}")
    y = ctx.xp.empty(shape, dtype)
    y[...] = op.element_like(like) if value is None else value.astype(dtype).reshape(())
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
    element = op.element_like(like)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        return partial(outputs[0].fill, element)

    unread = () if like is None else (None,)
    return Prepared(unread, (out,), bind, inplace=((0, 0),), name="numpy.fill")


@register
@operator_class(frozen=True)
class DiagonalFill(_ConstantLike):
    """``value`` where all indices are equal, else 0; a matrix, or a cube of more axes.

    Inputs:
        shape? (...): any, as of ConstantFill
    Outputs:
        Y (...): any
    """

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
@operator_class(frozen=True)
class RangeFill(Fill):
    """0, 1, 2, ... in the order of the elements, float32.

    Inputs:
        shape? (...): any, as of ConstantFill
    Outputs:
        Y (...): float32
    """


@kernel(RangeFill)
def range_fill(op: RangeFill, ctx: RunContext, like: Any = None) -> tuple[Any, ...]:
    shape = op.target(ctx, like)
    return (ctx.xp.arange(math.prod(shape), dtype=np.float32).reshape(shape),)
