"""LRN and its gradient as one kernel each, a thread for each element, over images as they are stored.

The gradient computes the scale of each neighboring channel again: its squares are in the GPU's caches.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.engines.cuda.code import c_type, stored, value_of, with_prelude
from netbuilder.engines.cuda.gpu_layout import elements_of, in_one_layout, order_of
from netbuilder.engines.cuda.kernel import THREADS, Kernel
from netbuilder.ops.core.contexts import PlanContext, Prepared
from netbuilder.ops.core.extensions import CAPTURABLE
from netbuilder.ops.core.image_order import channel_axis
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["lrn", "lrn_gradient", "lrn_kernel"]

_FORWARD = """
const T scale = scale_at(x, i, c, channels, inner);
y[i] = STORED(READ(x[i]) * POW(scale, -BETA));
"""
_BACKWARD = """
T through = 0;
for (int k = 0; k < SIZE; k++) {  // the channels whose windows contain this one
    const i64 d = c - (SIZE - 1 - BEFORE) + k, at = i + (d - c) * inner;
    if (d < 0 || d >= channels) continue;
    through += READ(dy[at]) * READ(y[at]) / scale_at(x, at, d, channels, inner);
}
const T scale = scale_at(x, i, c, channels, inner);
dx[i] = STORED(READ(dy[i]) * POW(scale, -BETA) - SHARE * READ(x[i]) * through);
"""


@functools.cache
def lrn_kernel(op: Any, backward: bool, elements: str, with_scale: bool = False) -> Kernel:
    """Return the kernel of an operator for a type of stored elements; ``with_scale``: the scale is a second output."""
    wide = "double" if elements == "float64" else "float"
    numbers = {"BIAS": op.bias, "FACTOR": op.alpha / op.size, "BETA": op.beta,
               "SHARE": 2 * op.alpha * op.beta / op.size}  # fmt: skip
    kind = c_type(elements)
    inputs, outputs = (("x", "y", "dy"), ("dx",)) if backward else (("x",), ("y", "scales")[: 1 + with_scale])
    parameters = [*(f"const {kind}* {name}" for name in inputs), *(f"{kind}* {name}" for name in outputs)]
    text = f"""
typedef {wide} T;
#define READ(e) ({value_of("(e)", elements)})
#define STORED(e) ({stored("(e)", elements)})
#define POW(a, b) {"pow" if wide == "double" else "powf"}(a, b)
#define SIZE {op.size}
#define BEFORE {op.before}
{"".join(f"#define {name} ((T){float(number).hex()})" + chr(10) for name, number in numbers.items())}
__device__ __forceinline__ T scale_at(const {kind}* x, i64 i, i64 c, i64 channels, i64 inner) {{
    T sum = 0;
    for (int k = 0; k < SIZE; k++) {{
        const i64 d = c - BEFORE + k;
        if (d < 0 || d >= channels) continue;
        const T v = READ(x[i + (d - c) * inner]);
        sum += v * v;
    }}
    return BIAS + FACTOR * sum;
}}
extern "C" __global__ void NAME({", ".join(parameters)}, i64 size, i64 channels, i64 inner) {{
const i64 i = blockIdx.x * (i64){THREADS} + threadIdx.x;
if (i >= size) return;
const i64 c = i / inner % channels;
{_BACKWARD if backward else _FORWARD}
{"scales[i] = STORED(scale);" if with_scale else ""}
}}
"""
    return Kernel("lrn_gradient" if backward else "lrn", with_prelude(text))


def _prepared(op: Any, specs: Sequence[TensorSpec], *, backward: bool, outs: Sequence[bool]) -> Prepared | None:
    """Prepare a kernel; ``outs`` says for each output whether it is computed."""
    x = specs[0]
    if x.dtype not in (np.float16, np.float32, np.float64) or not x.size:
        return None
    laid_out = in_one_layout(specs) if op.order == "NCHW" else None
    given = [spec.plain for spec in specs] if laid_out is None else laid_out
    axis = channel_axis(op.order, x.ndim)
    inner = 1 if order_of(given[0]) is not None else math.prod(x.shape[axis + 1 :])
    kernel = lrn_kernel(op, backward, elements_of(given[0]), len(outs) > 1 and outs[1])
    numbers = [np.int64(n) for n in (x.size, x.shape[axis], inner)]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        arguments = (*inputs, *(y for y, written in zip(outputs, outs) if written), *numbers)
        return lambda: kernel(-(-x.size // THREADS), arguments)

    results = [given[0] if written else None for written in outs]
    return Prepared(given, results, bind, name=f"cuda {kernel.name}", extensions=CAPTURABLE)


def lrn(op: Any, ctx: PlanContext, x: TensorSpec) -> Prepared | None:
    """Prepare LRN: X -> Y, [scale]."""
    outs = [True, *(ctx.demand(j) != "never" for j in range(1, op.n_out))]
    return _prepared(op, [x], backward=False, outs=outs)


def lrn_gradient(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare LRNGradient: X, Y, dY -> dX."""
    return _prepared(op, specs, backward=True, outs=[True])
