"""Tables quantized to 8, 4 or 2 bits per element, with scale and bias in each row; dequantized, and rows gathered."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.indexing import checked_indices
from netbuilder.ops.core.operator import Operator, TensorSpec, require, spec_of
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.segment_groups import check_integers
from netbuilder.ops.quantized.rowwise_quantization import (
    BITS_2,
    BITS_4,
    BITS_8,
    BITS_8_HALF,
    RowFormat,
    fused_multiply_add,
    quantize_8,
    quantize_half,
    row_bounds,
)
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "FloatToFused2BitFakeRowwiseQuantized",
    "FloatToFused2BitRowwiseQuantized",
    "FloatToFused4BitFakeRowwiseQuantized",
    "FloatToFused4BitRowwiseQuantized",
    "FloatToFused8BitRowwiseQuantized",
    "FloatToFused8BitRowwiseQuantizedHalfScaleBias",
    "FloatToRowwiseQuantized8Bits",
    "Fused2BitRowwiseQuantizedToFloat",
    "Fused2BitRowwiseQuantizedToHalf",
    "Fused4BitRowwiseQuantizedToFloat",
    "Fused4BitRowwiseQuantizedToHalf",
    "Fused8BitRowwiseQuantizedHalfScaleBiasToFloat",
    "Fused8BitRowwiseQuantizedHalfScaleBiasToHalfFloat",
    "Fused8BitRowwiseQuantizedToFloat",
    "Fused8BitRowwiseQuantizedToHalfFloat",
    "GatherFused8BitRowwise",
    "HalfFloatToFused8BitRowwiseQuantized",
    "HalfFloatToFused8BitRowwiseQuantizedHalfScaleBias",
    "HalfToFused2BitFakeRowwiseQuantized",
    "HalfToFused2BitRowwiseQuantized",
    "HalfToFused4BitFakeRowwiseQuantized",
    "HalfToFused4BitRowwiseQuantized",
    "Rowwise8BitQuantizedToFloat",
]

_FLAT = np.float32(1e-10)


def _check_rows(op: Operator, x: TensorSpec, number: str) -> None:
    require(x.ndim >= 1 and x.shape[-1] > 0, op, f"input must have rows of at least one element, got shape {x.shape}")
    require(x.dtype == number, op, f"input must be {number}, got {x.dtype}; {_OTHER[number]}")


_OTHER = {
    "float32": "the operator whose name begins with Half takes float16",
    "float16": "the operator whose name begins with FloatTo takes float32",
}


@dataclass(frozen=True)
class _Quantize(Operator):
    """Base: ``stored`` is the format of the rows; ``code_bits`` is the number of bits that the codes use of it."""

    signature = """
        input (*A, D): float32
        -> output (*A, B): uint8, codes, scale and bias of each row
    """
    flops_per_element = 6
    number: ClassVar[str] = "float32"
    stored: ClassVar[RowFormat]
    code_bits: ClassVar[int] = 8

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        _check_rows(self, x, self.number)
        columns, multiple = x.shape[-1], self.stored.per_byte
        text = f"the number of columns must be a multiple of {multiple}, got {columns}; pad the rows"
        require(columns % multiple == 0, self, text)
        return (TensorSpec((*x.shape[:-1], self.stored.packed(columns)), np.dtype(np.uint8)),)


@dataclass(frozen=True)
class _QuantizeHalf(_Quantize):
    """Base: the rows are float16."""

    signature = """
        input (*A, D): float16
        -> output (*A, B): uint8, codes, scale and bias of each row
    """
    number = "float16"


def _quantize(op: _Quantize, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    xp, rows = ctx.xp, x.astype("float32", copy=False)
    if op.stored is BITS_8 and op.code_bits == 8:
        return (op.stored.join(xp, *quantize_8(xp, rows)),)
    codes, scale, bias = quantize_half(xp, rows, op.code_bits, greedy=ctx.op_def.engine == "GREEDY")
    if op.code_bits == op.stored.bits:  # in a fake table, a scale that underflows float16 stays 0, as in Caffe2
        scale = xp.where(scale == 0, np.float32(1), scale)
    return (op.stored.join(xp, codes, scale, bias),)


@register
@dataclass(frozen=True)
class FloatToFused8BitRowwiseQuantized(_Quantize):
    """Rows (..., columns) in float32 as (..., columns + 8) bytes: 8-bit codes, then scale and bias in float32.

    The bias is the minimum of a row, the scale a 255th of its range. No gradient.
    """

    stored = BITS_8


@register
@dataclass(frozen=True)
class HalfFloatToFused8BitRowwiseQuantized(_QuantizeHalf):
    """FloatToFused8BitRowwiseQuantized for rows in float16."""

    stored = BITS_8


@register
@dataclass(frozen=True)
class FloatToFused8BitRowwiseQuantizedHalfScaleBias(_Quantize):
    """Rows in float32 as (..., columns + 4) bytes: 8-bit codes, then scale and bias in float16."""

    stored = BITS_8_HALF


@register
@dataclass(frozen=True)
class HalfFloatToFused8BitRowwiseQuantizedHalfScaleBias(_QuantizeHalf):
    """FloatToFused8BitRowwiseQuantizedHalfScaleBias for rows in float16."""

    stored = BITS_8_HALF


@register
@dataclass(frozen=True)
class FloatToFused4BitRowwiseQuantized(_Quantize):
    """Rows in float32 as (..., columns / 2 + 4) bytes: two codes per byte, then scale and bias in float16.

    The bias is the minimum of a row, the scale a 15th of its range; with the engine "GREEDY", a search finds values
    with smaller squared errors. No gradient.
    """

    stored = BITS_4
    code_bits = 4


@register
@dataclass(frozen=True)
class HalfToFused4BitRowwiseQuantized(_QuantizeHalf):
    """FloatToFused4BitRowwiseQuantized for rows in float16."""

    stored = BITS_4
    code_bits = 4


@register
@dataclass(frozen=True)
class FloatToFused2BitRowwiseQuantized(_Quantize):
    """Rows in float32 as (..., columns / 4 + 4) bytes: four codes per byte, then scale and bias in float16.

    As FloatToFused4BitRowwiseQuantized, with a third of the range as the scale.
    """

    stored = BITS_2
    code_bits = 2


@register
@dataclass(frozen=True)
class HalfToFused2BitRowwiseQuantized(_QuantizeHalf):
    """FloatToFused2BitRowwiseQuantized for rows in float16."""

    stored = BITS_2
    code_bits = 2


@register
@dataclass(frozen=True)
class FloatToFused4BitFakeRowwiseQuantized(_Quantize):
    """The codes, scales and biases of FloatToFused4BitRowwiseQuantized, stored as an 8-bit table.

    Operators on 8-bit tables then compute what they would compute with 4 bits.
    """

    stored = BITS_8
    code_bits = 4


@register
@dataclass(frozen=True)
class HalfToFused4BitFakeRowwiseQuantized(_QuantizeHalf):
    """FloatToFused4BitFakeRowwiseQuantized for rows in float16."""

    stored = BITS_8
    code_bits = 4


@register
@dataclass(frozen=True)
class FloatToFused2BitFakeRowwiseQuantized(_Quantize):
    """The codes, scales and biases of FloatToFused2BitRowwiseQuantized, stored as an 8-bit table."""

    stored = BITS_8
    code_bits = 2


@register
@dataclass(frozen=True)
class HalfToFused2BitFakeRowwiseQuantized(_QuantizeHalf):
    """FloatToFused2BitFakeRowwiseQuantized for rows in float16."""

    stored = BITS_8
    code_bits = 2


@dataclass(frozen=True)
class _Dequantize(Operator):
    """Base: the rows of a fused table as floating-point numbers."""

    signature = """
        scale_bias_quantized_input (R, B): uint8
        -> float_output (R, D): float32|float16, float16 where the name ends in Half or HalfFloat
    """
    number: ClassVar[str] = "float32"
    stored: ClassVar[RowFormat]

    def infer(self, table: TensorSpec) -> tuple[TensorSpec, ...]:
        return (TensorSpec((*table.shape[:-1], self.stored.columns(self, table)), np.dtype(self.number)),)

    def flops(self, table: TensorSpec) -> int:
        return 2 * self.infer(table)[0].size


def _dequantize(op: _Dequantize, ctx: RunContext, table: Any) -> tuple[Any, ...]:
    codes, scale, bias = op.stored.split(ctx.xp, table)
    return (fused_multiply_add(codes, scale, bias).astype(op.number, copy=False),)


@register
@dataclass(frozen=True)
class Fused8BitRowwiseQuantizedToFloat(_Dequantize):
    """The float32 rows (..., columns) of an 8-bit table with scale and bias in float32. No gradient."""

    stored = BITS_8


@register
@dataclass(frozen=True)
class Fused8BitRowwiseQuantizedToHalfFloat(_Dequantize):
    """Fused8BitRowwiseQuantizedToFloat, with rows in float16."""

    number = "float16"
    stored = BITS_8


@register
@dataclass(frozen=True)
class Fused8BitRowwiseQuantizedHalfScaleBiasToFloat(_Dequantize):
    """The float32 rows of an 8-bit table with scale and bias in float16."""

    stored = BITS_8_HALF


@register
@dataclass(frozen=True)
class Fused8BitRowwiseQuantizedHalfScaleBiasToHalfFloat(_Dequantize):
    """The same as Fused8BitRowwiseQuantizedHalfScaleBiasToFloat: Caffe2's kernel of this name returns float32 too."""

    stored = BITS_8_HALF


