"""Im2Col, the windows of images as columns, and Col2Im, which sums columns into images."""

from __future__ import annotations

import math
from typing import Any, Literal

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.conv_geometry import Geometry, WindowArguments
from netbuilder.ops.core.half import narrow, require_one_float_type, widen
from netbuilder.ops.core.image_order import image_extents, image_shape
from netbuilder.ops.core.operator import TensorSpec, require, spec_of
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.windows.conv_windows import accumulate, channels_first, column_matrices, from_channels_first
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Col2Im", "Im2Col"]


@dataclass(frozen=True)
class _Columns(WindowArguments):
    flops_per_element = 0

    def geometry(self, x: TensorSpec) -> Geometry:
        """Return the geometry of the windows over images of this shape."""
        require(x.ndim == 4, self, f"images must have 4 axes, got shape {x.shape}")
        return self.slide(x, self.per_axis("kernel", 2))

    def columns(self, x: TensorSpec) -> TensorSpec:
        """Return the spec of the columns, which have the elements of a window in place of the channels."""
        geometry = self.geometry(x)
        channels = (x.shape[1] if self.order == "NCHW" else x.shape[3]) * math.prod(geometry.kernel)
        return x.with_shape(image_shape(self.order, x.shape[0], channels, geometry.out))


@register
@dataclass(frozen=True)
class Im2Col(_Columns):
    """Y = the window at each position of the images X, with its elements in place of the channels.

    In order NCHW they are ordered by channel, row, column; in order NHWC by row, column, channel.
    """

    signature = """
        X (N, C, H, W) if NCHW else (N, H, W, C): float
        -> Y (N, D, P, Q) if NCHW else (N, P, Q, D): as X
    """

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        require_one_float_type(self, X=x)
        return (self.columns(x),)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("Col2Im", [g.d_output("Y"), g.input("X")], [g.d_input("X")])]


@register
@dataclass(frozen=True)
class Col2Im(_Columns):
    """Z = images of the shape of the second input; each pixel is the sum over the windows that cover it."""

    signature = """
        columns (N, D, P, Q) if NCHW else (N, P, Q, D): float
        like (N, C, H, W) if NCHW else (N, H, W, C): as columns
        -> Z: as like
    """
    flops_per_element = 1

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "any" if index == 1 else "here"

    def check_inputs(self, columns: TensorSpec, like: TensorSpec) -> None:
        shape = self.columns(like).shape
        require(columns.shape == shape, self, f"columns must have shape {shape} for {like.shape}, got {columns.shape}")


def _channels_first_columns(op: _Columns, geometry: Geometry, columns: Any, channels: int) -> Any:
    """Return columns channels-first, (N, 1, channels * window, positions)."""
    n, window = columns.shape[0], math.prod(geometry.kernel)
    if op.order == "NHWC":
        columns = columns.reshape(n, -1, window, channels).transpose(0, 3, 2, 1)
    return columns.reshape(n, 1, channels * window, math.prod(geometry.out))


@kernel(Im2Col)
def im2col(op: Im2Col, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    xp, geometry = ctx.xp, op.geometry(spec_of(x))
    images = channels_first(xp, x, op.order)
    n, channels = images.shape[:2]
    columns = column_matrices(xp, images, geometry, geometry.out)
    if op.order == "NHWC":
        columns = columns.reshape(n, channels, math.prod(geometry.kernel), -1).swapaxes(1, 2)
    return (from_channels_first(xp, columns.reshape(n, -1, *geometry.out), op.order),)


@kernel(Col2Im)
def col2im(op: Col2Im, ctx: RunContext, columns: Any, like: Any) -> tuple[Any, ...]:
    xp, geometry = ctx.xp, op.geometry(TensorSpec(tuple(like.shape), columns.dtype))
    extents = image_extents(like.shape, op.order)
    channels = like.shape[1] if op.order == "NCHW" else like.shape[3]
    images = accumulate(
        xp, _channels_first_columns(op, geometry, widen(columns), channels), extents, geometry, geometry.out
    )
    return (from_channels_first(xp, narrow(images, columns), op.order),)
