"""Operators on shapes: Reshape, ExpandDims, Squeeze, Transpose, Shape, Size."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from netbuilder.engines.gpu import gpu
from netbuilder.ops.core.contexts import GradientContext, PlanContext, Prepared, RunContext
from netbuilder.ops.core.extensions import CAPTURABLE
from netbuilder.ops.core.given_numbers import integer_list
from netbuilder.ops.core.operator import STRING, InBatch, Operator, TensorSpec, require
from netbuilder.ops.core.registry import CPU, GPU, kernel, prepare, register
from netbuilder.proto import ArgumentError, OperatorDef, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.proto.errors import counted
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["ExpandDims", "Reshape", "Shape", "Size", "Squeeze", "Transpose"]

Extents = tuple[int, ...]
_INT64 = np.dtype(np.int64)


def _prepare_reshaped(
    op: Operator, x: TensorSpec, outs: Sequence[TensorSpec | None], constants: Sequence[Any] = ()
) -> Prepared:
    """Prepare a copy of the input's elements in another shape, and copies of constants into the further outputs."""

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        source, y = inputs[0].reshape(-1), outputs[0].reshape(-1)
        calls = [partial(np.copyto, out, value) for out, value in zip(outputs[1:], constants) if out is not None]
        if not np.may_share_memory(source, y):
            calls.append(partial(np.copyto, y, source))
        if not calls:
            return lambda: None  # the input's own buffer: nothing to copy
        if len(calls) == 1:
            return calls[0]

        def run() -> None:
            for call in calls:
                call()

        return run

    return Prepared((x.plain,), outs, bind, inplace=((0, 0),), name="numpy.copyto")


def _prepare_reshaped_on_gpu(x: TensorSpec, outs: Sequence[TensorSpec], constants: Sequence[Any]) -> Prepared:
    """As ``_prepare_reshaped``, by copies within the GPU's memory."""

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        with gpu(outputs[0].device.id) as there:
            sources = [inputs[0], *(there.xp.asarray(value) for value in constants)]
        copies = [(a, b) for a, b in zip(sources, outputs) if a.nbytes and a.data.ptr != b.data.ptr]

        def run() -> None:
            for source, target in copies:
                target.data.copy_from_device_async(source.data, source.nbytes)

        return run

    return Prepared((x.plain,), outs, bind, inplace=((0, 0),), name="copy", extensions=CAPTURABLE)


