"""The windows of convolutions and pooling, read from an operator's arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Window", "channels_last", "transposed_window", "window"]

_VALID, _SAME, _CEIL = 1, 2, 3  # values of the argument legacy_pad


@dataclass(frozen=True)
class Window:
    """Per spatial dimension: extents, steps, gaps (0: none) and borders of a sliding window, and how often it fits."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilates: tuple[int, ...]
    pad_begin: tuple[int, ...]
    pad_end: tuple[int, ...]
    out: tuple[int, ...]

    @property
    def geometry(self) -> tuple[tuple[int, ...], ...]:
        """Strides, dilates and borders, in the order in which oneDNN takes them."""
        return self.strides, self.dilates, self.pad_begin, self.pad_end


def channels_last(op: Any) -> bool:
    return str(op.order) == "NHWC"


def _per_dimension(op: Any, single: str, n: int, default: int) -> tuple[int, ...]:
    several = tuple(getattr(op, single + "s", ()))
    if several:
        return several
    one = getattr(op, single, 0) or default
    if n != 2:
        return (one,) * n
    return tuple(getattr(op, single + suffix, 0) or one for suffix in ("_h", "_w"))


def _pads(op: Any, n: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    several = tuple(getattr(op, "pads", ()))
    if several:
        return several[:n], several[n:]
    one = getattr(op, "pad", 0)
    if n != 2:
        return (one,) * n, (one,) * n
    top, left, bottom, right = (getattr(op, "pad_" + side, 0) or one for side in "tlbr")
    return (top, left), (bottom, right)


def window(op: Any, extents: tuple[int, ...], kernel: tuple[int, ...] = ()) -> Window:
    """Return the window that slides over an image.

    Args:
        op: Conv, MaxPool, AveragePool or the gradient of one.
        extents: the image's spatial extents.
        kernel: the window's extents; (): the operator says them.
    """
    n = len(extents)
    if getattr(op, "global_pooling", False):
        zeros, ones = (0,) * n, (1,) * n
        return Window(extents, ones, zeros, zeros, zeros, ones)
    kernel = kernel or _per_dimension(op, "kernel", n, 0)
    strides = _per_dimension(op, "stride", n, 1)
    dilations = _per_dimension(op, "dilation", n, 1)
    begin, end = _pads(op, n)
    rows = [_fit(*row, getattr(op, "legacy_pad", 0)) for row in zip(extents, kernel, strides, dilations, begin, end)]
    begin, end, out = (tuple(column) for column in zip(*rows))
    return Window(kernel, strides, tuple(d - 1 for d in dilations), begin, end, out)


def _fit(
    extent: int, kernel: int, stride: int, dilation: int, begin: int, end: int, legacy: int
) -> tuple[int, int, int]:
    """Return the borders and the number of positions in one dimension."""
    reach = dilation * (kernel - 1) + 1
    if legacy == _VALID:
        return 0, 0, (extent - reach) // stride + 1
    if legacy == _SAME:
        out = -(-extent // stride)
        needed = max((out - 1) * stride + reach - extent, 0)
        return needed // 2, needed - needed // 2, out
    if legacy == _CEIL:
        out = -(-(extent + 2 * begin - reach) // stride) + 1
        if begin > 0 and (out - 1) * stride >= extent + begin:
            out -= 1
        return begin, max((out - 1) * stride + reach - extent - begin, 0), out
    return begin, end, (extent + begin + end - reach) // stride + 1


def transposed_window(op: Any, extents: tuple[int, ...], kernel: tuple[int, ...]) -> Window:
    """Return the window of a ConvTranspose, whose positions are the pixels of the input; ``out`` is its image."""
    n = len(extents)
    strides = _per_dimension(op, "stride", n, 1)
    extra = _per_dimension(op, "adj", n, 0)
    begin, end = _pads(op, n)
    out = tuple((extents[i] - 1) * strides[i] + kernel[i] + extra[i] - begin[i] - end[i] for i in range(n))
    return Window(kernel, strides, (0,) * n, begin, end, out)
