"""Slice and its gradient: a box cut out of a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.given_numbers import integer_list
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, OperatorDef, ShapeError
from netbuilder.proto.arguments import make_op

__all__ = ["Slice", "SliceGradient"]


@operator_class(frozen=True)
class _Box(Operator):
    """Which box is cut out: from ``starts`` up to ``ends`` along the first axes, whole along the others.

    A negative bound counts from one after the last element: an end of -1 is the end of the axis.
    """

    fixed_inputs: ClassVar[int] = 1  # without starts and ends
    starts: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()

    def with_arity(self, n_in: int, n_out: int) -> Any:
        object.__setattr__(self, "dynamic", n_in > self.fixed_inputs)
        return super().with_arity(n_in, n_out)

    def check(self) -> None:
        if self.n_in == self.fixed_inputs + 1:
            raise ArgumentError(f"{self.type}: starts and ends come as inputs together; got one of them")
        if self.n_in == self.fixed_inputs and (not self.starts or len(self.starts) != len(self.ends)):
            raise ArgumentError(
                f"{self.type}: starts and ends must be lists of one length, at least 1, got {self.starts}, {self.ends}"
            )

    def box(self, shape: Sequence[int], starts: Sequence[int], ends: Sequence[int]) -> tuple[slice, ...]:
        """Return the box in a tensor of this shape.

        Raises:
            ShapeError: more bounds than axes, or an end before its start.
        """
        require(
            len(starts) == len(ends) <= len(shape),
            self,
            f"starts {list(starts)} and ends {list(ends)} must be equally many, at most the axes of X {tuple(shape)}",
        )
        cut = []
        for extent, start, end in zip(shape, starts, ends):
            first = min(start + extent + 1 if start < 0 else start, extent)
            after = min(end + extent + 1 if end < 0 else end, extent)
            require(
                0 <= first <= after,
                self,
                f"an axis of {extent} cannot be cut from {start} to {end}: the end must not lie before the start",
            )
            cut.append(slice(first, after))
        return tuple(cut)

    def bounds(self, ctx: RunContext, given: Sequence[Any]) -> tuple[Sequence[int], Sequence[int]]:
        """Return starts and ends, at run time."""
        if not given:
            return self.starts, self.ends
        starts, ends = (integer_list(self, ctx, bound, name) for bound, name in zip(given, ("starts", "ends")))
        return starts, ends


@register
@operator_class(frozen=True)
class Slice(_Box):
    """Y = X from ``starts`` up to ``ends``, which may come as the second and third input.

    An end of -1 means the end of the axis, -2 leaves one element off; bounds beyond the end are cut to it.

    Inputs:
        X (*S): any
        starts? (D): int32|int64
        ends? (D): as starts
    Outputs:
        Y (*T): as X
    """

    inputs = ("X", "starts?", "ends?")
    outputs = ("Y",)

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if index > 0 else "here"

    def infer(self, x: TensorSpec, *bounds: TensorSpec) -> tuple[TensorSpec, ...]:
        if bounds:
            raise ShapeError("Slice: with starts and ends as inputs the shape is known only when the net runs")
        box = self.box(x.shape, self.starts, self.ends)
        return (x.with_shape([b.stop - b.start for b in box] + list(x.shape[len(box) :])),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input(i) for i in range(len(g.op.input))]
        return [make_op("SliceGradient", [*inputs, g.d_output("Y")], [g.d_input("X")])]

    def flops(self, *inputs: TensorSpec) -> int:
        return 0


@kernel(Slice)
def slice_(op: Slice, ctx: RunContext, x: Any, *bounds: Any) -> tuple[Any, ...]:
    return (x[op.box(x.shape, *op.bounds(ctx, bounds))].copy(),)


@register
@operator_class(frozen=True)
class SliceGradient(_Box):
    """dX = dY in the box, 0 around it; the inputs are X, then starts and ends if Slice had them, then dY."""

    inputs = ("X", "starts_or_dY", "ends?", "dY?")
    outputs = ("dX",)
    fixed_inputs = 2

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        if index == 0:
            return "any"
        return "here" if index == self.n_in - 1 else "host"

    def infer(self, x: TensorSpec, *rest: TensorSpec) -> tuple[TensorSpec, ...]:
        if len(rest) == 1:
            shape = tuple(b.stop - b.start for b in self.box(x.shape, self.starts, self.ends))
            shape += x.shape[len(shape) :]
            require(rest[0].shape == shape, self, f"dY must have shape {shape}, got {rest[0].shape}")
        return (x.plain,)


@kernel(SliceGradient)
def slice_gradient(op: SliceGradient, ctx: RunContext, x: Any, *rest: Any) -> tuple[Any, ...]:
    *bounds, dy = rest
    dx = ctx.xp.zeros(x.shape, dy.dtype)
    box = op.box(x.shape, *op.bounds(ctx, bounds))
    require(dx[box].shape == dy.shape, op, f"dY must have shape {dx[box].shape}, got {dy.shape}")
    dx[box] = dy
    return (dx,)
