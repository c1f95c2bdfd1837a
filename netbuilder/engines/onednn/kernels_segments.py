"""Sums of rows by segment on oneDNN: the product of a sparse matrix, with one row per segment, and the table.

The product visits the non-zero elements of that matrix only, so its time does not depend on the number of rows of the
table. One thread adds up each segment, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn.arguments import Constant, In, MemoryRef, Out, Scratch, ScratchAllocator, Sparse
from netbuilder.engines.onednn.blocked_layout import plain_in, row_major
from netbuilder.engines.onednn.library import OneDnnError, check, dnnl
from netbuilder.engines.onednn.primitive import (
    Primitive,
    Step,
    cached,
    compile_primitive,
    prepared,
    team_size,
    threads_after,
)
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.indexing import check_indices
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.core.segment_groups import counts_of_lengths

__all__ = ["lookup", "segment_sums", "weighted_rows"]

_MOST = 2**31 - 1  # columns and starts are int32
_UNIMPLEMENTED = 3


@cached
def _sparse_product(rows: int, columns: int, count: int, width: int) -> Primitive:
    """Compile Y (rows, width) = S X: S has ``count`` non-zero elements, X is (columns, width)."""
    d = dnnl()
    if not hasattr(d.lib, "dnnl_memory_desc_create_with_csr_encoding"):
        raise OneDnnError("sparse matrices", _UNIMPLEMENTED)
    out = d.ffi.new("md_t *")
    create = d.lib.dnnl_memory_desc_create_with_csr_encoding
    check(create(out, 2, (rows, columns), c.F32, count, c.S32, c.S32), "sparse matrix")
    matrix = d.ffi.gc(out[0], d.lib.dnnl_memory_desc_destroy)
    x, y = plain_in(row_major((columns, width)), c.F32), plain_in(row_major((rows, width)), c.F32)
    return compile_primitive("matmul", matrix, x.handle, d.ffi.NULL, y.handle)


def _numbers(place: Scratch, scratch: Any, dtype: Any) -> Any:
    return scratch[place.offset : place.offset + place.nbytes].view(dtype)


Fill = Callable[[Sequence[Any], Any], Call]


def _prepared(
    ctx: PlanContext, inputs: Sequence[TensorSpec], y: TensorSpec, table: int, matrix: Sparse, count: int,
    scratch_memory: ScratchAllocator, fill: Fill,
) -> Prepared | None:  # fmt: skip
    """Prepare the product of ``matrix`` with the input ``table``; None if the library has no fast implementation.

    ``fill(inputs, scratch)`` returns the call that runs before the product, to write the matrix.
    """
    x = inputs[table]
    rows, columns = y.shape[0], x.shape[0]
    width = y.size // max(rows, 1)
    if min(rows, columns, count, width) == 0 or max(rows, columns, count) > _MOST:
        return None
    elements = count * width
    made = _sparse_product(rows, columns, count, width, threads=team_size(ctx, elements))
    if made is None or made.slow:
        return None
    step = Step(made, {c.SRC: matrix, c.WEIGHTS: In(table), c.DST: Out(0)}, threads_after(ctx, elements))
    steps: list[Any] = [lambda ins, outs, scratch: fill(ins, scratch), step]
    return prepared([spec.plain for spec in inputs], [y], steps, scratch=scratch_memory.nbytes)


def lookup(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare SparseLengthsSum, its mean, and its sums weighted by index or by position."""
    x, *weights, indices, lengths = specs
    if x.dtype != np.float32:
        return None
    count, segments, scratch_memory = indices.shape[0], lengths.shape[0], ScratchAllocator()
    starts = scratch_memory.allocate_words(segments + 1)
    columns: MemoryRef = In(len(specs) - 2) if indices.dtype == np.int32 else scratch_memory.allocate_words(count)
    factors = _factors(op, specs, count, scratch_memory)

    def fill(inputs: Sequence[Any], scratch: Any) -> Call:
        which, given = inputs[-2], inputs[1]
        begin = _numbers(starts, scratch, np.int32)
        gathered = _numbers(columns, scratch, np.int32) if isinstance(columns, Scratch) else None
        factor = _numbers(factors, scratch, np.float32) if isinstance(factors, Scratch) else None

        def call() -> None:
            check_indices(op.type, which, x.shape[0])
            counts = _cut(op, ctx, inputs[-1], count, begin)
            if gathered is not None:
                np.copyto(gathered, which, casting="unsafe")
            if factor is not None:
                factor[...] = _shares(counts) if op.mean else op.weights_of_rows(ctx.run, given, counts)

        return call

    return _prepared(ctx, specs, op.infer(*specs)[0], 0, Sparse(factors, columns, starts), count, scratch_memory, fill)