@register
@dataclass(frozen=True)
class Fused4BitRowwiseQuantizedToFloat(_Dequantize):
    """The float32 rows of a 4-bit table."""

    stored = BITS_4


@register
@dataclass(frozen=True)
class Fused4BitRowwiseQuantizedToHalf(_Dequantize):
    """The float16 rows of a 4-bit table."""

    number = "float16"
    stored = BITS_4


@register
@dataclass(frozen=True)
class Fused2BitRowwiseQuantizedToFloat(_Dequantize):
    """The float32 rows of a 2-bit table."""

    stored = BITS_2


@register
@dataclass(frozen=True)
class Fused2BitRowwiseQuantizedToHalf(_Dequantize):
    """The float16 rows of a 2-bit table."""

    number = "float16"
    stored = BITS_2


for _quantized in (
    FloatToFused8BitRowwiseQuantized,
    HalfFloatToFused8BitRowwiseQuantized,
    FloatToFused8BitRowwiseQuantizedHalfScaleBias,
    HalfFloatToFused8BitRowwiseQuantizedHalfScaleBias,
    FloatToFused4BitRowwiseQuantized,
    HalfToFused4BitRowwiseQuantized,
    FloatToFused2BitRowwiseQuantized,
    HalfToFused2BitRowwiseQuantized,
    FloatToFused4BitFakeRowwiseQuantized,
    HalfToFused4BitFakeRowwiseQuantized,
    FloatToFused2BitFakeRowwiseQuantized,
    HalfToFused2BitFakeRowwiseQuantized,
):
    kernel(_quantized)(_quantize)

