"""Rows of 8-, 4- or 2-bit tables, gathered by indices and reduced by lengths, without a float32 copy of the table.

Each row is added to the sum of those before it with a fused multiply-add, as by Caffe2's kernels on processors that
have one: ``sum = round(scale * code + round(sum + bias))``. Weights multiply scale and bias.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.indexing import checked_indices
from netbuilder.ops.core.operator import Operator, TensorSpec, require, spec_of
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.segment_groups import as_rows, check_integers, check_weights, counts_of_lengths, segment_starts
from netbuilder.ops.quantized.fused_rowwise import check_codes
from netbuilder.ops.quantized.rowwise_quantization import BITS_2, BITS_4, BITS_8, RowFormat, fused_multiply_add
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "SparseLengthsMean2BitRowwiseSparse",
    "SparseLengthsMean4BitRowwiseSparse",
    "SparseLengthsMean8BitRowwiseSparse",
    "SparseLengthsMean8BitsRowwise",
    "SparseLengthsMeanFused2BitRowwise",
    "SparseLengthsMeanFused4BitRowwise",
    "SparseLengthsMeanFused8BitRowwise",
    "SparseLengthsSum2BitRowwiseSparse",
    "SparseLengthsSum4BitRowwiseSparse",
    "SparseLengthsSum8BitRowwiseSparse",
    "SparseLengthsSum8BitsRowwise",
    "SparseLengthsSumFused2BitRowwise",
    "SparseLengthsSumFused4BitRowwise",
    "SparseLengthsSumFused8BitRowwise",
    "SparseLengthsWeightedMean8BitsRowwise",
    "SparseLengthsWeightedSum2BitRowwiseSparse",
    "SparseLengthsWeightedSum4BitRowwiseSparse",
    "SparseLengthsWeightedSum8BitRowwiseSparse",
    "SparseLengthsWeightedSum8BitsRowwise",
    "SparseLengthsWeightedSumFused2BitRowwise",
    "SparseLengthsWeightedSumFused4BitRowwise",
    "SparseLengthsWeightedSumFused8BitRowwise",
]

_Rows = Callable[[Any], tuple[Any, Any, Any]]


@dataclass(frozen=True)
class _Lookup(Operator):
    """Base: the lengths are read on the host. No gradient."""

    signature = """
        DATA (R, B): uint8
        INDICES (I): int32|int64
        LENGTHS (M): int32|int64
        -> output (M, D): float32
    """
    mean: ClassVar[bool] = False
    stored: ClassVar[RowFormat]

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if type(self).inputs[index] == "LENGTHS" else "here"

    def named(self, inputs: tuple[Any, ...]) -> dict[str, Any]:
        """Return the inputs by name."""
        return dict(zip(type(self).inputs, inputs))

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        given = self.named(inputs)
        check_integers(self, "INDICES", given["INDICES"])
        check_integers(self, "LENGTHS", given["LENGTHS"])
        if "WEIGHTS" in given:
            number = TensorSpec((), np.dtype(np.float32))
            check_weights(self, given["WEIGHTS"], number, given["INDICES"].shape[0])
        row = self.row_shape(given["DATA"], given)
        return (TensorSpec((*given["LENGTHS"].shape, *row), np.dtype(np.float32)),)

    def row_shape(self, table: TensorSpec, given: dict[str, TensorSpec]) -> tuple[int, ...]:
        """Check the table, and scales and biases; return the shape of a row in float32."""
        require(table.ndim == 2, self, f"DATA must be a matrix, got shape {table.shape}")
        return (self.stored.columns(self, table),)

    def rows(self, ctx: RunContext, given: dict[str, Any]) -> _Rows:
        """Return a function from n indices to the codes (n, columns), and scale and bias (n, 1), of these rows."""
        table = given["DATA"]
        return lambda which: self.stored.split(ctx.xp, table[which])

    def flops(self, *inputs: TensorSpec) -> int:
        given = self.named(inputs)
        width = self.infer(*inputs)[0].size // max(1, given["LENGTHS"].size)
        return 3 * given["INDICES"].size * width


@dataclass(frozen=True)
class _Pruned(_Lookup):
    """Base: ``COMPRESSED_INDICES_MAPPING[index]`` is the row of the table; -1: it was pruned, and adds nothing.

    A mapping with the single element 0 means that nothing was pruned.
    """

    signature = """
        DATA (R, B): uint8
        INDICES (I): int32|int64
        LENGTHS (M): int32|int64
        COMPRESSED_INDICES_MAPPING (K): int32|int64, the row of each index, or -1 where it was pruned
        -> output (M, D): float32
    """

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        check_integers(self, "COMPRESSED_INDICES_MAPPING", self.named(inputs)["COMPRESSED_INDICES_MAPPING"])
        return super().infer(*inputs)


@dataclass(frozen=True)
class _Codes(_Lookup):
    """Base: scale and bias are a separate input."""

    signature = """
        DATA (R, *S): uint8
        INDICES (I): int32|int64
        LENGTHS (M): int32|int64
        scale_bias (R, 2): float32
        -> output (M, *S): float32
    """

    def row_shape(self, table: TensorSpec, given: dict[str, TensorSpec]) -> tuple[int, ...]:
        check_codes(self, table, given["scale_bias"])
        return table.shape[1:]

    def rows(self, ctx: RunContext, given: dict[str, Any]) -> _Rows:
        codes, pairs = as_rows(given["DATA"]), given["scale_bias"]

        def take(which: Any) -> tuple[Any, Any, Any]:
            return codes[which], pairs[which, :1], pairs[which, 1:]

        return take


@dataclass(frozen=True)
class _WeightedLookup(_Lookup):
    """Base: a weighted lookup."""

    signature = """
        DATA (R, B): uint8
        WEIGHTS (I): float32
        INDICES (I): int32|int64
        LENGTHS (M): int32|int64
        -> output (M, D): float32
    """


@dataclass(frozen=True)
class _WeightedPruned(_Pruned):
    """Base: a weighted lookup in a pruned table."""

    signature = """
        DATA (R, B): uint8
        WEIGHTS (I): float32
        INDICES (I): int32|int64
        LENGTHS (M): int32|int64
        COMPRESSED_INDICES_MAPPING (K): int32|int64, the row of each index, or -1 where it was pruned
        -> output (M, D): float32
    """


@dataclass(frozen=True)
class _WeightedCodes(_Codes):
    """Base: a weighted lookup, with scale and bias as a separate input."""

    signature = """
        DATA (R, *S): uint8
        WEIGHTS (I): float32
        INDICES (I): int32|int64
        LENGTHS (M): int32|int64
        scale_bias (R, 2): float32
        -> output (M, *S): float32
    """


def _look_up(op: _Lookup, ctx: RunContext, *inputs: Any) -> tuple[Any, ...]:
    given = op.named(inputs)
    indices, counts = given["INDICES"], counts_of_lengths(op, ctx, given["LENGTHS"], given["INDICES"].shape[0])
    mapping = given.get("COMPRESSED_INDICES_MAPPING")
    if mapping is not None and not (mapping.size == 1 and int(mapping[0]) == 0):
        indices = mapping[checked_indices(ctx, op.type, indices, mapping.size)]
        rows = given["DATA"].shape[0]
        indices = checked_indices(ctx, op.type, indices, rows, -1, named="COMPRESSED_INDICES_MAPPING")
    else:
        indices = checked_indices(ctx, op.type, indices, given["DATA"].shape[0])
    shape = op.infer(*map(spec_of, inputs))[0].shape
    total = ctx.xp.zeros((shape[0], int(np.prod(shape[1:]))), "float32")
    _add_rows(ctx, total, op.rows(ctx, given), indices, counts, given.get("WEIGHTS"))
    if op.mean:
        total *= ctx.xp.asarray(np.float32(1) / counts.clip(1).astype(np.float32))[:, None]
    return (total.reshape(shape),)


def _add_rows(ctx: RunContext, total: Any, rows: _Rows, indices: Any, counts: Any, weights: Any) -> None:
    """Add the rows of each segment to its total, in order; a row -1 adds nothing."""
    order = np.argsort(-counts, kind="stable")
    starts, lengths = segment_starts(counts)[order], counts[order]
    for step in range(int(counts.max(initial=0))):
        longer = int(np.searchsorted(-lengths, -step, side="left"))  # number of segments that have a row at this step
        positions, where = ctx.xp.asarray(starts[:longer] + step), ctx.xp.asarray(order[:longer])
        which, before = indices[positions], total[where]
        kept = (which >= 0)[:, None]
        codes, scale, bias = rows(ctx.xp.maximum(which, 0))
        if weights is not None:
            weight = weights[positions][:, None]
            scale, bias = scale * weight, bias * weight
        total[where] = ctx.xp.where(kept, fused_multiply_add(codes, scale, before + bias), before)


@register
@dataclass(frozen=True)
class SparseLengthsSumFused8BitRowwise(_Lookup):
    """output[s] = the sum of the rows at the indices of segment s, in float32, of a fused 8-bit table."""

    stored = BITS_8


@register
@dataclass(frozen=True)
class SparseLengthsWeightedSumFused8BitRowwise(_WeightedLookup):
    """output[s] = the sum of the rows at the indices of segment s, each times its weight, of a fused 8-bit table."""

    stored = BITS_8


@register
@dataclass(frozen=True)
class SparseLengthsMeanFused8BitRowwise(_Lookup):
    """output[s] = the mean of the rows at the indices of segment s, of a fused 8-bit table; 0 without any."""

    mean = True
    stored = BITS_8


@register
@dataclass(frozen=True)
class SparseLengthsSum8BitRowwiseSparse(_Pruned):
    """SparseLengthsSumFused8BitRowwise over a table from which rows were pruned."""

    stored = BITS_8


@register
@dataclass(frozen=True)
class SparseLengthsWeightedSum8BitRowwiseSparse(_WeightedPruned):
    """SparseLengthsWeightedSumFused8BitRowwise over a table from which rows were pruned."""

    stored = BITS_8


@register
@dataclass(frozen=True)
class SparseLengthsMean8BitRowwiseSparse(_Pruned):
    """SparseLengthsMeanFused8BitRowwise over a pruned table; pruned rows count in the number of rows."""

    mean = True
    stored = BITS_8


@register
@dataclass(frozen=True)
class SparseLengthsSumFused4BitRowwise(_Lookup):
    """output[s] = the sum of the rows at the indices of segment s, in float32, of a fused 4-bit table."""

    stored = BITS_4


@register
@dataclass(frozen=True)
class SparseLengthsWeightedSumFused4BitRowwise(_WeightedLookup):
    """output[s] = the sum of the rows at the indices of segment s, each times its weight, of a fused 4-bit table."""

    stored = BITS_4


@register
@dataclass(frozen=True)
class SparseLengthsMeanFused4BitRowwise(_Lookup):
    """output[s] = the mean of the rows at the indices of segment s, of a fused 4-bit table; 0 without any."""

    mean = True
    stored = BITS_4


@register
@dataclass(frozen=True)
class SparseLengthsSum4BitRowwiseSparse(_Pruned):
    """SparseLengthsSumFused4BitRowwise over a table from which rows were pruned."""

    stored = BITS_4


@register
@dataclass(frozen=True)
class SparseLengthsWeightedSum4BitRowwiseSparse(_WeightedPruned):
    """SparseLengthsWeightedSumFused4BitRowwise over a table from which rows were pruned."""

    stored = BITS_4


@register
@dataclass(frozen=True)
class SparseLengthsMean4BitRowwiseSparse(_Pruned):
    """SparseLengthsMeanFused4BitRowwise over a pruned table; pruned rows count in the number of rows."""

    mean = True
    stored = BITS_4


@register
@dataclass(frozen=True)
class SparseLengthsSumFused2BitRowwise(_Lookup):
    """output[s] = the sum of the rows at the indices of segment s, in float32, of a fused 2-bit table."""

    stored = BITS_2


@register
@dataclass(frozen=True)
class SparseLengthsWeightedSumFused2BitRowwise(_WeightedLookup):
    """output[s] = the sum of the rows at the indices of segment s, each times its weight, of a fused 2-bit table."""

    stored = BITS_2


@register
@dataclass(frozen=True)
class SparseLengthsMeanFused2BitRowwise(_Lookup):
    """output[s] = the mean of the rows at the indices of segment s, of a fused 2-bit table; 0 without any."""

    mean = True
    stored = BITS_2


@register
@dataclass(frozen=True)
class SparseLengthsSum2BitRowwiseSparse(_Pruned):
    """SparseLengthsSumFused2BitRowwise over a table from which rows were pruned."""

    stored = BITS_2


@register
@dataclass(frozen=True)
class SparseLengthsWeightedSum2BitRowwiseSparse(_WeightedPruned):
    """SparseLengthsWeightedSumFused2BitRowwise over a table from which rows were pruned."""

    stored = BITS_2


@register
@dataclass(frozen=True)
class SparseLengthsMean2BitRowwiseSparse(_Pruned):
    """SparseLengthsMeanFused2BitRowwise over a pruned table; pruned rows count in the number of rows."""

    mean = True
    stored = BITS_2


@register
@dataclass(frozen=True)
class SparseLengthsSum8BitsRowwise(_Codes):
    """output[s] = the sum of the rows at the indices of segment s, of codes with ``scale_bias`` (rows, 2)."""


@register
@dataclass(frozen=True)
class SparseLengthsWeightedSum8BitsRowwise(_WeightedCodes):
    """output[s] = the weighted sum of the rows at the indices of segment s, of codes with scale and bias."""


@register
@dataclass(frozen=True)
class SparseLengthsMean8BitsRowwise(_Codes):
    """output[s] = the mean of the rows at the indices of segment s, of codes with scale and bias; 0 without any."""

    mean = True


@register
@dataclass(frozen=True)
class SparseLengthsWeightedMean8BitsRowwise(_WeightedCodes):
    """output[s] = the sum of the weighted rows at the indices of segment s, divided by their number."""

    mean = True


for _cls in (
    SparseLengthsSumFused8BitRowwise,
    SparseLengthsWeightedSumFused8BitRowwise,
    SparseLengthsMeanFused8BitRowwise,
    SparseLengthsSum8BitRowwiseSparse,
    SparseLengthsWeightedSum8BitRowwiseSparse,
    SparseLengthsMean8BitRowwiseSparse,
    SparseLengthsSumFused4BitRowwise,
    SparseLengthsWeightedSumFused4BitRowwise,
    SparseLengthsMeanFused4BitRowwise,
    SparseLengthsSum4BitRowwiseSparse,
    SparseLengthsWeightedSum4BitRowwiseSparse,
    SparseLengthsMean4BitRowwiseSparse,
    SparseLengthsSumFused2BitRowwise,
    SparseLengthsWeightedSumFused2BitRowwise,
    SparseLengthsMeanFused2BitRowwise,
    SparseLengthsSum2BitRowwiseSparse,
    SparseLengthsWeightedSum2BitRowwiseSparse,
    SparseLengthsMean2BitRowwiseSparse,
    SparseLengthsSum8BitsRowwise,
    SparseLengthsWeightedSum8BitsRowwise,
    SparseLengthsMean8BitsRowwise,
    SparseLengthsWeightedMean8BitsRowwise,
):
    kernel(_cls)(_look_up)