def segment_sums(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare LengthsSum, LengthsMean and LengthsWeightedSum."""
    x, lengths = specs[0], specs[-1]
    if x.dtype != np.float32:
        return None
    count, scratch_memory = x.shape[0], ScratchAllocator()
    starts = scratch_memory.allocate_words(lengths.shape[0] + 1)
    factors = _factors(op, specs, count, scratch_memory)

    def fill(inputs: Sequence[Any], scratch: Any) -> Call:
        begin = _numbers(starts, scratch, np.int32)
        factor = _numbers(factors, scratch, np.float32) if isinstance(factors, Scratch) else None

        def call() -> None:
            counts = _cut(op, ctx, inputs[-1], count, begin)
            if factor is not None:
                factor[...] = _shares(counts)

        return call

    matrix = Sparse(factors, Constant(np.arange(count, dtype=np.int32)), starts)
    return _prepared(ctx, specs, op.infer(*specs)[0], 0, matrix, count, scratch_memory, fill)


def weighted_rows(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare the gradient of the rows of weighted sums: weights, dY, lengths -> dY of the segment times the weight."""
    weights, dy = specs[:2]
    if dy.dtype != np.float32:
        return None
    count, scratch_memory = weights.shape[0], ScratchAllocator()
    columns = scratch_memory.allocate_words(count)
    segments = np.arange(dy.shape[0], dtype=np.int32)

    def fill(inputs: Sequence[Any], scratch: Any) -> Call:
        numbers = _numbers(columns, scratch, np.int32)

        def call() -> None:
            numbers[...] = np.repeat(segments, counts_of_lengths(op, ctx.run, inputs[2], count))

        return call

    matrix = Sparse(In(0), columns, Constant(np.arange(count + 1, dtype=np.int32)))
    return _prepared(ctx, specs, op.infer(*specs)[0], 1, matrix, count, scratch_memory, fill)


def _factors(op: Any, specs: Sequence[TensorSpec], count: int, scratch_memory: ScratchAllocator) -> MemoryRef:
    """Return the memory of the rows' factors: a constant 1, the input weights, or scratch memory for other factors."""
    if op.mean:
        return scratch_memory.allocate_words(count)
    if "weights" not in type(op).inputs:
        return Constant(np.ones(count, np.float32))
    return In(1) if specs[1].shape == (count,) and not op.by_position else scratch_memory.allocate_words(count)


def _cut(op: Any, ctx: PlanContext, lengths: Any, count: int, starts: Any) -> Any:
    """Return the checked lengths, and write the start of each segment and the end of the last one."""
    starts[0] = 0
    # Two passes over lengths in int32: as unsigned numbers, negative ones are the greatest, and the sum of small ones
    # fits.
    if lengths.dtype == np.int32 and int(lengths.view(np.uint32).max()) <= _MOST // lengths.size:
        np.cumsum(lengths, dtype=np.int32, out=starts[1:])
        if starts[-1] == count:
            return lengths
    counts = counts_of_lengths(op, ctx.run, lengths, count)
    np.cumsum(counts, dtype=np.int32, out=starts[1:])
    return counts


def _shares(counts: Any) -> Any:
    """Return for each row 1 / length of its segment."""
    return np.repeat(1 / counts.clip(1).astype(np.float32), counts)
