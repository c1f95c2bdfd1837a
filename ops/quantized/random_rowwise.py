"""Rows quantized to 1, 2, 4 or 8 bits per element by stochastic rounding, which preserves the mean; dequantized."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.quantized.rowwise_quantization import row_bounds
from netbuilder.proto import ArgumentError, ShapeError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["FloatToFusedRandRowwiseQuantized", "FusedRandRowwiseQuantizedToFloat"]

_HEADER = 10
"""Bytes before the codes of a row: bits per code, unused positions, minimum and maximum in float32."""
_WIDTHS = (1, 2, 4, 8)
_EPSILON = 1e-8


@register
@dataclass(frozen=True)
class FloatToFusedRandRowwiseQuantized(Operator):
    """Rows of a float32 matrix as (rows, 10 + bytes) of uint8, with ``bitwidth`` bits (1, 2, 4 or 8) per element.

    A row begins with the number of bits and of unused positions, then its minimum and maximum in float32. The first
    byte of codes holds, from its lowest bits on, the first code of each of 8 / ``bitwidth`` equal parts of the row.
    Rounding is stochastic, which preserves the mean, or to the nearest without ``random``. No gradient.
    """

    signature = "input (R, D): float32 -> output (R, B): uint8"
    stateful = True
    draws = True
    flops_per_element = 6
    bitwidth: int = 8
    random: bool = True

    def check(self) -> None:
        if self.bitwidth not in _WIDTHS:
            raise ArgumentError(f"{self.type}: bitwidth must be one of {_WIDTHS}, got {self.bitwidth}")

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        require(
            x.ndim == 2 and x.shape[1] > 0 and x.dtype == np.float32,
            self,
            f"input must be a matrix of float32 with columns, got {x.shape} {x.dtype}; reshape it",
        )
        packed = -(-x.shape[1] * self.bitwidth // 8)
        return (TensorSpec((x.shape[0], _HEADER + packed), np.dtype(np.uint8)),)


@kernel(FloatToFusedRandRowwiseQuantized)
def quantize_at_random(op: FloatToFusedRandRowwiseQuantized, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    xp, bits, (count, columns) = ctx.xp, op.bitwidth, x.shape
    low, high = row_bounds(x)
    step = (high - low) / np.float32(2**bits - 1)
    inverse = (1 / (step.astype("float64") + _EPSILON)).astype("float32")
    steps = xp.clip((x - low) * inverse, 0, 2**bits - 1)
    codes = xp.floor(steps + ctx.uniform(x.shape, per_sample=True)) if op.random else xp.rint(steps)
    codes = xp.where(xp.isfinite(codes), codes, 0)
    per_byte, packed = 8 // bits, op.infer(x)[0].shape[1] - _HEADER
    rows = xp.zeros((count, _HEADER + packed), "uint8")
    rows[:, 0], rows[:, 1] = bits, packed * per_byte - columns
    rows[:, 2:_HEADER] = xp.concatenate([low, high], axis=1).view("uint8")
    for part in range(per_byte):
        here = codes[:, part * packed : (part + 1) * packed].astype("uint8")
        rows[:, _HEADER : _HEADER + here.shape[1]] |= here << np.uint8(part * bits)
    return (rows,)


@register
@dataclass(frozen=True)
class FusedRandRowwiseQuantizedToFloat(Operator):
    """The float32 matrix that FloatToFusedRandRowwiseQuantized stored, decoded as its first row states. No gradient."""

    signature = "quantized_input (R, B): uint8 -> float_input (R, D): float32"
    dynamic = True
    flops_per_element = 2


@kernel(FusedRandRowwiseQuantizedToFloat)
def dequantize_random(op: FusedRandRowwiseQuantizedToFloat, ctx: RunContext, rows: Any) -> tuple[Any, ...]:
    require(
        rows.ndim == 2 and rows.dtype == np.uint8 and rows.shape[0] > 0 and rows.shape[1] > _HEADER,
        op,
        f"quantized_input must be rows of more than {_HEADER} bytes (uint8), got {rows.shape} {rows.dtype}",
    )
    bits, unused = (int(n) for n in ctx.host(rows[0, :2]))
    if bits not in _WIDTHS or unused >= 8 // bits:
        raise ShapeError(
            f"{op.type}: a row must begin with its bits, one of {_WIDTHS}, and its unused positions, fewer than a byte "
            f"holds, got {bits} and {unused}; use the output of FloatToFusedRandRowwiseQuantized"
        )
    xp, packed = ctx.xp, rows[:, _HEADER:]
    bounds = rows[:, 2:_HEADER].copy().view("float32")  # in rows they are unaligned
    low, high = bounds[:, :1], bounds[:, 1:]
    step = (((high - low) / np.float32(2**bits - 1)).astype("float64") + _EPSILON).astype("float32")
    parts = [packed >> np.uint8(part * bits) & np.uint8(2**bits - 1) for part in range(8 // bits)]
    codes = xp.concatenate(parts, axis=1)
    return (codes[:, : codes.shape[1] - unused] * step + low,)
