"""Rows gathered from a table, sums of rows with the same index, and weighted sums of rows in a table.

Rows with the same index are added in their order, after a sort of the indices (see ``row_order``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.engines.cuda.code import c_type, register_type, stored, value_of, with_prelude
from netbuilder.engines.cuda.kernel import THREADS, Kernel
from netbuilder.engines.cuda.noted_errors import REPORT, note_of, slot_of
from netbuilder.engines.cuda.row_order import RowOrder
from netbuilder.engines.gpu import gpu
from netbuilder.ops.core.contexts import PlanContext, Prepared
from netbuilder.ops.core.extensions import CAPTURABLE
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.proto import ShapeError

__all__ = [
    "ADDED",
    "add_kernel",
    "add_rows",
    "gather",
    "gather_kernel",
    "scatter_kernel",
    "scatter_weighted_sum",
    "sum_kernel",
    "sum_repeated_rows",
]

ADDED = {"SparseToDense": "sum", "UnsortedSegmentMean": "mean", "UnsortedSegmentSum": "sum"}
"""Operators that add rows into a result of 0, and what of them."""

_MOST_BLOCKS = 1 << 16
_MOST_PAIRS = 4


def _blocks(elements: int) -> int:
    return min(-(-elements // THREADS), _MOST_BLOCKS)


def _each(size: str) -> str:
    """Return the head of the loop of a thread over elements ``k``."""
    threads = f"gridDim.x * (i64){THREADS}"
    return f"for (i64 k = blockIdx.x * (i64){THREADS} + threadIdx.x; k < {size}; k += {threads}) {{"


def _total(dtype: np.dtype[Any]) -> str:
    """Return the type in which elements are added."""
    if dtype.kind != "f":
        return "u64" if dtype.kind == "u" else "i64"
    return "double" if dtype.char == "d" else "float"


@functools.cache
def gather_kernel(itemsize: int, indices: np.dtype[Any]) -> Kernel:
    """Return the kernel that copies slices: X (outer, extent, inner) at indices, to Y (outer, indices, inner)."""
    kind = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "u64"}[itemsize]
    text = f"""{REPORT}
extern "C" __global__ void NAME(const {kind}* x, const {c_type(indices)}* indices, {kind}* y, i64 size, i64 count,
                                i64 extent, i64 inner, i64 lowest, i64 slot, u64* note) {{
{_each("size")}
    const i64 c = k % inner, place = k / inner;
    i64 index = (i64)indices[place % count];
    if (index < lowest || index >= extent) {{
        if (c == 0) report(note, slot, index);
        index = 0;
    }}
    if (index < 0) index += extent;
    y[k] = x[(place / count * extent + index) * inner + c];
}}}}
"""
    return Kernel("rows_gathered", with_prelude(text))


def gather(op: Any, ctx: PlanContext, x: TensorSpec, indices: TensorSpec) -> Prepared | None:
    """Prepare Gather and BatchGather without ``match_outer``."""
    if x.dtype == STRING or op.match_outer or x.dtype.itemsize not in (1, 2, 4, 8):
        return None
    (out,) = op.infer(x.plain, indices.plain)
    axis = op.indexed_axis(x.ndim)
    extent = x.shape[axis]
    if not extent:
        return None
    lowest = op.lowest(axis, extent)
    kernel = gather_kernel(x.dtype.itemsize, indices.dtype)
    numbers = [np.int64(n) for n in (out.size, max(indices.size, 1), extent, math.prod(x.shape[axis + 1 :]), lowest)]

    def error(index: int) -> Exception:
        return IndexError(f"{op.type}: indices must lie in [{lowest}, {extent}), got {index}")

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        here = gpu(outputs[0].device.id)
        slot = slot_of(ctx.run, here, (lowest, extent), error)
        arguments = (*inputs, outputs[0], *numbers, slot.number, note_of(here).array)
        return lambda: kernel(_blocks(out.size), arguments)

    return Prepared([x.plain, indices.plain], [out], bind, name=f"cuda {kernel.name}", extensions=CAPTURABLE)


@functools.cache
def sum_kernel(indices: np.dtype[Any], values: np.dtype[Any]) -> Kernel:
    """Return the kernel that writes each row once, with its sum, where it begins among the sorted ones."""
    total = _total(values)
    text = f"""
