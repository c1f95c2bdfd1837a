"""Local response normalization over neighboring channels, and its gradient."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.given_numbers import check_extents
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.image_order import channel_axis, check_order
from netbuilder.ops.core.operator import Operator, TensorSpec
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["LRN", "LRNGradient"]


@dataclass(frozen=True)
class LRNArguments(Operator):
    """The arguments of LRN and of its gradient."""

    size: int = 1
    alpha: float = 0.0
    beta: float = 0.0
    bias: float = 1.0
    order: str = "NCHW"

    def check(self) -> None:
        check_order(self, self.order)
        if self.size < 1:
            raise ArgumentError(f"{self.type}: size, in channels, must be at least 1, got {self.size}")

    @property
    def before(self) -> int:
        """The number of channels of the window before its center."""
        return (self.size - 1) // 2


@register
@dataclass(frozen=True)
class LRN(LRNArguments):
    """Y = X / scale ** beta, with scale = bias + alpha / size * the sum of squares over ``size`` channels around it.

    Source: Krizhevsky et al., "ImageNet Classification with Deep Convolutional Neural Networks", 2012, section 3.3.
    """

    signature = """
        X (N, C, *S) if NCHW else (N, *S, C): float
        -> Y: as X
        -> Y_scale?: as X
    """

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("LRNGradient", [g.input("X"), g.output("Y"), g.d_output("Y")], [g.d_input("X")])]

    def flops(self, x: TensorSpec) -> int:
        return (self.size + 5) * x.size


@register
@dataclass(frozen=True)
class LRNGradient(LRNArguments):
    """The gradient of LRN."""

    signature = "X, Y, dY -> dX"

    def flops(self, x: TensorSpec, y: TensorSpec, dy: TensorSpec) -> int:
        return (2 * self.size + 12) * x.size


def _window_sums(xp: Any, values: Any, axis: int, before: int, size: int) -> Any:
    """Return at each index of ``axis`` the sum of ``size`` elements, beginning ``before`` elements before it."""
    channels = values.shape[axis]
    shape = list(values.shape)
    shape[axis] = channels + size - 1
    check_extents("LRN: the padded input", shape, values.dtype)
    padded = xp.zeros(shape, values.dtype)
    index = [slice(None)] * values.ndim
    index[axis] = slice(before, before + channels)
    padded[tuple(index)] = values
    sums = xp.zeros(values.shape, values.dtype)
    for start in range(size):
        index[axis] = slice(start, start + channels)
        sums += padded[tuple(index)]
    return sums


def _scale(op: LRNArguments, xp: Any, x: Any, axis: int) -> Any:
    return op.bias + op.alpha / op.size * _window_sums(xp, x * x, axis, op.before, op.size)


@kernel(LRN)
def lrn(op: LRN, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    values = widen(x)
    scale = _scale(op, ctx.xp, values, channel_axis(op.order, x.ndim))
    y = values * scale**-op.beta
    return (narrow(y, x), narrow(scale, x))


@kernel(LRNGradient)
def lrn_gradient(op: LRNGradient, ctx: RunContext, x: Any, y: Any, dy: Any) -> tuple[Any, ...]:
    xp, axis = ctx.xp, channel_axis(op.order, x.ndim)
    values, normal, d_normal = (widen(a) for a in (x, y, dy))
    scale = _scale(op, xp, values, axis)
    # The channels whose windows contain this one are the mirror image of its own window.
    through_scale = _window_sums(xp, d_normal * normal / scale, axis, op.size - 1 - op.before, op.size)
    dx = d_normal * scale**-op.beta - (2 * op.alpha * op.beta / op.size) * values * through_scale
    return (narrow(dx, x),)
