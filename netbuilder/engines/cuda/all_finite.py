"""AllFinite on GPUs: one kernel over all tensors, whose addresses are in a table; the host does not read the result."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.engines.cuda.code import BFLOAT16, c_type, value_of, with_prelude
from netbuilder.engines.cuda.gpu_layout import ChannelsLast, elements_of
from netbuilder.engines.cuda.kernel import THREADS, Kernel
from netbuilder.engines.cuda.many_tensors import CHUNK, blocks_of
from netbuilder.engines.gpu import gpu
from netbuilder.ops.core.contexts import PlanContext, Prepared
from netbuilder.ops.core.extensions import CAPTURABLE
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["all_finite", "all_finite_kernel", "set_kernel"]


@functools.cache
def set_kernel() -> Kernel:
    """Return the kernel that sets the result, which blocks then only ever clear."""
    return Kernel("set_flag", 'extern "C" __global__ void NAME(bool* flag) { *flag = true; }')


@functools.cache
def all_finite_kernel(kinds: tuple[str, ...]) -> Kernel:
    """Return the kernel for tensors whose elements are of the given types: rows of address, size, and place in these.

    A block looks at one piece of one tensor: ``blocks`` has the row and the piece of each.
    """
    lines = [
        'extern "C" __global__ void NAME(const i64* rows, const int* blocks, bool* flag) {',
        "const i64* row = rows + 3 * (i64)blocks[2 * blockIdx.x];",
        f"const i64 start = (i64)blocks[2 * blockIdx.x + 1] * {CHUNK} + threadIdx.x;",
        f"const i64 end = row[1] < start - threadIdx.x + {CHUNK} ? row[1] : start - threadIdx.x + {CHUNK};",
        "bool finite = true;",
        "switch ((int)row[2]) {",
    ]
    for number, kind in enumerate(kinds):
        element = value_of(f"((const {c_type(kind)}*)row[0])[i]", kind)
        wide = "double" if kind == "float64" else "float"
        lines += [
            f"case {number}: for (i64 i = start; i < end; i += {THREADS}) {{",
            f"const {wide} x = {element}; finite = finite && x - x == 0; }} break;",
        ]
    lines += ["}", "if (!finite) *flag = false;", "}", ""]
    return Kernel("all_finite", with_prelude("\n".join(lines)), model=kinds)


def all_finite(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare AllFinite: X, ... -> whether all their elements are finite."""
    given = [spec if isinstance(spec.layout, ChannelsLast) else spec.plain for spec in specs]
    kinds = tuple(dict.fromkeys(map(elements_of, given)))
    if not {*kinds} <= {"float16", "float32", "float64", BFLOAT16}:
        return None
    kernel = all_finite_kernel(kinds)
    blocks = blocks_of([spec.size for spec in given])

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        (flag,) = outputs
        rows = [(x.data.ptr, spec.size, kinds.index(elements_of(spec))) for x, spec in zip(inputs, given)]
        with gpu(flag.device.id) as there:
            table, pieces = there.xp.asarray(np.array(rows, np.int64)), there.xp.asarray(blocks)

        def call(kept: Sequence[Any] = tuple(inputs)) -> None:
            set_kernel()(1, (flag,), threads=1)
            kernel(len(blocks), (table, pieces, flag))

        return call

    return Prepared(given, list(op.infer(*given)), bind, name=f"cuda {kernel.name}", extensions=CAPTURABLE)
