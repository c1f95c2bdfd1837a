"""The arithmetic of tables with 8, 4 or 2 bits per element, in which each row has its own scale and bias.

An element is ``scale * code + bias``. A fused table is one matrix of bytes: each row has first the codes, several in a
byte with the first in its lowest bits, then scale and bias as two float32 or two float16 numbers.

With a NaN or an infinity in a row, its scale or bias is not finite, so that the whole row decodes as NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "BITS_2",
    "BITS_4",
    "BITS_8",
    "BITS_8_HALF",
    "RowFormat",
    "fused_multiply_add",
    "quantize_8",
    "quantize_half",
    "row_bounds",
]

Array = Any
_TINY = np.float32(1e-8)
_SEARCH_STEPS = 200
_SEARCH_FRACTION = np.float32(0.16)


def fused_multiply_add(a: Array, b: Array, c: Array) -> Array:
    """Return ``a * b + c`` of float32 arrays, rounded once to float32, as by a fused multiply-add instruction."""
    return (a.astype("float64") * b + c).astype("float32")  # a product of two float32 numbers is exact in float64


@dataclass(frozen=True)
class RowFormat:
    """The format of a row: ``bits`` per code, and ``number``, the type of scale and bias."""

    bits: int
    number: str = "float16"

    @property
    def per_byte(self) -> int:
        return 8 // self.bits

    @property
    def extra(self) -> int:
        """Bytes of scale and bias."""
        return 2 * np.dtype(self.number).itemsize

    def packed(self, columns: int) -> int:
        """Return the number of bytes of a row with this number of elements."""
        return -(-columns // self.per_byte) + self.extra

    def columns(self, op: Operator, table: TensorSpec) -> int:
        """Return the number of elements of a row.

        Raises:
            ShapeError: this cannot be a table in this format.
        """
        require(
            table.dtype == np.uint8 and table.ndim >= 1 and table.shape[-1] > self.extra,
            op,
            f"{type(op).inputs[0]} must have rows of more than {self.extra} bytes (uint8), the last {self.extra} of "
            f"them scale and bias in {self.number}, got shape {table.shape} of {table.dtype}",
        )
        return (table.shape[-1] - self.extra) * self.per_byte

    def join(self, xp: Any, codes: Array, scale: Array, bias: Array) -> Array:
        """Return the bytes of rows: ``codes`` (..., columns), uint8, ``scale`` and ``bias`` (..., 1)."""
        packed = codes[..., :: self.per_byte].copy()
        for position in range(1, self.per_byte):
            packed |= codes[..., position :: self.per_byte] << np.uint8(position * self.bits)
        numbers = xp.concatenate([scale, bias], axis=-1).astype(self.number)
        return xp.concatenate([packed, numbers.view("uint8")], axis=-1)

    def split(self, xp: Any, table: Array) -> tuple[Array, Array, Array]:
        """Return codes, uint8, and scale and bias, (..., 1) in float32, of rows of bytes."""
        packed = table[..., : -self.extra]
        numbers = table[..., -self.extra :].copy()  # in the table they are unaligned
        numbers = numbers.view(self.number).astype("float32")
        if self.per_byte == 1:
            codes = packed
        else:
            codes = xp.empty((*packed.shape[:-1], packed.shape[-1] * self.per_byte), "uint8")
            for position in range(self.per_byte):
                codes[..., position :: self.per_byte] = packed >> np.uint8(position * self.bits) & np.uint8(
                    2**self.bits - 1
                )
        return codes, numbers[..., :1], numbers[..., 1:]


BITS_8 = RowFormat(8, "float32")
BITS_8_HALF = RowFormat(8)
BITS_4 = RowFormat(4)
BITS_2 = RowFormat(2)


def row_bounds(x: Array) -> tuple[Array, Array]:
    """Return minimum and maximum of each row of (..., columns), as (..., 1); zeros for empty rows."""
    if not x.shape[-1]:
        zeros = np.zeros((*x.shape[:-1], 1), x.dtype)
        return zeros, zeros
    return x.min(axis=-1, keepdims=True), x.max(axis=-1, keepdims=True)


def _codes(xp: Any, steps: Array, max_code: int) -> Array:
    """Return steps as codes: rounded to the nearest, halves to even; values that are not finite become 0."""
    return xp.where(xp.isfinite(steps), xp.clip(xp.rint(steps), 0, max_code), 0).astype("uint8")


def quantize_8(xp: Any, x: Array) -> tuple[Array, Array, Array]:
    """Return 8-bit codes, and scale and bias in float32, of rows (..., columns) in float32."""
    low, high = row_bounds(x)
    extent = high - low
    return _codes(xp, (x - low) * (np.float32(255) / (extent + _TINY)), 255), extent / np.float32(255), low


def quantize_half(xp: Any, x: Array, bits: int, *, greedy: bool = False) -> tuple[Array, Array, Array]:
    """Return codes, and scale and bias rounded to float16 before the codes are computed with them.

    Args:
        x: rows (..., columns) in float32.
        greedy: search for the values of the first and the last code (see ``_greedy_bounds``), instead of using the
            minimum and the maximum.

    Returns:
        Codes (uint8), scale and bias (float32, values of float16). The codes of a row whose scale is 0 are computed
        with a scale of 1.
    """
    low, high = _greedy_bounds(xp, x, bits) if greedy else row_bounds(x)
    return _quantize_between(xp, x, bits, low, high)


def _quantize_between(xp: Any, x: Array, bits: int, low: Array, high: Array) -> tuple[Array, Array, Array]:
    max_code = 2**bits - 1
    low = _rounded(low)
    extent = high - low
    scale = xp.where(extent == 0, np.float32(1), _rounded(extent / np.float32(max_code)))
    inverse = np.float32(1) / xp.where(scale == 0, np.float32(1), scale)
    return _codes(xp, (x - low) * inverse, max_code), scale, low


def _rounded(x: Array) -> Array:
    return x.astype("float16").astype("float32")


def _greedy_bounds(xp: Any, x: Array, bits: int) -> tuple[Array, Array]:
    """Return bounds, (..., 1), with a smaller loss than the minimum and the maximum if there are any.

    In each step, the bound with the smaller loss moves inwards by a 200th of the range, until 16 % of it are cut off.
    Of the bounds with a smaller loss (the root of the squared errors) than their neighbors, the best are returned.
    """
    low, high = row_bounds(x)
    step = (high - low) / np.float32(_SEARCH_STEPS)
    min_range = np.float32(_SEARCH_STEPS) * (np.float32(1) - _SEARCH_FRACTION) * step
    loss = _loss(xp, x, bits, low, high)
    best_low, best_high, best = low, high, xp.full_like(loss, np.inf)
    while (moving := low + min_range < high).any():
        left, right = _loss(xp, x, bits, low + step, high), _loss(xp, x, bits, low, high - step)
        better = moving & (loss < left) & (loss < right) & (loss < best)
        best_low, best_high = xp.where(better, low, best_low), xp.where(better, high, best_high)
        best = xp.where(better, loss, best)
        raised = left < right
        low = xp.where(moving & raised, low + step, low)
        high = xp.where(moving & ~raised, high - step, high)
        loss = xp.where(raised, left, right)
    return best_low, best_high


def _loss(xp: Any, x: Array, bits: int, low: Array, high: Array) -> Array:
    codes, scale, low = _quantize_between(xp, x, bits, low, high)
    error = x - (codes * scale + low)
    return xp.sqrt((error * error).sum(axis=-1, keepdims=True))