extern "C" __global__ void NAME(const int* rows, const int* positions, const {c_type(values)}* values,
                                {c_type(indices)}* distinct, {c_type(values)}* sums, i64 count, i64 height, i64 width,
                                i64 none) {{
{_each("count * (width ? width : 1)")}
    const i64 s = width ? k / width : k, c = width ? k % width : 0, row = rows[s];
    const bool leads = row < height && (s == 0 || rows[s - 1] != row);
    if (c == 0) distinct[s] = ({c_type(indices)})(leads ? row : none);
    if (!width) continue;
    {total} total = 0;
    for (i64 j = s; leads && j < count && rows[j] == row; j++) {{
        total += {value_of("values[positions[j] * width + c]", values)};
    }}
    sums[k] = {stored("total", values)};
}}}}
"""
    return Kernel("row_sums", with_prelude(text))


def _order(op: Any, ctx: PlanContext, indices: TensorSpec, rows: int) -> tuple[RowOrder, Callable[[int], Exception]]:
    def error(index: int) -> Exception:
        return ShapeError(f"{op.type}: indices must lie in [0, {rows}), got {index}")

    return RowOrder(indices.size, rows, indices.dtype), error


def sum_repeated_rows(op: Any, ctx: PlanContext, indices: TensorSpec, values: TensorSpec) -> Prepared | None:
    """Prepare SumRepeatedRows of a table whose height is given."""
    if not 0 < op.num_rows < 2**31 - 1 or not 0 < indices.size < 2**31:
        return None
    given = [indices.plain, values.plain]
    outs = op.infer(*given)
    order, error = _order(op, ctx, indices, op.num_rows)
    kernel, width = sum_kernel(indices.dtype, values.dtype), values.size // indices.size
    none = np.iinfo(indices.dtype).min

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        slot = slot_of(ctx.run, gpu(scratch.device.id), "rows", error)
        sort, rows, positions = order.bind(inputs[0], scratch, slot)
        numbers = [np.int64(n) for n in (order.count, op.num_rows, width, none)]
        arguments = (rows, positions, inputs[1], *outputs, *numbers)

        def call() -> None:
            sort()
            kernel(_blocks(order.count * max(width, 1)), arguments)

        return call

    return Prepared(given, outs, bind, scratch=order.scratch, name=f"cuda {kernel.name}", extensions=CAPTURABLE)


@functools.cache
def add_kernel(how: str, values: np.dtype[Any]) -> Kernel:
    """Return the kernel that writes the sum or mean of the rows of each index to that row of Y."""
    text = f"""
extern "C" __global__ void NAME(const int* rows, const int* positions, const {c_type(values)}* values,
                                {c_type(values)}* y, i64 count, i64 height, i64 width) {{
{_each("count * width")}
    const i64 s = k / width, c = k % width, row = rows[s];
    if (row >= height || (s > 0 && rows[s - 1] == row)) continue;
    {_total(values)} total = 0;
    i64 j = s;
    for (; j < count && rows[j] == row; j++) total += {value_of("values[positions[j] * width + c]", values)};
    {"total /= j - s;" if how == "mean" else ""}
    y[row * width + c] = {stored("total", values)};
}}}}
"""
    return Kernel("rows_added", with_prelude(text))


def add_rows(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare SparseToDense and sums by unsorted segments, where the height of the result is given."""
    plain = [spec.plain for spec in specs]
    (out,) = op.infer(*plain)
    names = type(op).inputs
    x = names.index("values" if "values" in names else "X")
    where = 1 - x
    rows, indices, values = out.shape[0], plain[where], plain[x]
    if not 0 < rows < 2**31 - 1 or not 0 < indices.size < 2**31:
        return None
    order = RowOrder(indices.size, rows, indices.dtype, absent=False)
    kernel, width = add_kernel(ADDED[op.type], values.dtype), out.size // rows

    def error(index: int) -> Exception:
        return IndexError(f"{op.type}: indices must lie in [0, {rows}), got {index}")

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        slot = slot_of(ctx.run, gpu(scratch.device.id), "rows", error)
        sort, sorted_rows, positions = order.bind(inputs[where], scratch, slot)
        arguments = (sorted_rows, positions, inputs[x], outputs[0], *map(np.int64, (order.count, rows, width)))

        def call() -> None:
            sort()
            outputs[0].fill(0)
            kernel(_blocks(order.count * width), arguments)

        return call

    return Prepared(
        [*plain[:2], *(None for _ in plain[2:])],
        [out],
        bind,
        scratch=order.scratch,
        name=f"cuda {kernel.name}",
        extensions=CAPTURABLE,
    )


