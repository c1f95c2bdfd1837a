"""The positions of channels and extents in the shape of images, for the orders NCHW and NHWC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.proto import ArgumentError

__all__ = [
    "channel_axis",
    "channel_shape",
    "check_order",
    "check_per_channel",
    "count_per_channel",
    "image_extents",
    "image_shape",
    "normalized",
    "other_axes",
]


def check_order(op: Operator, order: str) -> None:
    """Raise ArgumentError unless ``order`` is NCHW or NHWC."""
    if order not in ("NCHW", "NHWC"):
        raise ArgumentError(f"{op.type}: order must be NCHW or NHWC, got {order!r}")


def channel_axis(order: str, ndim: int) -> int:
    """Return the axis of the channels: 1, or the last one for NHWC."""
    return 1 if order == "NCHW" else ndim - 1


def other_axes(order: str, ndim: int) -> tuple[int, ...]:
    """Return all axes but that of the channels."""
    channel = channel_axis(order, ndim)
    return tuple(i for i in range(ndim) if i != channel)


def count_per_channel(order: str, x: Any) -> int:
    """Return the number of elements that each channel of X, an array or a spec, has."""
    return int(x.size) // max(1, x.shape[channel_axis(order, x.ndim)])


def channel_shape(order: str, ndim: int) -> tuple[int, ...]:
    """Return the shape in which one number per channel broadcasts over images of ``ndim`` axes."""
    channel = channel_axis(order, ndim)
    return tuple(-1 if i == channel else 1 for i in range(ndim))


def normalized(order: str, x: Any, scale: Any, bias: Any, mean: Any, inv_std: Any) -> Any:
    """Return scale * (X - mean) * inv_std + bias, with numbers of each channel."""
    shape, factor = channel_shape(order, x.ndim), scale * inv_std
    return narrow(widen(x) * factor.reshape(shape) + (bias - mean * factor).reshape(shape), x)


def check_per_channel(op: Operator, order: str, x: TensorSpec, **specs: TensorSpec) -> int:
    """Return the number of channels of X.

    Raises:
        ShapeError: X has no channel axis, or one of ``specs`` does not have one number per channel.
    """
    require(x.ndim >= 2, op, f"X must have at least a batch and a channel axis, got shape {x.shape}")
    channels = x.shape[channel_axis(order, x.ndim)]
    for name, spec in specs.items():
        require(
            spec.shape == (channels,),
            op,
            f"{name} must have shape ({channels},), one number per channel of X {x.shape} in order {order}, "
            f"got {spec.shape}",
        )
    return channels


def image_extents(shape: Sequence[int], order: str) -> tuple[int, ...]:
    """Return the extents that windows slide over: all but batch and channels."""
    return tuple(shape[2:] if order == "NCHW" else shape[1:-1])


def image_shape(order: str, batch: int, channels: int, extents: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of images; for weights, ``batch`` and ``channels`` are those of the filter.

    >>> image_shape("NHWC", 8, 3, (224, 200))
    (8, 224, 200, 3)
    """
    return (batch, channels, *extents) if order == "NCHW" else (batch, *extents, channels)
