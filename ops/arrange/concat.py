"""Concat and Split, each the other's gradient, and their old names DepthConcat and DepthSplit."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.given_numbers import integer_list
from netbuilder.ops.core.image_order import channel_axis, check_order
from netbuilder.ops.core.operator import Exchange, InBatch, Operator, TensorSpec, require, spec_of
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Concat", "DepthConcat", "DepthSplit", "Split", "concat_gradients"]

_NHWC_CHANNELS = 3  # Caffe2's channel axis in NHWC, whatever the number of axes


@dataclass(frozen=True)
class JoinArguments(Operator):
    """The axis of Concat and Split, by default that of the channels.

    Without ``axis`` it is axis 1 for the order NCHW and axis 3 for NHWC (the last one if there are fewer), and
    ``add_axis`` is ignored, as in Caffe2.
    """

    axis: int | None = None
    add_axis: bool = False
    order: str = "NCHW"

    @property
    def adds_axis(self) -> bool:
        """Whether the axis is a new one, which the parts do not have."""
        return self.add_axis and self.axis is not None

    def check(self) -> None:
        check_order(self, self.order)

    def axis_in(self, ndim: int, shape: tuple[int, ...]) -> int:
        """Return the axis as a non-negative number, in the joined tensor, which has ``ndim`` axes."""
        axis = min(channel_axis(self.order, ndim), _NHWC_CHANNELS) if self.axis is None else self.axis
        require(-ndim <= axis < ndim, self, f"axis must lie in [{-ndim}, {ndim}) for {shape}, got {axis}")
        return axis % ndim


def concat_gradients(g: GradientContext) -> list[OperatorDef]:
    """Return the operators that concatenate the gradients of all parts of X to the gradient of X."""
    zeros, gradients = [], []
    for i, output in enumerate(g.op.output):
        if not g.has_d_output(i):
            # Nothing depends on this part, so its gradient is zero.
            gradients.append(output + "_grad_autogen_zero")
            zeros.append(make_op("ConstantFill", [output], gradients[-1:], value=0.0))
        else:
            gradients.append(g.d_output(i))
    d_input = g.d_input("X")
    return [*zeros, make_op("Concat", gradients, [d_input, f"_{d_input}_dims"])]


_INDICES = {np.dtype(np.int32), np.dtype(np.int64)}


@dataclass(frozen=True)
class _Concat(JoinArguments):
    """Base: tensors joined along an axis."""

    signature = """
        X+ (...): any, the same extents except along the axis
        -> Y (...): as X
        -> split_info (len(X)): int32, the extents along the axis
    """
    flops_per_element = 0

    def infer(self, *xs: TensorSpec) -> tuple[TensorSpec, ...]:
        first = xs[0]
        if {x.dtype for x in xs} == _INDICES:  # indices into the same table may be int32 and int64
            first, *others = (x.with_dtype(np.int64) for x in xs)
            xs = (first, *others)
        axis = self.axis_in(first.ndim + self.adds_axis, first.shape)
        for i, x in enumerate(xs):
            require(x.dtype == first.dtype, self, f"input {i} is of type {x.dtype}, input 0 of {first.dtype}")
            same = x.shape == first.shape if self.adds_axis else _without(x.shape, axis) == _without(first.shape, axis)
            require(
                same and x.ndim == first.ndim,
                self,
                f"input {i} of shape {x.shape} does not fit input 0 of shape {first.shape} along axis {axis}",
            )
        joined = len(xs) if self.adds_axis else sum(x.shape[axis] for x in xs)
        shape = (*first.shape[:axis], joined, *first.shape[axis + (not self.adds_axis) :])
        extents = tuple(1 if self.adds_axis else x.shape[axis] for x in xs)
        return (first.with_shape(shape), TensorSpec((len(xs),), np.dtype(np.int32), known=extents))

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        d_inputs = [g.d_input(i) for i in range(len(g.op.input))]
        return [make_op("Split", [g.d_output("Y"), g.output("split_info")], d_inputs)]


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


@dataclass(frozen=True)
class _Split(JoinArguments):
    """Base: a tensor split along an axis."""

    signature = """
        X (...): any
        split? (P): int32, the extents of the parts
        -> Y+ (...): as X
    """
    inputs_on_host = (1,)
    flops_per_element = 0
    split: tuple[int, ...] = ()

    def with_arity(self, n_in: int, n_out: int) -> Any:
        # With the extents as an input, the shapes depend on data.
        object.__setattr__(self, "dynamic", n_in == 2)
        return super().with_arity(n_in, n_out)

    def infer(self, x: TensorSpec, split: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        extents = self.split if split is None else split.known
        if extents is None:
            raise NotImplementedError(
                f"{self.type}: with split as an input the shapes are known only when the net runs"
            )
        return tuple(x.with_shape(shape) for shape in self.part_shapes(x, extents))

    def static_for(self, x: TensorSpec, split: TensorSpec | None = None) -> bool:
        return split is None or split.known is not None

    def part_shapes(self, x: TensorSpec, split: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Return the shapes of the outputs, which are equal parts if ``split`` is empty.

        Raises:
            ShapeError: the extents of the parts do not add up to that of X.
        """
        axis = self.axis_in(x.ndim, x.shape)
        extent = x.shape[axis]
        if not split:
            require(
                extent % self.n_out == 0,
                self,
                f"axis {axis} of X {x.shape} cannot be split into {self.n_out} equal parts; give the argument split",
            )
            split = (extent // self.n_out,) * self.n_out
        require(len(split) == self.n_out, self, f"split {split} must have one number per output, {self.n_out}")
        require(
            sum(split) == extent and min(split) >= 0, self, f"split {split} must add up to axis {axis} of X {x.shape}"
        )
        if self.adds_axis:
            require(set(split) <= {1}, self, f"with add_axis every part has extent 1 along axis {axis}, got {split}")
            return [_without(x.shape, axis)] * self.n_out
        return [(*x.shape[:axis], n, *x.shape[axis + 1 :]) for n in split]

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return concat_gradients(g)


@register
@dataclass(frozen=True)
class Concat(_Concat):
    """Y = the inputs joined along ``axis`` (or, with ``add_axis``, along a new one); split_info = their extents."""

    in_batch = InBatch.LINEAR
    exchanges = Exchange.BETWEEN_DEVICES


@register
@dataclass(frozen=True)
class DepthConcat(_Concat):
    """Concat under its old name."""


@register
@dataclass(frozen=True)
class Split(_Split):
    """X split along ``axis`` into one part per output, of the extents ``split``, or of equal extents without it.

    ``split`` is an argument or an input. With ``add_axis`` the axis is removed from each part.
    """


@register
@dataclass(frozen=True)
class DepthSplit(_Split):
    """Split under its old name."""


def _concat(op: Concat | DepthConcat, ctx: RunContext, *xs: Any) -> tuple[Any, ...]:
    xp = ctx.xp
    axis = op.axis_in(xs[0].ndim + op.adds_axis, xs[0].shape)
    extents = [1 if op.adds_axis else x.shape[axis] for x in xs]
    y = xp.stack(xs, axis=axis) if op.adds_axis else xp.concatenate(xs, axis=axis)
    return (y, xp.asarray(extents, dtype=xp.int32))


def _split(op: Split | DepthSplit, ctx: RunContext, x: Any, split: Any = None) -> tuple[Any, ...]:
    extents = op.split if split is None else tuple(integer_list(op, ctx, split, "split"))
    shapes = op.part_shapes(spec_of(x), extents)
    axis = op.axis_in(x.ndim, x.shape)
    parts, start = [], 0
    for shape in shapes:
        stop = start + (1 if op.adds_axis else shape[axis])
        part = x[(slice(None),) * axis + (slice(start, stop),)]
        parts.append(part.reshape(shape))
        start = stop
    return tuple(parts)


kernel(Concat)(_concat)
kernel(DepthConcat)(_concat)
kernel(Split)(_split)
kernel(DepthSplit)(_split)
