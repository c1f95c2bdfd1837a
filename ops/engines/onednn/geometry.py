"""Windows of convolutions and pooling in the form in which oneDNN takes them."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.windows.conv_geometry import Geometry

__all__ = ["channels_last", "window_arguments"]


def channels_last(op: Any) -> bool:
    """Whether the images of an operator are in order NHWC."""
    return str(op.order) == "NHWC"


def window_arguments(g: Geometry) -> tuple[tuple[int, ...], ...]:
    """Return strides, gaps between a window's elements (0: none), and borders before and after.

    A border that is negative, where the last windows leave some of the input out, is given as none: the number of
    windows follows from rounding down.
    """
    gaps = tuple(d - 1 for d in g.dilations)
    return g.strides, gaps, g.begin, tuple(max(0, pad) for pad in g.end)
