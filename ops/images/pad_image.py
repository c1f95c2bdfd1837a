"""PadImage: a border around images, of a constant, of the mirrored image, or of its edge; and its gradient."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.half import narrow, require_one_float_type, widen
from netbuilder.ops.core.image_order import check_order
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Borders", "PadImage", "PadImageGradient"]

Pair = tuple[int, int]


@dataclass(frozen=True)
class Borders(Operator):
    """Base of operators with a border around images, of one width for all sides or one for each side."""

    pad: int = 0
    pad_t: int = 0
    pad_l: int = 0
    pad_b: int = 0
    pad_r: int = 0

    def check(self) -> None:
        given = (self.pad, self.pad_t, self.pad_l, self.pad_b, self.pad_r)
        if min(given) < 0:
            raise ArgumentError(f"{self.type}: pads must not be negative, got {given}")

    @property
    def borders(self) -> tuple[Pair, Pair]:
        """Widths above and below, and to the left and right."""
        sides = (self.pad_t, self.pad_b), (self.pad_l, self.pad_r)
        return sides if any(map(any, sides)) else ((self.pad, self.pad), (self.pad, self.pad))


@dataclass(frozen=True)
class _Padding(Borders):
    pads: tuple[int, ...] = ()
    mode: str = "constant"
    value: float = 0.0
    order: str = "NCHW"

    def check(self) -> None:  # negative pads are allowed: they crop
        check_order(self, self.order)
        if self.mode not in ("constant", "reflect", "edge"):
            raise ArgumentError(f"{self.type}: mode must be constant, reflect or edge, got {self.mode!r}")
        if len(self.pads) not in (0, 4):
            raise ArgumentError(f"{self.type}: pads must be those above, left, below and right, got {self.pads}")

    @property
    def borders(self) -> tuple[Pair, Pair]:
        if self.pads:
            top, left, bottom, right = self.pads
            return (top, bottom), (left, right)
        return super().borders

    @property
    def first_axis(self) -> int:
        """The axis of the height."""
        return 2 if self.order == "NCHW" else 1

    def resized(self, x: TensorSpec, sign: int) -> TensorSpec:
        """Return the spec of images with the border added (sign 1) or removed (-1)."""
        require(x.ndim == 4, self, f"{self.inputs[0]} must have 4 axes, got shape {x.shape}")
        shape = list(x.shape)
        for axis, pads in enumerate(self.borders, self.first_axis):
            shape[axis] += sign * sum(pads)
            extent = shape[axis] if sign < 0 else x.shape[axis]
            least = max(*pads, 0) + 1 if self.mode == "reflect" else 1 if self.mode == "edge" else 0
            require(
                extent >= least,
                self,
                f"with mode {self.mode} and pads {pads} along axis {axis}, images must have an extent of at least "
                f"{least} there, got {extent}",
            )
            require(
                min(pads) >= 0 or min(shape[axis], x.shape[axis]) > 0,
                self,
                f"pads {pads} along axis {axis} must not crop all of the images, got shape {x.shape}",
            )
        return x.with_shape(shape)


@register
@dataclass(frozen=True)
class PadImage(_Padding):
    """Y = the images X with a border, by ``mode``: of a ``value``, of X mirrored, or of the edge of X repeated.

    The modes are ``constant``, ``reflect`` and ``edge``. ``pads`` are those above, left, below and right, in place of
    the other arguments. A negative pad crops the images at that side.
    """

    signature = """
        X (N, C, H, W) if NCHW else (N, H, W, C): float
        -> Y (N, C, P, Q) if NCHW else (N, P, Q, C): as X
    """
    flops_per_element = 0

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        require_one_float_type(self, X=x)
        return (self.resized(x, 1),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("PadImageGradient", [g.d_output("Y")], [g.d_input("X")])]


@register
@dataclass(frozen=True)
class PadImageGradient(_Padding):
    """dX = dY inside the border, and each element of the border added to the pixel that it was copied from."""

    signature = "dY -> dX"

    def infer(self, dy: TensorSpec) -> tuple[TensorSpec, ...]:
        require_one_float_type(self, dY=dy)
        return (self.resized(dy, -1),)


@kernel(PadImage)
def pad_image(op: PadImage, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    added, cropped = _added_and_cropped(op)
    options = {"constant_values": op.value} if op.mode == "constant" else {}
    y = ctx.xp.pad(x, added, mode=op.mode, **options)
    inside = tuple(slice(before, extent - after) for (before, after), extent in zip(cropped, y.shape))
    return (ctx.xp.ascontiguousarray(y[inside]),)


def _added_and_cropped(op: _Padding) -> tuple[list[Pair], list[Pair]]:
    """Return for each axis of the images the widths added before and after, and the widths cropped."""
    pads = [(0, 0), *op.borders, (0, 0)] if op.order == "NHWC" else [(0, 0), (0, 0), *op.borders]
    return [(max(a, 0), max(b, 0)) for a, b in pads], [(max(-a, 0), max(-b, 0)) for a, b in pads]


@kernel(PadImageGradient)
def pad_image_gradient(op: PadImageGradient, ctx: RunContext, dy: Any) -> tuple[Any, ...]:
    added, cropped = _added_and_cropped(op)
    dx = ctx.xp.pad(widen(dy), cropped)  # cropped pixels have a gradient of 0
    for axis, pads in enumerate(added):
        dx = _fold(ctx.xp, dx, axis, pads, op.mode)
    return (narrow(ctx.xp.ascontiguousarray(dx), dy),)


def _fold(xp: Any, dy: Any, axis: int, pads: Pair, mode: str) -> Any:
    """Return a gradient with its border along one axis removed and added to the pixels that it was copied from."""
    before, after = pads
    extent = dy.shape[axis] - before - after
    rows = xp.moveaxis(dy, axis, 0)
    inside = rows[before : before + extent]
    if mode != "constant" and (before or after):
        inside, head, tail = inside.copy(), rows[:before], rows[before + extent :]
        if mode == "reflect":
            inside[1 : 1 + before] += head[::-1]
            inside[extent - 1 - after : extent - 1] += tail[::-1]
        else:
            inside[0] += head.sum(axis=0)
            inside[-1] += tail.sum(axis=0)
    return xp.moveaxis(inside, 0, axis)
