"""Where an image's channels and extents are in its shape, for the orders NCHW and NHWC."""

from __future__ import annotations

from collections.abc import Sequence

from netbuilder.ops.core.operator import Operator
from netbuilder.proto import ArgumentError

__all__ = ["channel_axis", "check_order", "image_extents", "image_shape"]


def check_order(op: Operator, order: str) -> None:
    """Raise ArgumentError unless ``order`` is NCHW or NHWC."""
    if order not in ("NCHW", "NHWC"):
        raise ArgumentError(f"{op.type}: order must be NCHW or NHWC, got {order!r}")


def channel_axis(order: str, ndim: int) -> int:
    """Return the axis of the channels: 1, or the last one for NHWC."""
    return 1 if order == "NCHW" else ndim - 1


def image_extents(shape: Sequence[int], order: str) -> tuple[int, ...]:
    """Return the extents that windows slide over: all but batch and channels."""
    return tuple(shape[2:] if order == "NCHW" else shape[1:-1])


def image_shape(order: str, batch: int, channels: int, extents: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of images; for weights, ``batch`` and ``channels`` are those of the filter.

    >>> image_shape("NHWC", 8, 3, (224, 200))
    (8, 224, 200, 3)
    """
    return (batch, channels, *extents) if order == "NCHW" else (batch, *extents, channels)
