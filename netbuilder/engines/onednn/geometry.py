"""Windows of convolutions and pooling in oneDNN's form."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.conv_geometry import Geometry

__all__ = ["channels_last", "window_arguments"]


def channels_last(op: Any) -> bool:
    """Whether the images of an operator are in NHWC order."""
    return str(op.order) == "NHWC"


def window_arguments(g: Geometry) -> tuple[tuple[int, ...], ...]:
    """Return strides, dilations as oneDNN counts them (0: none), and padding before and after.

    Padding after may be negative, where the last windows do not reach the end of the input. It is returned as 0, since
    oneDNN rounds the number of windows down.
    """
    gaps = tuple(d - 1 for d in g.dilations)
    return g.strides, gaps, g.begin, tuple(max(0, pad) for pad in g.end)
