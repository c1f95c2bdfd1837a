"""Pooling: the maximum or the mean of windows, and their gradients."""

from __future__ import annotations

from dataclasses import dataclass

from netbuilder.ops.contexts import GradientContext
from netbuilder.ops.conv_geometry import Geometry, WindowArguments, channel_axis, image_extents, image_shape, product
from netbuilder.ops.operator import TensorSpec, require
from netbuilder.ops.registry import register
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op

__all__ = ["AveragePool", "AveragePoolGradient", "MaxPool", "MaxPoolGradient"]


@dataclass(frozen=True)
class PoolArguments(WindowArguments):
    """What the pooling operators have in common."""

    global_pooling: bool = False

    def check(self) -> None:
        super().check()
        if self.global_pooling and any((self.pad, self.pad_t, self.pad_l, self.pad_b, self.pad_r, *self.pads)):
            raise ArgumentError(f"{self.type}: global_pooling takes no pads; leave one of the two out")

    def geometry(self, x: TensorSpec) -> Geometry:
        """Return how the windows lie for X of this shape.

        Raises:
            ShapeError: X and the arguments do not fit each other.
        """
        axes = self.image_axes(x)
        if self.global_pooling:
            ones, zeros = (1,) * axes, (0,) * axes
            return Geometry(image_extents(x.shape, self.order), ones, zeros, zeros, ones, ones)
        kernel = self.per_axis("kernel", axes)
        require(self.per_axis("dilation", axes) == (1,) * axes, self, "pooling has no dilation; leave the argument out")
        geometry = self.slide(x, kernel)
        begin, end = self.explicit_pads(axes)
        require(
            all(b < k and e < k for b, e, k in zip(begin, end, kernel)),
            self,
            f"pads must be smaller than the kernel {kernel}, or windows would lie outside of X; got {begin} and {end}",
        )
        return geometry

    def pooled(self, x: TensorSpec) -> TensorSpec:
        """Return the spec of Y."""
        channels = x.shape[channel_axis(self.order, max(x.ndim, 2))] if x.ndim >= 2 else 0
        geometry = self.geometry(x)
        return x.with_shape(image_shape(self.order, x.shape[0], channels, geometry.out))

    def visits(self, x: TensorSpec) -> int:
        """Return how many elements of X all windows see together."""
        geometry = self.geometry(x)
        return product(geometry.kernel) * self.pooled(x).size


@dataclass(frozen=True)
class _Forward(PoolArguments):
    inputs = ("X",)
    outputs = ("Y",)

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        return (self.pooled(x),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input("X"), g.output("Y"), g.d_output("Y")]
        return [make_op(self.type + "Gradient", inputs, [g.d_input("X")])]

    def flops(self, x: TensorSpec) -> int:
        return self.visits(x)


@dataclass(frozen=True)
class _Backward(PoolArguments):
    inputs = ("X", "Y", "dY")
    outputs = ("dX",)

    def infer(self, x: TensorSpec, y: TensorSpec, dy: TensorSpec) -> tuple[TensorSpec, ...]:
        shape = self.pooled(x).shape
        require(y.shape == shape, self, f"Y must have shape {shape} for X of shape {x.shape}, got {y.shape}")
        require(dy.shape == shape, self, f"dY must have the shape of Y, {shape}, got {dy.shape}")
        return (x.plain,)

    def flops(self, x: TensorSpec, y: TensorSpec, dy: TensorSpec) -> int:
        return self.visits(x)


@register
@dataclass(frozen=True)
class MaxPool(_Forward):
    """Y = the greatest element of each window; windows see nothing of the pads."""


@register
@dataclass(frozen=True)
class MaxPoolGradient(_Backward):
    """dX: each element of dY goes to every element of its window that equals the greatest."""


@register
@dataclass(frozen=True)
class AveragePool(_Forward):
    """Y = the mean of each window, of the part inside X or, with ``count_include_pad``, of all of it (pads are 0)."""

    count_include_pad: bool = False


@register
@dataclass(frozen=True)
class AveragePoolGradient(_Backward):
    """dX: each element of dY, divided by the size of its window, goes to all elements of the window."""

    count_include_pad: bool = False
