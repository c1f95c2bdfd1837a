"""The numbers of rows in ascending order, with their positions: a stable radix sort that waits for nothing.

All sizes are known when a net is planned, and the memory is given, so CUDA graphs can contain it (CuPy's sort allocates
memory and waits for the GPU). Each pass sorts by 4 bits: blocks count the digits of their tiles, one block adds these
up to where each block writes which digit, and the blocks write. A single tile needs no counts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from netbuilder.engines.cuda.code import c_type, with_prelude
from netbuilder.engines.cuda.kernel import THREADS, Kernel
from netbuilder.engines.cuda.noted_errors import REPORT, Slot, note_of
from netbuilder.engines.gpu import gpu

__all__ = ["RowOrder", "count_kernel", "place_kernel", "scan_kernel"]

_BITS = 4
_DIGITS = 1 << _BITS
_ITEMS = 8  # of a thread
_TILE = THREADS * _ITEMS
_ALIGNMENT = 256

_SCANNED = f"""
__device__ __forceinline__ unsigned sums_before(unsigned own, unsigned* sums) {{  // of the block's earlier threads
    sums[threadIdx.x] = own;
    __syncthreads();
    for (int reach = 1; reach < {THREADS}; reach *= 2) {{
        const unsigned other = threadIdx.x >= reach ? sums[threadIdx.x - reach] : 0;
        __syncthreads();
        sums[threadIdx.x] += other;
        __syncthreads();
    }}
    return sums[threadIdx.x] - own;
}}
"""


def _key(given: Any) -> str:
    """Return the function that reads a key; ``given`` is the type of the indices, None where they are checked keys.

    Wrong indices, and those for no row, come after all rows.
    """
    if given is None:
        return "__device__ __forceinline__ int key_at(const int* keys, i64 i, i64 rows) { return keys[i]; }"
    return (
        f"__device__ __forceinline__ int key_at(const {c_type(given)}* keys, i64 i, i64 rows) "
        "{ const i64 row = (i64)keys[i]; return (int)(row < 0 || row >= rows ? rows : row); }"
    )


def _lowest(given: Any) -> str:
    return "0" if given is None else f"({np.iinfo(given).min + 1}LL - 1)"


@functools.cache
def count_kernel(given: np.dtype[Any] | None) -> Kernel:
    """Return the kernel that counts the digits of each tile."""
    kind = "int" if given is None else c_type(given)
    text = f"""
{_key(given)}
extern "C" __global__ void NAME(const {kind}* keys, unsigned* totals, i64 count, i64 rows, int shift) {{
    __shared__ unsigned counts[{_DIGITS}];
    if (threadIdx.x < {_DIGITS}) counts[threadIdx.x] = 0;
    __syncthreads();
    const i64 first = blockIdx.x * (i64){_TILE} + threadIdx.x;
    for (int k = 0; k < {_ITEMS}; k++) {{
        const i64 i = first + k * {THREADS};
        if (i < count) atomicAdd(&counts[key_at(keys, i, rows) >> shift & {_DIGITS - 1}], 1u);
    }}
    __syncthreads();
    if (threadIdx.x < {_DIGITS}) totals[threadIdx.x * gridDim.x + blockIdx.x] = counts[threadIdx.x];
}}
"""
    return Kernel("row_order_count", with_prelude(text))


@functools.cache
def scan_kernel() -> Kernel:
    """Return the kernel of one block that replaces each count by the sum of those before it."""
    text = f"""
{_SCANNED}
extern "C" __global__ void NAME(unsigned* totals, i64 size) {{
    __shared__ unsigned sums[{THREADS}];
    const i64 part = (size + {THREADS - 1}) / {THREADS};
    const i64 begin = threadIdx.x * part, end = begin + part < size ? begin + part : size;
    unsigned own = 0;
    for (i64 k = begin; k < end; k++) own += totals[k];
    unsigned before = sums_before(own, sums);
    for (i64 k = begin; k < end; k++) {{
        const unsigned count = totals[k];
        totals[k] = before;
        before += count;
    }}
}}
"""
    return Kernel("row_order_scan", with_prelude(text))


@functools.cache
def place_kernel(given: np.dtype[Any] | None, several: bool, absent: bool = True) -> Kernel:
    """Return the kernel that writes keys and positions in the order of a digit.

    Args:
        given: the type of the indices in the first pass, whose positions are in order; None: a later pass.
        several: there are several tiles, and so ``totals``.
        absent: the lowest index names no row (see ``ops.updates.row_updates.no_row``), and is not reported.
    """
    kind = "int" if given is None else c_type(given)
    base = "totals[digit * gridDim.x + blockIdx.x] - begins[digit] + " if several else ""
    known = f" && row != {_lowest(given)}" if absent else ""
    check = f"if ((row < 0 || row >= rows){known}) report(note, slot, row);"
    text = f"""
{_key(given)}
{_SCANNED}
{REPORT if given is not None else ""}
extern "C" __global__ void NAME(const {kind}* keys, const int* positions, int* new_keys, int* new_positions,
                                const unsigned* totals, i64 count, i64 rows, int shift, i64 slot, u64* note) {{
    __shared__ unsigned counts[{_DIGITS * THREADS}], sums[{THREADS}], begins[{_DIGITS}];
    for (int digit = 0; digit < {_DIGITS}; digit++) counts[digit * {THREADS} + threadIdx.x] = 0;
    const i64 first = blockIdx.x * (i64){_TILE} + threadIdx.x * {_ITEMS};
    const i64 end = first + {_ITEMS} < count ? first + {_ITEMS} : count;
    for (i64 i = first; i < end; i++) {{
        {f"const i64 row = (i64)keys[i]; {check}" if given is not None else ""}
        counts[(key_at(keys, i, rows) >> shift & {_DIGITS - 1}) * {THREADS} + threadIdx.x]++;
    }}
    __syncthreads();
    unsigned* part = counts + threadIdx.x * {_DIGITS};
    unsigned own = 0;
    for (int k = 0; k < {_DIGITS}; k++) own += part[k];
    unsigned before = sums_before(own, sums);
    for (int k = 0; k < {_DIGITS}; k++) {{
        const unsigned here = part[k];
        part[k] = before;
        before += here;
    }}
    __syncthreads();
    if (threadIdx.x < {_DIGITS}) begins[threadIdx.x] = counts[threadIdx.x * {THREADS}];
    __syncthreads();
    for (i64 i = first; i < end; i++) {{
        const int key = key_at(keys, i, rows), digit = key >> shift & {_DIGITS - 1};
        const unsigned place = {base}counts[digit * {THREADS} + threadIdx.x]++;
        new_keys[place] = key;
        new_positions[place] = {"(int)i" if given is not None else "positions[i]"};
    }}
}}
"""
    return Kernel("row_order_place", with_prelude(text))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


class RowOrder:
    """The sort of the indices of a table's rows.

    Args:
        count: number of indices, at least one.
        rows: of the table.
        dtype: of the indices.
        absent: the lowest index names no row; else it is wrong.

    Attributes:
        scratch: bytes of scratch memory, which begin with the results.
    """

    def __init__(self, count: int, rows: int, dtype: np.dtype[Any], *, absent: bool = True) -> None:
        assert 0 < count < 2**31 and rows < 2**31 - 1
        self.count, self.rows, self.dtype, self._absent = count, rows, dtype, absent
        self.blocks = -(-count // _TILE)
        self._part = _aligned(4 * count)
        self._totals = _aligned(4 * _DIGITS * self.blocks) if self.blocks > 1 else 0
        self.scratch = 4 * self._part + self._totals

    def bind(self, indices: Any, scratch: Any, slot: Slot) -> tuple[Callable[[], object], Any, Any]:
        """Return the call that sorts, and the arrays in which the sorted row numbers and their positions then are.

        Args:
            indices: of any shape. Wrong ones, which are reported, and those for no row come last, as ``rows``.
            scratch: ``scratch`` bytes.
            slot: what wrong indices are reported for.
        """
        here = gpu(scratch.device.id)
        parts = [scratch[k * self._part : k * self._part + 4 * self.count].view(np.int32) for k in range(4)]
        totals = scratch[4 * self._part :].view(np.uint32) if self._totals else parts[0].view(np.uint32)
        size, rows, note = np.int64(self.count), np.int64(self.rows), note_of(here).array
        passes = -(-max(self.rows.bit_length(), 1) // _BITS)
        source, target = (parts[2], parts[3]), (parts[0], parts[1])
        if passes % 2 == 0:
            source, target = target, source
        launches: list[tuple[Kernel, int, tuple[Any, ...]]] = []
        keys = indices.reshape(-1)
        for number in range(passes):
            given, shift = self.dtype if number == 0 else None, np.int32(number * _BITS)
            if self.blocks > 1:
                launches.append((count_kernel(given), self.blocks, (keys, totals, size, rows, shift)))
                launches.append((scan_kernel(), 1, (totals, np.int64(_DIGITS * self.blocks))))
            arguments = (keys, source[1], *target, totals, size, rows, shift, slot.number, note)
            launches.append((place_kernel(given, self.blocks > 1, self._absent), self.blocks, arguments))
            keys, source, target = target[0], target, source

        def call() -> None:
            for kernel, blocks, arguments in launches:
                kernel(blocks, arguments)

        return call, parts[0], parts[1]
