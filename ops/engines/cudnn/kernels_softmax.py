"""Softmax and its gradient on GPUs: a block of our own kernel for each row, which is read in plain order.

cuDNN has no kernel for the graph of a softmax, and its frontend none of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.engines.cuda.code import c_type, stored, value_of, with_prelude
from netbuilder.ops.engines.cuda.kernel import THREADS, Kernel
from netbuilder.ops.engines.cudnn.precision import serves

__all__ = ["Rows", "softmax", "softmax_gradient"]


@dataclass(frozen=True)
class Rows:
    """A matrix, whose rows are normalized.

    Args:
        rows, columns: extents.
        elements: the type of its elements.
    """

    rows: int
    columns: int
    elements: str


_REDUCE = f"""
__device__ __forceinline__ float reduced(float own, float* shared, bool largest) {{
    shared[threadIdx.x] = own;
    __syncthreads();
    for (int half = {THREADS} / 2; half > 0; half /= 2) {{
        if (threadIdx.x < half) {{
            const float a = shared[threadIdx.x], b = shared[threadIdx.x + half];
            shared[threadIdx.x] = largest ? ((a > b || a != a) ? a : b) : a + b;
        }}
        __syncthreads();
    }}
    const float found = shared[0];
    __syncthreads();
    return found;
}}
"""


def _kernel(title: str, rows: Rows, names: Sequence[str], lines: Sequence[str]) -> Kernel:
    kind = c_type(rows.elements)
    parameters = ", ".join([*(f"const {kind}* {name}" for name in names), f"{kind}* out"])
    text = [
        _REDUCE,
        f'extern "C" __global__ void NAME({parameters}) {{',
        f"__shared__ float shared[{THREADS}];",
        f"const int columns = {rows.columns};",
        "const i64 start = (i64)blockIdx.x * columns;",
        *lines,
        "}",
        "",
    ]
    return Kernel(title, with_prelude("\n".join(text)), model=rows)


_EACH = f"for (int j = threadIdx.x; j < columns; j += {THREADS}) "


def _forward(rows: Rows) -> Kernel:
    x = value_of("x[start + j]", rows.elements)
    return _kernel("softmax", rows, ["x"], [
        "float largest = __uint_as_float(0xff800000u);",
        _EACH + f"{{ const float v = {x}; if (v > largest || v != v) largest = v; }}",
        "largest = reduced(largest, shared, true);",
        "float total = 0;",
        _EACH + f"total += expf({x} - largest);",
        "total = reduced(total, shared, false);",
        _EACH + f"out[start + j] = {stored(f'expf({x} - largest) / total', rows.elements)};",
    ])  # fmt: skip


def _backward(rows: Rows) -> Kernel:
    y, dy = (value_of(f"{name}[start + j]", rows.elements) for name in ("y", "dy"))
    return _kernel("softmax_gradient", rows, ["y", "dy"], [
        "float total = 0;",
        _EACH + f"total += {y} * {dy};",
        "total = reduced(total, shared, false);",
        _EACH + f"out[start + j] = {stored(f'{y} * ({dy} - total)', rows.elements)};",
    ])  # fmt: skip


def _rows(op: Any, spec: TensorSpec) -> Rows:
    axis = op.axis % spec.ndim
    return Rows(math.prod(spec.shape[:axis]), math.prod(spec.shape[axis:]), spec.dtype.name)


def _prepared(kernel: Kernel, rows: int, spec: TensorSpec, count: int) -> Prepared:
    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        return partial(kernel, rows, (*inputs, outputs[0]))

    pairs = [(i, 0) for i in range(count)]
    return Prepared([spec] * count, [spec], bind, inplace=pairs, name=kernel.name, capturable=True)


def _serves(*specs: TensorSpec) -> bool:
    return serves(*specs) and specs[0].ndim > 0 and specs[0].size < np.iinfo(np.int32).max


def softmax(op: Any, ctx: PlanContext, x: TensorSpec) -> Prepared | None:
    """Prepare Softmax: X -> Y."""
    if not _serves(x):
        return None
    rows = _rows(op, x)
    return _prepared(_forward(rows), rows.rows, x.plain, 1)


def softmax_gradient(op: Any, ctx: PlanContext, y: TensorSpec, dy: TensorSpec) -> Prepared | None:
    """Prepare SoftmaxGradient: Y, dY -> dX."""
    if not _serves(y, dy):
        return None
    rows = _rows(op, y)
    return _prepared(_backward(rows), rows.rows, y.plain, 2)