for _dequantized in (
    Fused8BitRowwiseQuantizedToFloat,
    Fused8BitRowwiseQuantizedToHalfFloat,
    Fused8BitRowwiseQuantizedHalfScaleBiasToFloat,
    Fused8BitRowwiseQuantizedHalfScaleBiasToHalfFloat,
    Fused4BitRowwiseQuantizedToFloat,
    Fused4BitRowwiseQuantizedToHalf,
    Fused2BitRowwiseQuantizedToFloat,
    Fused2BitRowwiseQuantizedToHalf,
):
    kernel(_dequantized)(_dequantize)


@register
@dataclass(frozen=True)
class GatherFused8BitRowwise(Operator):
    """The float32 rows ``INDICES`` of an 8-bit table with scale and bias in float32. No gradient."""

    signature = "DATA (R, B): uint8, INDICES (I): int32|int64 -> OUTPUT (I, D): float32"

    def infer(self, table: TensorSpec, indices: TensorSpec) -> tuple[TensorSpec, ...]:
        require(table.ndim == 2, self, f"DATA must be a matrix, got shape {table.shape}")
        check_integers(self, "INDICES", indices)
        columns = BITS_8.columns(self, table)
        return (TensorSpec((indices.shape[0], columns), np.dtype(np.float32)),)


