"""Slice and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.given_numbers import integer_list
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, OperatorDef, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Slice", "SliceGradient"]


@dataclass(frozen=True)
class _Box(Operator):
    """Base: the slice from ``starts`` to before ``ends`` along the first axes, with all of the other axes.

    A negative bound n stands for extent + 1 + n, as in Caffe2: an end of -1 is the end of the axis. With ``steps``, one
    for each axis, bounds are those of Python's slices.
    """

    fixed_inputs: ClassVar[int] = 1  # the number of inputs without starts and ends
    starts: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()

    def with_arity(self, n_in: int, n_out: int) -> Any:
        object.__setattr__(self, "dynamic", n_in > self.fixed_inputs)
        return super().with_arity(n_in, n_out)

    def check(self) -> None:
        if self.n_in == self.fixed_inputs + 1:
            raise ArgumentError(f"{self.type}: starts and ends must both be inputs, or both arguments; got one input")
        if self.n_in == self.fixed_inputs and (not self.starts or len(self.starts) != len(self.ends)):
            raise ArgumentError(
                f"{self.type}: starts and ends must be lists of the same length, 1 or more, got {self.starts}, "
                f"{self.ends}"
            )
        if 0 in self.steps or (self.n_in == self.fixed_inputs and len(self.steps) not in (0, len(self.starts))):
            raise ArgumentError(
                f"{self.type}: steps must be one number other than 0 for each of the starts {self.starts}, got "
                f"{self.steps}"
            )

    def box(self, shape: Sequence[int], starts: Sequence[int], ends: Sequence[int]) -> tuple[slice, ...]:
        """Return the slices of the first axes of a tensor of this shape.

        Raises:
            ShapeError: there are more bounds than axes, or an end is before its start.
        """
        require(
            len(starts) == len(ends) <= len(shape),
            self,
            f"starts {list(starts)} and ends {list(ends)} must have one bound each for all or the first axes of X "
            f"{tuple(shape)}",
        )
        if self.steps:
            require(
                len(self.steps) == len(starts), self, f"steps {self.steps} must be as many as starts {list(starts)}"
            )
            return tuple(_exact(slice(*bounds), n) for *bounds, n in zip(starts, ends, self.steps, shape))
        slices = []
        for extent, start, end in zip(shape, starts, ends):
            first = min(start + extent + 1 if start < 0 else start, extent)
            after = min(end + extent + 1 if end < 0 else end, extent)
            require(
                0 <= first <= after,
                self,
                f"cannot slice an axis of extent {extent} from {start} to {end}: the end must not be before the start",
            )
            slices.append(slice(first, after))
        return tuple(slices)

    def bounds(self, ctx: RunContext, given: Sequence[Any]) -> tuple[Sequence[int], Sequence[int]]:
        """Return starts and ends, at run time."""
        if not given:
            return self.starts, self.ends
        starts, ends = (integer_list(self, ctx, bound, name) for bound, name in zip(given, ("starts", "ends")))
        return starts, ends


def _exact(part: slice, extent: int) -> slice:
    """Return a slice that selects the same of an axis, with bounds that are not negative, or None."""
    places = range(*part.indices(extent))
    if not places:
        return slice(0, 0)
    return slice(places.start, None if places.stop < 0 else places.stop, places.step)


def _selected(box: Sequence[slice], shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a slice of a tensor."""
    return (*(len(range(*part.indices(n))) for part, n in zip(box, shape)), *shape[len(box) :])


@register
@dataclass(frozen=True)
class Slice(_Box):
    """Y = X from ``starts`` to before ``ends``, which may be given as the second and third input.

    An end of -1 means the end of the axis, -2 omits the last element; bounds beyond the end are clipped to it. With
    ``steps``, one for each axis, it is X[starts[0]:ends[0]:steps[0], ...] as in Python: -1 is the last element.
    """

    signature = "X (*S): any, starts? (D): int32|int64, ends? (D): as starts -> Y (*T): as X"
    flops_per_element = 0

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if index > 0 else "here"

    def infer(self, x: TensorSpec, *bounds: TensorSpec) -> tuple[TensorSpec, ...]:
        starts, ends = [bound.known for bound in bounds] or (self.starts, self.ends)
        if starts is None or ends is None:
            raise ShapeError("Slice: with starts and ends as inputs the shape is known only when the net runs")
        box = self.box(x.shape, starts, ends)
        return (x.with_shape(_selected(box, x.shape)),)

    def static_for(self, x: TensorSpec, *bounds: TensorSpec) -> bool:
        return all(bound.known is not None for bound in bounds)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input(i) for i in range(len(g.op.input))]
        return [make_op("SliceGradient", [*inputs, g.d_output("Y")], [g.d_input("X")])]


@kernel(Slice)
def slice_(op: Slice, ctx: RunContext, x: Any, *bounds: Any) -> tuple[Any, ...]:
    return (x[op.box(x.shape, *op.bounds(ctx, bounds))].copy(),)


@register
@dataclass(frozen=True)
class SliceGradient(_Box):
    """dX = dY in the slice, 0 elsewhere; the inputs are X, then starts and ends if Slice had them, then dY."""

    signature = "X, starts_or_dY, ends?, dY? -> dX"
    fixed_inputs = 2

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        if index == 0:
            return "any"
        return "here" if index == self.n_in - 1 else "host"

    def infer(self, x: TensorSpec, *rest: TensorSpec) -> tuple[TensorSpec, ...]:
        if len(rest) == 1:
            shape = _selected(self.box(x.shape, self.starts, self.ends), x.shape)
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
