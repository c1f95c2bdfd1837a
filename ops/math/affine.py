"""ElementwiseLinear and AffineChannel: a scale and a bias per feature or channel, with their gradients."""

from __future__ import annotations

import math
from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.image_order import channel_shape, check_order, check_per_channel, other_axes
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import NetError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.errors import counted
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["AffineChannel", "AffineChannelGradient", "ElementwiseLinear", "ElementwiseLinearGradient"]


@dataclass(frozen=True)
class _Features(Operator):
    axis: int = 1

    def extents(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return the rows and columns of X as a matrix, whose columns are the axes from ``axis`` on."""
        axis = self.axis % len(shape)
        return math.prod(shape[:axis]), math.prod(shape[axis:])


@register
@dataclass(frozen=True)
class ElementwiseLinear(_Features):
    """Y = X * w + b, with one w and one b per feature; the features are the axes of X from ``axis`` on."""

    signature = "X (*A, D @ axis, *B): float, w (D * prod(B)): as X, b (D * prod(B)): as X -> Y: as X"
    flops_per_element = 2

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.d_output("Y"), g.input("X"), g.input("w")]
        return [make_op("ElementwiseLinearGradient", inputs, [g.d_input(i) for i in range(3)])]


@register
@dataclass(frozen=True)
class ElementwiseLinearGradient(_Features):
    """dX = dY * w; dw and db are the sums of dY * X and of dY over all samples."""

    signature = "dY, X, w -> dX, dw, db"

    def flops(self, dy: TensorSpec, x: TensorSpec, w: TensorSpec) -> int:
        return 4 * x.size


@kernel(ElementwiseLinear)
def elementwise_linear(op: ElementwiseLinear, ctx: RunContext, x: Any, w: Any, b: Any) -> tuple[Any, ...]:
    rows = x.reshape(op.extents(x.shape))
    return ((rows * w + b).reshape(x.shape),)


@kernel(ElementwiseLinearGradient)
def elementwise_linear_gradient(
    op: ElementwiseLinearGradient, ctx: RunContext, dy: Any, x: Any, w: Any
) -> tuple[Any, ...]:
    shape = op.extents(x.shape)
    d_rows, rows = widen(dy).reshape(shape), widen(x).reshape(shape)
    dw, db = (d_rows * rows).sum(axis=0), d_rows.sum(axis=0)
    return (dy.reshape(shape) * w).reshape(x.shape), narrow(dw, w), narrow(db, w)


@dataclass(frozen=True)
class _Channels(Operator):
    order: str = "NCHW"
    is_learnable: bool = False

    def check(self) -> None:
        check_order(self, self.order)


@register
@dataclass(frozen=True)
class AffineChannel(_Channels):
    """Y = X * scale + bias, with one scale and one bias per channel, as batch normalization with fixed statistics.

    Scale and bias have gradients only with ``is_learnable``. They may be float32 where X is float16.
    """

    signature = """
        X (N, C, *S) if NCHW else (N, *S, C): float
        scale (C): float
        bias (C): as scale
        -> Y: as X
    """
    inplace = ((0, 0),)
    flops_per_element = 2

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs, outputs = [g.d_output("Y")], [g.d_input("X")]
        if self.is_learnable:
            inputs.append(g.input("X"))
            outputs += [g.d_input("scale"), g.d_input("bias")]
        return [make_op("AffineChannelGradient", [*inputs, g.input("scale")], outputs)]


@register
@dataclass(frozen=True)
class AffineChannelGradient(_Channels):
    """dX = dY * scale; with ``is_learnable`` also dscale and dbias, the sums of dY * X and of dY per channel.

    The inputs are dY and scale or, with ``is_learnable``, dY, X and scale.
    """

    signature = "dY, X_or_scale, scale? -> dX, dscale?, dbias?"
    inplace = ((0, 0),)

    def check(self) -> None:
        super().check()
        expected = (3, 3) if self.is_learnable else (2, 1)
        if (self.n_in, self.n_out) != expected:
            raise NetError(
                f"AffineChannelGradient: with is_learnable={self.is_learnable} it takes {expected[0]} inputs and makes "
                f"{counted(expected[1], 'output')}, got {self.n_in} and {self.n_out}"
            )

    def infer(self, dy: TensorSpec, *others: TensorSpec) -> tuple[TensorSpec, ...]:
        *x, scale = others
        check_per_channel(self, self.order, dy, scale=scale)
        if not x:
            return (dy.plain,)
        require(x[0].shape == dy.shape, self, f"dY must have the shape of X, {x[0].shape}, got {dy.shape}")
        return (dy.plain, scale.plain, scale.plain)

    def flops(self, dy: TensorSpec, *others: TensorSpec) -> int:
        return (4 if self.is_learnable else 1) * dy.size


@kernel(AffineChannel)
def affine_channel(op: AffineChannel, ctx: RunContext, x: Any, scale: Any, bias: Any) -> tuple[Any, ...]:
    shape = channel_shape(op.order, x.ndim)
    return (narrow(x * scale.reshape(shape) + bias.reshape(shape), x),)


@kernel(AffineChannelGradient)
def affine_channel_gradient(op: AffineChannelGradient, ctx: RunContext, dy: Any, *others: Any) -> tuple[Any, ...]:
    *x, scale = others
    shape = channel_shape(op.order, dy.ndim)
    dx = narrow(dy * scale.reshape(shape), dy)
    if not x:
        return (dx,)
    axes, wide = other_axes(op.order, dy.ndim), widen(dy)
    return dx, narrow((wide * widen(x[0])).sum(axis=axes), scale), narrow(wide.sum(axis=axes), scale)
