"""Sums, means and maxima of rows by segments, of gathered rows too, and their gradients: one kernel each.

The lengths of the segments are on the host, which checks them and uploads where each segment begins, also for a CUDA
graph that contains the kernel. Each thread adds one column of a segment's rows, in their order, so results do not
change from run to run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.engines.cuda.code import c_type, register_type, stored, value_of, with_prelude
from netbuilder.engines.cuda.kernel import THREADS, Kernel
from netbuilder.engines.cuda.noted_errors import REPORT, note_of, slot_of
from netbuilder.engines.cuda.run_numbers import RunNumbers
from netbuilder.engines.gpu import GPU, gpu
from netbuilder.ops.core.contexts import PlanContext, Prepared
from netbuilder.ops.core.extensions import Capturable
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.core.segment_groups import counts_of_lengths

__all__ = [
    "REDUCTIONS",
    "SPREADS",
    "add_sorted",
    "reduce_segments",
    "reduction_kernel",
    "spread_kernel",
    "spread_segments",
]

REDUCTIONS = {
    "LengthsMax": "max",
    "LengthsMean": "mean",
    "LengthsSum": "sum",
    "LengthsWeightedSum": "sum",
    "SparseLengthsMax": "max",
    "SparseLengthsMean": "mean",
    "SparseLengthsSum": "sum",
    "SparseLengthsWeightedSum": "sum",
}
"""Operators that reduce rows, and how."""

SPREADS = {
    "LengthsIndicesInGradientMeanGradient": "mean",
    "LengthsIndicesInGradientSumGradient": "sum",
    "LengthsWeightedSumGradient": "sum",
    "SparseLengthsIndicesInGradientMeanGradient": "mean",
    "SparseLengthsIndicesInGradientSumGradient": "sum",
    "SparseLengthsIndicesInGradientWeightedSumGradient": "sum",
}
"""Gradients that give each row its segment's row, and of what."""

_MOST_BLOCKS = 1 << 16


