"""Pad: a border along any axes, of a constant, the mirrored tensor, its edge or its other end; and its gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.indexing import add_rows
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Pad", "PadGradient"]


@dataclass(frozen=True)
class _Padding(Operator):
    pads: tuple[int, ...] = ()
    mode: str = "constant"

    def check(self) -> None:
        if self.mode not in ("constant", "reflect", "edge", "wrap"):
            raise ArgumentError(f"{self.type}: mode must be constant, reflect, edge or wrap, got {self.mode!r}")
        if len(self.pads) % 2:
            raise ArgumentError(f"{self.type}: pads must be those before all axes, then those after, got {self.pads}")

    def padded(self, x: TensorSpec, sign: int) -> TensorSpec:
        """Return the spec of a tensor with the border added (sign 1) or removed (-1)."""
        text = f"pads must have two numbers for each of the {x.ndim} axes of {self.inputs[-1]}, got {self.pads}"
        require(len(self.pads) == 2 * x.ndim, self, text)
        shape = []
        for axis, extent in enumerate(x.shape):
            before, after = self.pads[axis], self.pads[axis + x.ndim]
            made = extent + sign * (before + after)
            inner = extent if sign > 0 else made
            least = {"constant": 0, "reflect": max(before, after, 0) + 1, "edge": 1, "wrap": 1}[self.mode]
            fits = made >= 0 and inner >= (least if before or after else 0)
            require(
                fits and before >= -inner and after >= -inner,
                self,
                f"pads {before} and {after} with mode {self.mode} do not fit axis {axis}, of extent {inner}",
            )
            shape.append(made)
        return x.with_shape(shape)

    def axes(self, shape: tuple[int, ...]) -> Iterator[tuple[int, Any]]:
        """Yield each axis with a border, and which elements of a tensor of this shape it consists of."""
        for axis, extent in enumerate(shape):
            before, after = self.pads[axis], self.pads[axis + len(shape)]
            if before or after:
                options: Any = {"mode": self.mode}
                places = np.pad(np.arange(extent), (max(before, 0), max(after, 0)), **options)
                yield axis, places[max(-before, 0) : len(places) - max(-after, 0)]

    def inside(self, shape: tuple[int, ...]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """Return which part of X, of this shape, is in Y, and where."""
        n = len(shape)
        cut = tuple(slice(max(-self.pads[i], 0), extent - max(-self.pads[i + n], 0)) for i, extent in enumerate(shape))
        place = tuple(
            slice(max(self.pads[i], 0), max(self.pads[i], 0) + max(each.stop - each.start, 0))
            for i, each in enumerate(cut)
        )
        return cut, place


@register
@dataclass(frozen=True)
class Pad(_Padding):
    """Y = X with a border: of a ``value``, of X mirrored, of its edge repeated, or of its other end.

    The modes are ``constant``, ``reflect``, ``edge`` and ``wrap``. ``pads`` are the widths before each axis, then those
    after each axis; a negative one crops.
    """

    signature = "X (...): any -> Y (...): as X"
    flops_per_element = 0
    value: float = 0.0

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        return (self.padded(x, 1),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("PadGradient", [g.d_output("Y")], [g.d_input("X")])]


@kernel(Pad)
def pad(op: Pad, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    if op.mode == "constant":
        y = ctx.xp.full(op.padded(TensorSpec(x.shape, x.dtype), 1).shape, op.value, x.dtype)
        cut, place = op.inside(x.shape)
        y[place] = x[cut]
        return (y,)
    for axis, places in op.axes(x.shape):
        x = x.take(ctx.xp.asarray(places), axis=axis)
    return (x.copy() if not any(op.pads) else x,)


@register
@dataclass(frozen=True)
class PadGradient(_Padding):
    """dX = dY inside the border, and each element of the border added to the one that it was copied from."""

    signature = "dY -> dX"

    def infer(self, dy: TensorSpec) -> tuple[TensorSpec, ...]:
        return (self.padded(dy, -1),)


@kernel(PadGradient)
def pad_gradient(op: PadGradient, ctx: RunContext, dy: Any) -> tuple[Any, ...]:
    shape = op.padded(TensorSpec(dy.shape, dy.dtype), -1).shape
    if op.mode == "constant":
        dx = ctx.xp.zeros(shape, dy.dtype)
        cut, place = op.inside(shape)
        dx[cut] = dy[place]
        return (dx,)
    for axis, places in op.axes(shape):
        rows = ctx.xp.ascontiguousarray(ctx.xp.moveaxis(dy, axis, 0))
        table = ctx.xp.zeros((shape[axis], *rows.shape[1:]), dy.dtype)
        add_rows(ctx.xp, table, ctx.xp.asarray(places), rows, ctx.add_in_order)
        dy = ctx.xp.moveaxis(table, 0, axis)
    return (ctx.xp.ascontiguousarray(dy),)
