"""Copies of values between layouts on a GPU, to another order, to another element type, or both: one launch for many.

A table in the GPU's memory says for each copy where it is and how its elements are ordered; each block copies a piece
of one value, in the order of the copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from netbuilder.engines.cuda.code import c_type, stored, value_of, with_prelude
from netbuilder.engines.cuda.gpu_layout import BFLOAT16, elements_of, order_of
from netbuilder.engines.cuda.kernel import THREADS, Kernel
from netbuilder.engines.cuda.many_tensors import CHUNK, blocks_of
from netbuilder.engines.gpu import gpu
from netbuilder.ops.core.contexts import Prepared
from netbuilder.ops.core.extensions import Capturable, Joinable
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["CHANGES", "copies_kernel", "reorder"]

CHANGES = tuple(itertools.product(("float32", "float16", BFLOAT16), repeat=2))
"""The element types of a value before and after a copy."""

_WIDTH = 8
"""Numbers of a row: both addresses, size, index in ``CHANGES``, channels and pixels before and after."""

_AT = """
template <typename I> __device__ __forceinline__ I at(I i, const i64* before, const i64* after) {
    const I c = (I)after[0], p = (I)after[1];  // to plain order, (image, channel, pixel)
    if (c > 1) i = (i / c / p * c + i % c) * p + i / c % p;
    const I d = (I)before[0], q = (I)before[1];  // from plain order
    if (d > 1) i = (i / q / d * q + i % q) * d + i / q % d;
    return i;
}
template <typename I, typename F> __device__ __forceinline__ void each(i64 start, i64 end, const i64* row, F copy) {
    #pragma unroll 4
    for (I i = (I)start + threadIdx.x; i < (I)end; i += THREADS) copy(at<I>(i, row + 4, row + 6), i);
}
"""


@cache
def copies_kernel() -> Kernel:
    """Return the kernel: ``rows`` is the table, ``blocks`` has for each block the row and the number of the piece."""
    lines = [
        _AT.replace("THREADS", str(THREADS)),
        'extern "C" __global__ void NAME(const i64* rows, const int* blocks) {',
        f"const i64* row = rows + (i64)blocks[2 * blockIdx.x] * {_WIDTH};",
        f"const i64 start = (i64)blocks[2 * blockIdx.x + 1] * {CHUNK};",
        f"const i64 end = row[2] < start + {CHUNK} ? row[2] : start + {CHUNK};",
        "switch ((int)row[3]) {",
    ]
    for k, (given, wanted) in enumerate(CHANGES):
        source, target = c_type(given), c_type(wanted)
        value = "x[from]" if given == wanted else stored(value_of("x[from]", given), wanted)
        lines += [
            f"case {k}: {{",
            f"const {source}* __restrict__ x = (const {source}*)row[0]; {target}* __restrict__ y = ({target}*)row[1];",
            f"auto copy = [=](i64 from, i64 to) {{ y[to] = {value}; }};",
            "if (row[2] < 0x7fff0000) each<unsigned>(start, end, row, copy); else each<i64>(start, end, row, copy);",
            "break; }",
        ]
    return Kernel("copies", with_prelude("\n".join([*lines, "}", "}", ""])), model=CHANGES)


def _row(source: TensorSpec, target: TensorSpec, addresses: Sequence[int]) -> list[int]:
    """Return the numbers of a copy."""
    orders = (order_of(source), order_of(target))
    extents = [extent for order in orders for extent in ((1, 1) if order is None else (order.channels, order.pixels))]
    return [*addresses, source.size, CHANGES.index((elements_of(source), elements_of(target))), *extents]


def reorder(source: TensorSpec, target: TensorSpec) -> Prepared:
    """Return the prepared copy of a value to another layout; shape and dtype are the same."""
    return _joined([(source, target)])


def _joined(copies: Sequence[tuple[TensorSpec, TensorSpec]]) -> Prepared:
    """Return the kernel of several copies."""

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        rows = [_row(*copy, (a.data.ptr, b.data.ptr)) for copy, a, b in zip(copies, inputs, outputs)]
        blocks = blocks_of([source.size for source, _ in copies])
        with gpu(outputs[0].device.id) as there:
            tables = there.xp.asarray(np.array(rows, np.int64)), there.xp.asarray(blocks)
        return partial(copies_kernel(), len(blocks), tables)

    joinable = (Joinable("copies", copies[0], _joined),) if len(copies) == 1 else ()
    return Prepared(
        [source for source, _ in copies],
        [target for _, target in copies],
        bind,
        name="reorder",
        extensions=(Capturable(), *joinable),
    )