@functools.cache
def scatter_kernel(x: np.dtype[Any], factor: np.dtype[Any], weights: tuple[np.dtype[Any], ...]) -> Kernel:
    """Return the kernel that multiplies rows of a table by a power of a number, and adds weighted rows."""
    pairs = range(len(weights))
    parameters = ["const int* rows", "const int* positions", f"{c_type(x)}* table", f"const {c_type(factor)}* w"]
    for p in pairs:
        parameters += [f"const {c_type(x)}* x{p}", f"const {c_type(weights[p])}* w{p}"]
    kind, total = register_type(x), _total(x)
    adds = [f"total += {value_of(f'x{p}[from]', x)} * ({kind}){value_of(f'w{p}[0]', weights[p])};" for p in pairs]
    text = "\n".join([
        f'extern "C" __global__ void NAME({", ".join(parameters)}, i64 count, i64 height, i64 width) {{',
        f"const double factor = {value_of('w[0]', factor)};",
        _each("count * width"),
        "const i64 s = k / width, c = k % width, row = rows[s];",
        "if (row >= height || (s > 0 && rows[s - 1] == row)) continue;",
        f"{total} total = 0;",
        "double power = 1;",
        "for (i64 j = s; j < count && rows[j] == row; j++) {",
        "const i64 from = positions[j] * width + c;",
        "power *= factor;",
        *adds,
        "}",
        f"const {kind} scaled = ({kind})({value_of('table[row * width + c]', x)} * power);",
        f"table[row * width + c] = {stored('(scaled + total)', x)};",
        "}}",
    ])  # fmt: skip
    return Kernel("rows_scattered", with_prelude(text))


def scatter_weighted_sum(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare ScatterWeightedSum, in place."""
    plain = [spec.plain for spec in specs]
    x, factor, indices, *pairs = plain
    rows = x.shape[0]
    if len(pairs) > 2 * _MOST_PAIRS or not 0 < indices.size < 2**31 or not x.size or rows >= 2**31 - 1:
        return None
    order, error = _order(op, ctx, indices, rows)
    kernel, width = scatter_kernel(x.dtype, factor.dtype, tuple(spec.dtype for spec in pairs[1::2])), x.size // rows

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        here = gpu(scratch.device.id)
        slot = slot_of(ctx.run, here, "rows", error)
        (source, scale, where, *given), table = inputs, outputs[0]
        sort, sorted_rows, positions = order.bind(where, scratch, slot)
        arguments = (sorted_rows, positions, table, scale, *given, *map(np.int64, (order.count, rows, width)))
        moved = source.data.ptr != table.data.ptr

        def call() -> None:
            if moved:
                table[...] = source
            sort()
            kernel(_blocks(order.count * width), arguments)

        return call

    return Prepared(
        plain, [x], bind, scratch=order.scratch, inplace=((0, 0),), name=f"cuda {kernel.name}", extensions=CAPTURABLE
    )  # fmt: skip
