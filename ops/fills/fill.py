"""The base of fills, tensors of a given shape or that of an input; and ConstantFill, DiagonalFill, RangeFill."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.data_types import exact_reciprocal, numpy_type
from netbuilder.ops.core.given_numbers import check_extents
from netbuilder.ops.core.indexing import rows_of_shard
from netbuilder.ops.core.operator import STRING, InBatch, Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, OperatorDef, ShapeError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["ConstantFill", "DiagonalFill", "Fill", "RangeFill"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Fill(Operator):
    """Base of fills: Y has the shape ``shape``, or that of the first input followed by ``extra_shape``.

    With ``input_as_shape``, the elements of the input are the shape. With ``shards``, Y is that part of the rows that
    process ``rank`` of so many has: see ``rows_of_shard``. ``run_once`` is ignored; Caffe2's nets have it.
    """

    signature = """
        shape? (...): any, as of ConstantFill
        -> Y (...): float32
    """
    inplace = ((0, 0),)
    fixed_dtype: ClassVar[np.dtype[Any]] = np.dtype(np.float32)
    shape: tuple[int, ...] = ()
    extra_shape: tuple[int, ...] = ()
    input_as_shape: bool = False
    run_once: bool = True
    shards: int = 0
    rank: int = 0

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        if index > 0:
            return "here"
        return "host" if self.input_as_shape else "any"

    def with_arity(self, n_in: int, n_out: int) -> Any:
        object.__setattr__(self, "dynamic", self.input_as_shape and n_in > 0)
        return super().with_arity(n_in, n_out)

    def static_for(self, like: TensorSpec | None = None, *values: TensorSpec) -> bool:
        return not self.dynamic or like is None or like.known is not None

    def check(self) -> None:
        if self.n_in and self.shape:
            raise ArgumentError(f"{self.type}: give the argument shape or an input, not both; got {self.shape}")
        if not self.n_in and (self.extra_shape or self.input_as_shape):
            raise ArgumentError(f"{self.type}: extra_shape and input_as_shape need an input")
        if self.shards and not (self.shape and 0 <= self.rank < self.shards):
            raise ArgumentError(
                f"{self.type}: shards needs the argument shape and a rank in [0, shards), got shape {self.shape}, "
                f"rank {self.rank}, shards {self.shards}"
            )
        if any(n < 0 for n in self.shape + self.extra_shape):
            raise ArgumentError(f"{self.type}: extents must not be negative, got {self.shape + self.extra_shape}")

    def output_dtype(self) -> np.dtype[Any]:
        """Return the element type of Y."""
        return self.fixed_dtype

    @property
    def own_shape(self) -> Shape:
        """The shape of Y where no input gives it."""
        return (rows_of_shard(self.shape[0], self.shards), *self.shape[1:]) if self.shards else self.shape

    @property
    def first_element(self) -> int:
        """The number of the first element of Y among those of the whole."""
        return self.rank * math.prod(self.own_shape) if self.shards else 0

    def infer(self, like: TensorSpec | None = None, *values: TensorSpec) -> tuple[TensorSpec, ...]:
        if like is None:
            shape = self.own_shape
        elif self.input_as_shape and like.known is not None:
            shape = like.known + self.extra_shape
        elif self.input_as_shape:
            raise ShapeError(f"{self.type}: with input_as_shape the shape is known only when the net runs")
        else:
            shape = like.shape + self.extra_shape
        return (TensorSpec(tuple(shape), self.output_dtype()),)

    def target(self, ctx: RunContext, like: Any) -> Shape:
        """Return the shape of Y, at run time."""
        if like is None:
            return self.own_shape
        if not self.input_as_shape:
            return tuple(like.shape) + self.extra_shape
        given = ctx.host(like)
        if given.ndim != 1 or given.dtype.kind != "i":
            raise ShapeError(
                f"{self.type}: with input_as_shape the input must be a vector of integers, "
                f"got shape {given.shape} of {given.dtype}"
            )
        shape = tuple(given.tolist()) + self.extra_shape
        check_extents(f"{self.type}: Y", shape, self.output_dtype())
        return shape

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return []  # not differentiable: Y does not depend on the elements of the input


def _constant(op_type: str, value: Any, dtype: Any) -> tuple[np.dtype[Any], Any]:
    """Return the element type, from ``dtype`` or, without it, from the kind of ``value``; and the value in it."""
    if dtype is None:
        if isinstance(value, bytes):
            raise ArgumentError(f"{op_type}: value {value!r} is text; give dtype (string) with it")
        kind = np.dtype(np.int64) if isinstance(value, int) else np.dtype(np.float32)
    else:
        kind = numpy_type(dtype, f"{op_type}: dtype")
    if kind == STRING:
        if isinstance(value, (bytes, str)):
            return kind, value.encode() if isinstance(value, str) else value
        if value == 0.0:  # the default of the argument
            return kind, b""
    elif isinstance(value, (int, float)) and (kind.kind not in "iu" or math.isfinite(value) and value == int(value)):
        try:
            return kind, kind.type(int(value) if kind.kind in "iu" else value)
        except OverflowError:
            pass
    raise ArgumentError(f"{op_type}: value {value!r} cannot be represented as {kind}; give another dtype")


@dataclass(frozen=True)
class _ConstantLike(Fill):
    """Base of the fills with one ``value``; without ``dtype``, Y is int64 if the value is an integer, else float32."""

    flops_per_element = 0
    value: Any = 0.0
    dtype: Any = None

    def check(self) -> None:
        super().check()
        _constant(self.type, self.value, self.dtype)

    def output_dtype(self) -> np.dtype[Any]:
        return _constant(self.type, self.value, self.dtype)[0]

    def element(self) -> Any:
        """Return the value in the type of Y."""
        return _constant(self.type, self.value, self.dtype)[1]


@register
@dataclass(frozen=True)
class ConstantFill(_ConstantLike):
    """Every element of Y is ``value``, or that of the second input.

    Without ``dtype``, Y is float64 if the input whose shape it has is: the gradient of a float64 loss has to be. If the
    value is the float32 nearest to 1/n, as the weight of a micro-batch is, Y is then the float64 nearest to 1/n.

    ``of_scalar_loss`` marks the gradient of a loss of replicas, which must be one number: that of several numbers would
    depend on the number of devices.
    """

    signature = """
        shape? (...): any, its shape or, with input_as_shape, its elements are the shape of Y
        value? (1): any
        -> Y (...): any
    """
    in_batch = InBatch.EXTENTS_ONLY | InBatch.SAME_ROWS
    of_scalar_loss: bool = False

    def check_loss(self, like: Any) -> None:
        """Raise ShapeError if the first input is a loss of several numbers, where one is required."""
        if self.of_scalar_loss and like is not None and like.size != 1:
            raise ShapeError(
                f"{self.type}: a loss must be one number, a mean over samples, so that its gradient does not depend on "
                f"the number of devices; got shape {tuple(like.shape)}: let the builder return AveragedLoss of it, or "
                "give Parallelize vector_losses=True"
            )

    def is_float64_like(self, like: Any) -> bool:
        """Whether Y is float64 because the first input is."""
        is_float64 = like is not None and like.dtype == np.float64 and not self.input_as_shape
        return is_float64 and self.dtype is None and isinstance(self.value, float)

    def element_like(self, like: Any) -> Any:
        """Return the value in the type of Y, for this first input."""
        return np.float64(exact_reciprocal(self.value)) if self.is_float64_like(like) else self.element()

    def infer(self, like: TensorSpec | None = None, *values: TensorSpec) -> tuple[TensorSpec, ...]:
        self.check_loss(like)
        (y,) = super().infer(like, *values)
        return (y.with_dtype(np.float64),) if self.is_float64_like(like) else (y,)


@kernel(ConstantFill)
def constant_fill(op: ConstantFill, ctx: RunContext, like: Any = None, value: Any = None) -> tuple[Any, ...]:
    op.check_loss(like)
    shape, dtype = op.target(ctx, like), np.dtype(np.float64) if op.is_float64_like(like) else op.output_dtype()
    if dtype == STRING:
        return (np.full(shape, op.element(), object),)
    if value is not None:
        require(value.size == 1, op, f"value must have one element, got shape {value.shape}")
    y = ctx.xp.empty(shape, dtype)
    y[...] = op.element_like(like) if value is None else value.astype(dtype).reshape(())
    return (y,)


@register
@dataclass(frozen=True)
class DiagonalFill(_ConstantLike):
    """Y = ``value`` where all indices are equal, else 0; Y has two axes, or more of the same extent."""

    signature = """
        shape? (...): any, as of ConstantFill
        -> Y (...): any
    """

    def infer(self, like: TensorSpec | None = None, *values: TensorSpec) -> tuple[TensorSpec, ...]:
        out = super().infer(like)[0]
        _check_diagonal(self, out.shape)
        return (out,)


def _check_diagonal(op: Operator, shape: Shape) -> None:
    require(len(shape) >= 2, op, f"the shape must have two axes or more, got {shape}")
    text = f"with more than two axes, all must have the same extent, got {shape}"
    require(len(shape) == 2 or len(set(shape)) == 1, op, text)


@kernel(DiagonalFill)
def diagonal_fill(op: DiagonalFill, ctx: RunContext, like: Any = None) -> tuple[Any, ...]:
    shape = op.target(ctx, like)
    _check_diagonal(op, shape)
    y = ctx.xp.zeros(shape, op.output_dtype())
    step = sum(math.prod(shape[i + 1 :]) for i in range(len(shape)))  # from one diagonal element to the next
    y.reshape(-1)[: step * min(shape) : step] = op.element()
    return (y,)


@register
@dataclass(frozen=True)
class RangeFill(Fill):
    """Y = 0, 1, 2, ... in row-major order, float32."""


@kernel(RangeFill)
def range_fill(op: RangeFill, ctx: RunContext, like: Any = None) -> tuple[Any, ...]:
    shape = op.target(ctx, like)
    return (ctx.xp.arange(math.prod(shape), dtype=np.float32).reshape(shape),)