def _blocks(elements: int) -> int:
    return min(-(-elements // THREADS), _MOST_BLOCKS)


_LOOP = f"""
for (i64 k = blockIdx.x * (i64){THREADS} + threadIdx.x; k < segments * width; k += gridDim.x * (i64){THREADS}) {{
    const i64 s = k / width, c = k % width, begin = offsets[s], end = offsets[s + 1];
"""


@functools.cache
def reduction_kernel(how: str, x: np.dtype[Any], y: np.dtype[Any], weights: Any, indices: Any) -> Kernel:
    """Return the kernel that reduces rows; ``weights`` and ``indices`` are element types, or None."""
    total = "double" if x.char == "d" else "float"
    parameters = [f"const {c_type(x)}* x"]
    parameters += [f"const {c_type(weights)}* weights"] if weights is not None else []
    parameters += [f"const {c_type(indices)}* indices"] if indices is not None else []
    parameters += ["const i64* offsets", f"{c_type(y)}* y", "i64 segments", "i64 width", "i64 rows"]
    parameters += ["i64 slot", "u64* note"]
    lines = [f'{REPORT}extern "C" __global__ void NAME({", ".join(parameters)}) {{', _LOOP, f"{total} total = 0;"]
    lines.append("for (i64 i = begin; i < end; i++) {")
    if indices is None:
        lines.append("const i64 row = i;")
    else:
        lines.append("const i64 row = (i64)indices[i];")
        lines.append("if (row < 0 || row >= rows) { report(note, slot, row); continue; }")
    lines.append(f"{total} value = {value_of('x[row * width + c]', x)};")
    if weights is not None:
        lines.append(f"value *= {value_of('weights[i]', weights)};")
    if how == "max":
        lines.append("total = i == begin || value > total || value != value ? value : total;")
    else:
        lines.append("total += value;")
    lines.append("}")
    if how == "mean":
        lines.append("if (end > begin) total /= end - begin;")
    lines += [f"y[k] = {stored('total', y)};", "}}"]
    return Kernel("rows_reduced", with_prelude("\n".join(lines)))


@functools.cache
def spread_kernel(how: str, dy: np.dtype[Any], weights: Any) -> Kernel:
    """Return the kernel that gives each row its segment's row."""
    parameters = [f"const {c_type(dy)}* dy"]
    parameters += [f"const {c_type(weights)}* weights"] if weights is not None else []
    parameters += ["const i64* offsets", f"{c_type(dy)}* dx", "i64 segments", "i64 width"]
    lines = [f'extern "C" __global__ void NAME({", ".join(parameters)}) {{', _LOOP]
    lines.append(f"{register_type(dy)} share = {value_of('dy[k]', dy)};")
    if how == "mean":
        lines.append("if (end > begin) share /= end - begin;")
    value = "share" if weights is None else f"share * {value_of('weights[i]', weights)}"
    lines.append(f"for (i64 i = begin; i < end; i++) dx[i * width + c] = {stored(f'({value})', dy)};")
    lines.append("}}")
    return Kernel("rows_spread", with_prelude("\n".join(lines)))


def _offsets(op: Any, run: Any, here: GPU, lengths: Any, count: int) -> RunNumbers:
    """Return where segments begin, and the last one ends: computed from the lengths, which are checked, in each run."""
    found = np.zeros(lengths.size + 1, np.int64)

    def compute() -> Any:
        np.cumsum(counts_of_lengths(op, run, lengths, count), out=found[1:])
        return found

    return RunNumbers(here, found.size, compute)


def add_sorted(matrix: Any, rows: Any, values: Any) -> None:
    """Add ``values[i]`` to row ``rows[i]`` of a matrix on a GPU, in place, in the order of i.

    Args:
        matrix: (R, width), of a floating type, contiguous.
        rows: numbers of rows, in range.
        values: (number of rows, width), of the matrix's type.
    """
    here = gpu(matrix.device.id)
    xp, (count, width) = here.xp, matrix.shape
    order = xp.argsort(rows)  # CuPy's is stable
    offsets = xp.searchsorted(rows[order], xp.arange(count + 1, dtype=rows.dtype)).astype(np.int64)
    total = xp.empty(matrix.shape, matrix.dtype)
    kernel = reduction_kernel("sum", values.dtype, total.dtype, None, np.dtype(np.int64))
    numbers = [np.int64(n) for n in (count, width, len(values), 0)]
    arguments = (xp.ascontiguousarray(values), order.astype(np.int64), offsets, total, *numbers, note_of(here).array)
    kernel(_blocks(count * width), arguments)
    matrix += total


def _named(op: Any, values: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(type(op).inputs, values))


def _lengths_input(op: Any) -> frozenset[int]:
    return frozenset({type(op).inputs.index("lengths")})


def _width(spec: TensorSpec) -> int:
    return spec.size // max(spec.shape[0], 1)


def reduce_segments(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare a reduction of rows by lengths."""
    plain = [spec.plain for spec in specs]
    given = _named(op, plain)
    (out,) = op.infer(*plain)
    if getattr(op, "by_position", False):
        return None
    x, weights, indices, lengths = given["X"], given.get("weights"), given.get("indices"), given["lengths"]
    kernel = reduction_kernel(
        REDUCTIONS[op.type], x.dtype, out.dtype, weights and weights.dtype, indices and indices.dtype
    )
    segments, width, rows = lengths.shape[0], _width(out), x.shape[0]
    count = rows if indices is None else indices.shape[0]

    def error(index: int) -> Exception:
        return IndexError(f"{op.type}: indices must lie in [0, {rows}), got {index}")

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        arrays = _named(op, inputs)
        here = gpu(outputs[0].device.id)
        offsets = _offsets(op, ctx.run, here, arrays["lengths"], count)
        slot = slot_of(ctx.run, here, "indices", error)
        given = [arrays[name] for name in ("X", "weights", "indices") if name in arrays]
        numbers = [np.int64(n) for n in (segments, width, rows)]
        after = (outputs[0], *numbers, slot.number, note_of(here).array)
        return lambda: kernel(_blocks(segments * width), (*given, offsets.words().view(np.int64), *after))

    return Prepared(
        plain, [out], bind, name=f"cuda {kernel.name}", extensions=(Capturable(_lengths_input(op)),)
    )  # fmt: skip


def spread_segments(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared:
    """Prepare a gradient that gives each row its segment's row."""
    plain = [spec.plain for spec in specs]
    given = _named(op, plain)
    (out,) = op.infer(*plain)
    dy, weights, lengths = given["dY"], given.get("weights"), given["lengths"]
    kernel = spread_kernel(SPREADS[op.type], dy.dtype, weights and weights.dtype)
    segments, width = lengths.shape[0], _width(dy)
    read = {"dY", "weights", "lengths"}

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        arrays = _named(op, inputs)
        offsets = _offsets(op, ctx.run, gpu(outputs[0].device.id), arrays["lengths"], out.shape[0])
        given = [arrays[name] for name in ("dY", "weights") if name in arrays]
        after = (outputs[0], np.int64(segments), np.int64(width))
        return lambda: kernel(_blocks(segments * width), (*given, offsets.words().view(np.int64), *after))

    inputs = [spec if name in read else None for name, spec in given.items()]
    return Prepared(
        inputs, [out], bind, name=f"cuda {kernel.name}", extensions=(Capturable(_lengths_input(op)),)
    )  # fmt: skip