@kernel(GatherFused8BitRowwise)
def gather_fused_8_bit_rowwise(op: GatherFused8BitRowwise, ctx: RunContext, table: Any, indices: Any) -> tuple[Any]:
    indices = checked_indices(ctx, op.type, indices, table.shape[0])
    codes, scale, bias = BITS_8.split(ctx.xp, table[indices])
    return (codes * scale + bias,)  # rounded twice, unlike in Fused8BitRowwiseQuantizedToFloat


@register
@dataclass(frozen=True)
class FloatToRowwiseQuantized8Bits(Operator):
    """Codes and scale_bias with input[i] = scale_bias[i, 0] * quantized_input[i] + scale_bias[i, 1]. No gradient.

    The first axis is that of the rows. A row in which all elements are equal has the scale 1.
    """

    signature = "input (R, *S): float32 -> quantized_input (R, *S): uint8, scale_bias (R, 2): float32"
    flops_per_element = 6

    def check_inputs(self, x: TensorSpec) -> None:
        _check_rows(self, x, "float32")


@kernel(FloatToRowwiseQuantized8Bits)
def float_to_rowwise_quantized_8_bits(op: FloatToRowwiseQuantized8Bits, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    xp, rows = ctx.xp, x.reshape(x.shape[0], int(np.prod(x.shape[1:])))
    low, high = row_bounds(rows)
    extent = high - low
    flat = extent < _FLAT
    scale = xp.where(flat, np.float32(1), extent / np.float32(255))
    steps = (rows - low) * (np.float32(1) / scale)
    whole = xp.floor(steps)
    codes = xp.clip(whole + (steps - whole >= 0.5), 0, 255)  # here halves are rounded up
    codes = xp.where(xp.isfinite(codes), codes, 0).astype("uint8")
    return codes.reshape(x.shape), xp.concatenate([scale, low], axis=1)


@register
@dataclass(frozen=True)
class Rowwise8BitQuantizedToFloat(Operator):
    """output[i] = scale_bias[i, 0] * quantized_input[i] + scale_bias[i, 1], from FloatToRowwiseQuantized8Bits."""

    signature = "quantized_input (R, *S): uint8, scale_bias (R, 2): float32 -> output (R, *S): float32"
    flops_per_element = 2


def check_codes(op: Operator, codes: TensorSpec, scale_bias: TensorSpec) -> None:
    """Raise ShapeError unless ``codes`` are bytes and ``scale_bias`` has a pair of float32 per row of them."""
    name = type(op).inputs[0]
    require(codes.dtype == np.uint8 and codes.ndim >= 1, op, f"{name} must be rows of uint8, got {codes}")
    require(
        scale_bias.shape == (codes.shape[0], 2) and scale_bias.dtype == np.float32,
        op,
        f"scale_bias must have shape {(codes.shape[0], 2)}, a pair for each row of {name}, in float32, "
        f"got {scale_bias.shape} {scale_bias.dtype}",
    )


@kernel(Rowwise8BitQuantizedToFloat)
def rowwise_8_bit_quantized_to_float(
    op: Rowwise8BitQuantizedToFloat, ctx: RunContext, codes: Any, scale_bias: Any
) -> tuple[Any, ...]:
    check_codes(op, spec_of(codes), spec_of(scale_bias))
    per_row = (codes.shape[0],) + (1,) * (codes.ndim - 1)
    return (codes * scale_bias[:, 0].reshape(per_row) + scale_bias[:, 1].reshape(per_row),)
