"""FC, MatMul and BatchMatMul on cuDNN's graphs of matrix products, and on cuBLAS where cuDNN has none.

Products of 16 bits, and of float32 where TF32 is allowed, are graphs with bias and Relu in the same kernel. cuBLAS
multiplies exact float32, float64, and what cuDNN has no graph for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from netbuilder.engines.cuda.dense import Dense, Matrix
from netbuilder.engines.cuda.steps import Reference, Step
from netbuilder.engines.cudnn.compiled import graph_of
from netbuilder.engines.cudnn.convolutions import matrix_tensor
from netbuilder.engines.cudnn.element_types import types_for_products
from netbuilder.engines.cudnn.graphs import ROW_MAJOR, TRANSPOSED, AddPerChannel, ChannelSums, Product, Tensor
from netbuilder.engines.references import In, Out
from netbuilder.ops.core.contexts import PlanContext
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["BY_CUDNN", "CudnnDense"]


class CudnnDense(Dense):
    """The kernels of dense layers and matrix products, of which cuDNN's graphs compute what they can."""

    def types(self, ctx: PlanContext, x: TensorSpec) -> tuple[str, ...]:
        return types_for_products(ctx, x)

    def product(
        self, ctx: PlanContext, a: Matrix, b: Matrix, y: Matrix, memory: Mapping[str, Reference], *,
        bias: str | None = None, relu: bool = False, **options: Any,
    ) -> list[Step] | None:  # fmt: skip
        if a.elements in ("float16", "bfloat16") or (a.elements == "float32" and ctx.allow_tf32):
            row = None if bias is None else Tensor((1, 1, y.columns), ROW_MAJOR, bias)
            graph = graph_of(Product(_tensor(a), _tensor(b), _tensor(y), row, relu, tf32=True), ctx)
            if graph is not None:
                return [graph.step(memory)]
        return super().product(ctx, a, b, y, memory, bias=bias, relu=relu, **options)

    def bias(self, ctx: PlanContext, y: Matrix, bias: str, relu: bool, memory: Mapping[str, Reference]) -> Step:
        if y.elements == bias == "float32":
            row = matrix_tensor(1, y.columns, bias)
            graph = graph_of(AddPerChannel(matrix_tensor(y.rows, y.columns, bias), row, relu), ctx)
            if graph is not None:
                return graph.step(memory)
        return super().bias(ctx, y, bias, relu, memory)

    def sums(self, ctx: PlanContext, dy: TensorSpec, elements: str) -> Step | None:
        rows, columns, own = *dy.shape, dy.dtype.name
        if own != "float64":
            graph = graph_of(ChannelSums(matrix_tensor(rows, columns, elements), matrix_tensor(1, columns, own)), ctx)
            if graph is not None:
                return graph.step({"x": In(2), "sums": Out(1)})
        return super().sums(ctx, dy, elements)


BY_CUDNN = CudnnDense()


def _tensor(matrix: Matrix) -> Tensor:
    """Return a stack of matrices as cuDNN sees it."""
    order = TRANSPOSED if matrix.transposed else ROW_MAJOR
    return Tensor((matrix.stack, matrix.rows, matrix.columns), order, matrix.elements)
