"""Windows of convolutions and pooling in the form in which oneDNN takes them."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.conv_geometry import Geometry, image_extents
from netbuilder.ops.operator import TensorSpec

__all__ = ["channels_last", "transposed_geometry", "window_arguments"]


def channels_last(op: Any) -> bool:
    return str(op.order) == "NHWC"


def window_arguments(g: Geometry) -> tuple[tuple[int, ...], ...]:
    """Return strides, gaps between a window's elements (0: none), and borders before and after.

    A border that is negative, where the last windows leave some of the input out, is given as none: the number of
    windows follows from rounding down.
    """
    gaps = tuple(d - 1 for d in g.dilations)
    return g.strides, gaps, g.begin, tuple(max(0, pad) for pad in g.end)


def transposed_geometry(op: Any, x: TensorSpec, w: TensorSpec) -> Geometry:
    """Return how the windows of a ConvTranspose lie on its output, whose extents are ``out``: one for each pixel of X."""
    extents, kernel = image_extents(x.shape, op.order), image_extents(w.shape, op.order)
    axes = len(extents)
    strides, extra = op.per_axis("stride", axes), op.per_axis("adj", axes)
    begin, end = op.explicit_pads(axes)
    out = tuple(
        (n - 1) * s + k + a - b - e for n, s, k, a, b, e in zip(extents, strides, kernel, extra, begin, end)
    )
    return Geometry(kernel, strides, begin, end, (1,) * axes, out, op.group)
