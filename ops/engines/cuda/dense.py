"""What dense layers need besides products of matrices: the bias with the Relu, and the sums of columns."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import Prepared
from netbuilder.ops.core.operator import TensorSpec, decode
from netbuilder.ops.core.registry import find
from netbuilder.ops.engines.cuda.code import c_type, stored, value_of, with_prelude
from netbuilder.ops.engines.cuda.kernel import THREADS, Kernel
from netbuilder.ops.engines.cuda.sums import with_sums
from netbuilder.proto.arguments import make_op

__all__ = ["add_bias", "bias_kernel", "column_sums"]


@functools.cache
def bias_kernel(wide: str, bias: str, elements: str, relu: bool) -> Kernel:
    """Return the kernel of y = relu(x + b), b being a row that is added to each row of x; Relu is optional.

    Args:
        wide: the type of x, in which is computed: float32 or float64.
        bias, elements: of b and y.
        relu: whether there is a Relu.
    """
    kind = c_type(wide)
    tensors = f"const {kind}* x, const {c_type(bias)}* b, {c_type(elements)}* y"
    text = f"""
extern "C" __global__ void NAME({tensors}, i64 size, i64 columns) {{
const i64 i = blockIdx.x * (i64){THREADS} + threadIdx.x;
if (i >= size) return;
const {kind} sum = x[i] + ({kind}){value_of("b[i % columns]", bias)};
const {kind} found = {"(sum > 0 || sum != sum) ? sum : 0" if relu else "sum"};
y[i] = {stored("found", elements)};
}}
"""
    return Kernel("bias_relu" if relu else "bias", with_prelude(text))


def add_bias(kernel: Kernel, rows: int, columns: int, memory: dict[str, Any]) -> Any:
    """Return the call of a ``bias_kernel`` for a matrix; x and y may be the same memory."""
    size = rows * columns
    arguments = (memory["x"], memory["b"], memory["y"], np.int64(size), np.int64(columns))
    return functools.partial(kernel, -(-size // THREADS), arguments)


def column_sums(matrix: TensorSpec) -> Prepared | None:
    """Return the kernel that sums each column of a matrix, as it is stored; None if it has no elements."""
    op_def = make_op("ReduceFrontSum", ["x"], ["sums"], num_reduce_dim=1)
    ctx: Any = SimpleNamespace(op_def=op_def)
    return with_sums(decode(find("ReduceFrontSum"), op_def), ctx, matrix)
