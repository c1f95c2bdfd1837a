"""The layout of values on GPUs: images and filters with channels last, and values with elements of 16 bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "BFLOAT16",
    "WIDE",
    "ChannelsLast",
    "array_dtype",
    "as_read",
    "elements_of",
    "image_spec",
    "in_one_layout",
    "in_order",
    "order_of",
    "rounded",
    "row_major_spec",
]

BFLOAT16 = "bfloat16"
"""The upper half of a float32, rounded; NumPy and CuPy have no such type, so arrays of it are uint16."""

WIDE = "wide"
"""What a kernel publishes with a value whose elements it rounds to 16 bits, if what is computed from it is not rounded.

So it is with gradients of parameters, whose sums are float32."""

_BYTES = {"float32": 4, "float16": 2, BFLOAT16: 2}


@dataclass(frozen=True)
class ChannelsLast:
    """A value as ``images`` times ``pixels`` times ``channels`` elements, the channels next to each other; no padding.

    The plain order of the value is images, channels, pixels. Where one of the last two has the extent 1, both orders
    are the same: such a layout only says that elements are stored with fewer bits, and is written (size, 1, 1).

    Args:
        images, channels, pixels: extents; of a filter, its outputs, inputs of a group, and extent of the window.
        elements: the type in which elements are stored: "float32", "float16" or "bfloat16".
    """

    images: int
    channels: int
    pixels: int
    elements: str

    engine: ClassVar[str] = "CUDNN"
    filled: ClassVar[bool] = True

    @property
    def itemsize(self) -> int:
        return _BYTES[self.elements]

    @property
    def nbytes(self) -> int:
        return self.images * self.channels * self.pixels * self.itemsize

    @property
    def is_row_major(self) -> bool:
        """Whether elements are in plain order."""
        return self.channels == 1 and self.pixels == 1

    def __repr__(self) -> str:
        order = "plain order" if self.is_row_major else "channels last"
        return f"<cuDNN layout {order} of {self.images}x{self.channels}x{self.pixels} in {self.elements}>"


def image_spec(spec: TensorSpec, order: str, elements: str) -> TensorSpec:
    """Return the spec of images or filters stored with channels last.

    Args:
        spec: of the value, whose layout is ignored.
        order: NCHW or NHWC, the meaning of its axes; NHWC is stored as it is.
        elements: the type of the stored elements.
    """
    channels, pixels = spec.shape[1], math.prod(spec.shape[2:])
    if order == "NHWC" or channels == 1 or pixels == 1:
        return row_major_spec(spec, elements)
    return spec.plain.with_layout(ChannelsLast(spec.shape[0], channels, pixels, elements))


def row_major_spec(spec: TensorSpec, elements: str) -> TensorSpec:
    """Return the spec of a value stored in plain order with elements of a type."""
    if spec.dtype.name == elements:
        return spec.plain
    return spec.plain.with_layout(ChannelsLast(spec.size, 1, 1, elements))


def rounded(number: float, elements: str) -> float:
    """Return a number as elements of a type store it."""
    if elements != BFLOAT16:
        return float(np.dtype(elements).type(number))
    bits = int(np.float32(number).view(np.uint32))
    return float(np.uint32((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32))


def elements_of(spec: TensorSpec) -> str:
    """Return the type in which the elements of a value are stored."""
    return spec.layout.elements if isinstance(spec.layout, ChannelsLast) else spec.dtype.name


def order_of(spec: TensorSpec) -> ChannelsLast | None:
    """Return the layout of a value with channels last; None if it is in plain order."""
    layout = spec.layout
    return layout if isinstance(layout, ChannelsLast) and not layout.is_row_major else None


def in_order(spec: TensorSpec, order: ChannelsLast | None, elements: str) -> TensorSpec:
    """Return the spec of a value in the order of a layout, or in plain order, with elements of a type."""
    if order is None:
        return row_major_spec(spec, elements)
    return spec.with_layout(replace(order, elements=elements))


def as_read(spec: TensorSpec, order: ChannelsLast | None) -> TensorSpec:
    """Return the spec of a tensor in an order, with its elements as they are stored if it is in that order."""
    stored = in_order(spec, order, elements_of(spec))
    return spec if spec == stored else in_order(spec, order, spec.dtype.name)


def in_one_layout(specs: Sequence[TensorSpec]) -> list[TensorSpec] | None:
    """Return specs in which values can be processed element by element; None if they differ in shape or type.

    The order is that of the first value that is not in plain order. Elements have 16 bits if those of all values do.
    """
    first = specs[0]
    if any((spec.shape, spec.dtype) != (first.shape, first.dtype) for spec in specs):
        return None
    order = next((order for spec in specs if (order := order_of(spec)) is not None), None)
    stored = {elements_of(spec) for spec in specs}
    elements = stored.pop() if len(stored) == 1 else first.dtype.name
    return [in_order(spec, order, elements) for spec in specs]


def array_dtype(elements: str) -> np.dtype[Any]:
    """Return the dtype of arrays of such elements."""
    return np.dtype(np.uint16 if elements == BFLOAT16 else elements)