@register
@dataclass(frozen=True)
class Reshape(Operator):
    """Y = X in another shape, given by the argument or the second input; old_shape is the shape of X.

    In the new shape, 0 stands for the extent of X at that axis, and one -1 for the remaining elements. For an X without
    elements both mean an extent of 0, as in Caffe2.
    """

    signature = """
        X (*S): any
        shape? (D): int32|int64
        -> Y (*T): as X
        -> old_shape (len(S)): int32|int64, the type of the second input, or int64
    """
    inplace = ((0, 0),)
    in_batch = InBatch.LINEAR | InBatch.ROW_BY_ROW
    copy_arguments = False
    inputs_on_host = (1,)
    flops_per_element = 0
    shape: tuple[int, ...] | None = None

    def with_arity(self, n_in: int, n_out: int) -> Any:
        object.__setattr__(self, "dynamic", n_in > 1)
        return super().with_arity(n_in, n_out)

    def check(self) -> None:
        if self.n_in == 1 and self.shape is None:
            raise ArgumentError("Reshape: give the argument shape, or the shape as second input")

    def target(self, x: Extents, requested: Sequence[int]) -> Extents:
        """Return the shape of Y for an X of shape ``x``, with 0 and -1 in ``requested`` replaced."""
        size = math.prod(x)
        text = f"X {x} cannot be reshaped to {tuple(requested)}"
        valid = all(n >= -1 for n in requested) and list(requested).count(-1) <= 1
        require(valid, self, f"{text}: at most one extent may be -1, the others must not be negative")
        within = all(n != 0 or i < len(x) for i, n in enumerate(requested)) or not size
        require(within, self, f"{text}: 0 is given for an axis that X does not have")
        shape = [x[i] if n == 0 else n for i, n in enumerate(requested)] if size else [max(n, 0) for n in requested]
        known = math.prod(n for n in shape if n != -1)
        if -1 in shape:
            require(known > 0 and size % known == 0, self, f"{text}: {size} elements are not divisible by {known}")
            shape[shape.index(-1)] = size // known
        require(math.prod(shape) == size, self, f"{text}: X has {counted(size, 'element')}")
        return tuple(shape)

    def infer(self, x: TensorSpec, shape: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        requested = self.shape
        if shape is not None:
            requested = shape.known
            require(shape.dtype in (np.int32, np.int64), self, f"shape must be int32 or int64, got {shape.dtype}")
        if requested is None:
            raise ShapeError("Reshape: with the shape as an input it is known only when the net runs")
        old = TensorSpec((x.ndim,), _INT64 if shape is None else shape.dtype, known=x.shape)
        return TensorSpec(self.target(x.shape, requested), x.dtype), old

    def static_for(self, x: TensorSpec, shape: TensorSpec | None = None) -> bool:
        return shape is None or shape.known is not None

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        dx = g.d_input("X")
        return [make_op("Reshape", [g.d_output("Y"), g.output("old_shape")], [dx, f"_{dx}_dims"])]


@kernel(Reshape)
def reshape(op: Reshape, ctx: RunContext, x: Any, shape: Any = None) -> tuple[Any, ...]:
    requested = op.shape if shape is None else integer_list(op, ctx, shape, "new_shape")
    old = ctx.xp.asarray(np.array(x.shape, np.int64 if shape is None else shape.dtype))
    return x.reshape(op.target(tuple(x.shape), requested or ())), old


@prepare(Reshape, device=CPU)
def _prepare_reshape(op: Reshape, ctx: PlanContext, x: TensorSpec, *shape: TensorSpec) -> Prepared | None:
    if x.dtype == STRING:
        return None
    y, old = op.infer(x.plain, *shape)
    outs = [y, old if ctx.demand(1) != "never" else None] if op.n_out > 1 else [y]
    return _prepare_reshaped(op, x, outs, [np.array(x.shape, old.dtype)])


@prepare(Reshape, device=GPU)
def _prepare_reshape_on_gpu(op: Reshape, ctx: PlanContext, x: TensorSpec, *shape: TensorSpec) -> Prepared | None:
    if x.dtype == STRING:
        return None
    outs = op.infer(x.plain, *shape)
    return _prepare_reshaped_on_gpu(x, outs, [np.array(x.shape, outs[1].dtype)])


@dataclass(frozen=True)
class _Dims(Operator):
    """Base of operators that insert or remove axes of extent 1."""

    signature = "X (...): any -> Y (...): as X"
    inplace = ((0, 0),)
    flops_per_element = 0
    dims: tuple[int, ...] = ()  # repeats are ignored

    def check(self) -> None:
        if not self.dims or min(self.dims) < 0:
            raise ArgumentError(f"{self.type}: dims must be one or more non-negative axes, got {self.dims}")


@register
@dataclass(frozen=True)
class ExpandDims(_Dims):
    """Y = X with axes of extent 1 inserted, which are at ``dims`` in Y."""

    in_batch = InBatch.LINEAR | InBatch.ROW_BY_ROW

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        n = x.ndim + len(set(self.dims))
        require(max(self.dims) < n, self, f"dims must be below {n} for X of shape {x.shape}, got {self.dims}")
        rest = iter(x.shape)
        return (x.with_shape([1 if i in self.dims else next(rest) for i in range(n)]),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("Squeeze", [g.d_output("Y")], [g.d_input("X")])]


@register
@dataclass(frozen=True)
class Squeeze(_Dims):
    """Y = X without its axes ``dims``, which must have extent 1."""

    in_batch = InBatch.LINEAR | InBatch.ROW_BY_ROW

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        require(
            all(i < x.ndim and x.shape[i] == 1 for i in self.dims),
            self,
            f"dims must be axes of extent 1 of X {x.shape}, got {self.dims}",
        )
        return (x.with_shape([n for i, n in enumerate(x.shape) if i not in self.dims]),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("ExpandDims", [g.d_output("Y")], [g.d_input("X")])]


def _with_dims(op: _Dims, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    return (x.reshape(op.infer(TensorSpec(tuple(x.shape), x.dtype))[0].shape),)


def _prepare_dims(op: _Dims, ctx: PlanContext, x: TensorSpec) -> Prepared | None:
    return None if x.dtype == STRING else _prepare_reshaped(op, x, op.infer(x.plain))


for _cls in (ExpandDims, Squeeze):
    kernel(_cls)(_with_dims)
    prepare(_cls, device=CPU)(_prepare_dims)


@register
@dataclass(frozen=True)
class Transpose(Operator):
    """Y = X with its axes in the order ``axes``, by default reversed."""

    signature = "X (*S): any -> Y (*T): as X"
    copy_arguments = False
    flops_per_element = 0
    axes: tuple[int, ...] = ()

    def order(self, ndim: int) -> Extents:
        if not self.axes:
            return tuple(reversed(range(ndim)))
        require(
            sorted(self.axes) == list(range(ndim)),
            self,
            f"axes must be a permutation of the {ndim} axes of X, got {self.axes}",
        )
        return self.axes

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        return (x.with_shape([x.shape[i] for i in self.order(x.ndim)]),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        back = [self.axes.index(i) for i in range(len(self.axes))] or None
        return [make_op("Transpose", [g.d_output("Y")], [g.d_input("X")], axes=back)]


@kernel(Transpose)
def transpose(op: Transpose, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    return (ctx.xp.ascontiguousarray(x.transpose(op.order(x.ndim))).reshape([x.shape[i] for i in op.order(x.ndim)]),)


@dataclass(frozen=True)
class _Measure(Operator, abc.ABC):
    signature = "X -> Y"
    flops_per_element = 0

    @abc.abstractmethod
    def measure(self, shape: Extents) -> Any:
        """Return the output for an X of this shape, int64."""

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        return (TensorSpec(tuple(self.measure(x.shape).shape), _INT64),)


@register
@dataclass(frozen=True)
class Shape(_Measure):
    """Y = the shape of X, or the extents of ``axes``. No gradient."""

    signature = """
        X (*S): any
        -> Y (len(S)) or (N): int64, N the number of ``axes`` if they are given
    """
    in_batch = InBatch.EXTENTS_ONLY
    axes: tuple[int, ...] = ()

    def measure(self, shape: Extents) -> Any:
        n = len(shape)
        require(all(0 <= i < n for i in self.axes), self, f"axes must lie in [0, {n}) for X {shape}, got {self.axes}")
        return np.array([shape[i] for i in self.axes] if self.axes else shape, np.int64)


@register
@dataclass(frozen=True)
class Size(_Measure):
    """Y = the number of elements of X, a scalar. No gradient."""

    signature = "X (...): any -> Y (): int64"

    def measure(self, shape: Extents) -> Any:
        return np.array(math.prod(shape), np.int64)


def _measured(op: _Measure, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    return (ctx.xp.asarray(op.measure(tuple(x.shape))),)


def _prepare_measure(op: _Measure, ctx: PlanContext, x: TensorSpec) -> Prepared:
    value = op.measure(x.shape)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        return partial(np.copyto, outputs[0], value)

    return Prepared((None,), op.infer(x.plain), bind, name="numpy.copyto")


for _counting in (Shape, Size):
    kernel(_counting)(_measured)
    prepare(_counting, device=CPU)(_prepare_measure)
