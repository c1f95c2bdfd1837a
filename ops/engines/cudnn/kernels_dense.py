"""FC, MatMul and BatchMatMul on cuDNN's graphs of matrix products, and on cuBLAS with our own kernels.

Matrices are stored in plain order, transposed or not. Products of 16 bits, and of float32 where TF32 is allowed, are
graphs with bias and Relu in the same kernel. cuBLAS multiplies exact float32, float64, what cuDNN has no graph for, and
all matrices where there is no cuDNN; our own kernel adds the bias, with the Relu, and rounds the sum once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.engines.cuda import cublas
from netbuilder.ops.engines.cuda.dense import add_bias, bias_kernel, column_sums
from netbuilder.ops.engines.cuda.layout import row_major_spec
from netbuilder.ops.engines.cudnn.convolutions import matrix_tensor
from netbuilder.ops.engines.cudnn.graphs import ROW_MAJOR, TRANSPOSED, AddPerChannel, ChannelSums, Product, Tensor
from netbuilder.ops.engines.cudnn.precision import types_for_products
from netbuilder.ops.engines.cudnn.steps import (
    Extra,
    Reference,
    Step,
    graph_of,
    in_order,
    prepared,
    scratch_memory,
)
from netbuilder.ops.engines.references import In, Out, ScratchAllocator
from netbuilder.ops.engines.tf32 import has_tf32

__all__ = ["BY_CUBLAS", "BY_CUDNN", "Dense"]

_MOST_CALLS = 32  # of cuBLAS, for stacks that are broadcast


def _serves(*specs: TensorSpec) -> bool:
    """Whether all values are of one type that is multiplied, and none is empty."""
    dtype = specs[0].dtype
    known = dtype in (np.float32, np.float16, np.float64)
    return known and all(s.dtype == dtype and s.size > 0 for s in specs)


def _matrix(rows: int, columns: int, elements: str, *, transposed: bool = False, stack: int = 1) -> Tensor:
    """Return a matrix, or a stack of matrices; if ``transposed``, it is stored as (columns, rows)."""
    return Tensor((stack, rows, columns), TRANSPOSED if transposed else ROW_MAJOR, elements)


@dataclass(frozen=True)
class Dense:
    """The kernels of dense layers and matrix products.

    Args:
        graphs: whether cuDNN's graphs compute what they can; if not, values are stored as in plain kernels.
    """

    graphs: bool

    def fc(self, op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
        """Prepare FC (Y = X W^T + b) or FCTransposed (Y = X W + b)."""
        return self._fc(op, ctx, *specs)

    def fused_fc_relu(self, op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
        """Prepare an FC with the Relu that follows it: Y = relu(X W^T + b).

        Args:
            op: the FC.
            ctx: of the plan.
            specs: of X, W and b.
        """
        return self._fc(op, ctx, *specs, relu=True)

    def _fc(
        self, op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, b: TensorSpec, *, relu: bool = False
    ) -> Prepared | None:
        if not _serves(x, w, b):
            return None
        rows, columns, inner = op.sizes(x, w)
        y = x.with_shape(op.y_shape(x, columns))
        memory: dict[str, Reference] = {"a": In(0), "b": In(1), "bias": In(2), "y": Out(0)}
        for elements in self._types(ctx, x):
            right = _matrix(inner, columns, elements, transposed=not op._transposed)
            left, result = _matrix(rows, inner, elements), _matrix(rows, columns, elements)
            bias, scratch = matrix_tensor(1, columns, b.dtype.name), scratch_memory()
            steps = self._product(ctx, left, right, result, memory, bias=bias, relu=relu, scratch=scratch)
            if steps is not None:
                inputs = [row_major_spec(x, elements), row_major_spec(w, elements), b.plain]
                return prepared(inputs, [row_major_spec(y, elements)], steps, scratch)
        return None

    def fc_gradient(self, op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, dy: TensorSpec) -> Prepared | None:
        """Prepare FCGradient or FCTransposedGradient: X, W, dY -> dW, db, [dX]."""
        if not _serves(x, w, dy):
            return None
        for elements in self._types(ctx, x):
            made = self._fc_gradient(op, ctx, x, w, dy, elements)
            if made is not None:
                return made
        return None

    def _fc_gradient(
        self, op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, dy: TensorSpec, elements: str
    ) -> Prepared | None:
        rows, columns, inner = op.sizes(x, w)
        own, scratch = w.dtype.name, scratch_memory()
        if op._transposed:
            left, right = _matrix(inner, rows, elements, transposed=True), _matrix(rows, columns, elements)
            dw = self._product(ctx, left, right, _matrix(inner, columns, own), {"a": In(0), "b": In(2), "y": Out(0)})
        else:
            left, right = _matrix(columns, rows, elements, transposed=True), _matrix(rows, inner, elements)
            dw = self._product(ctx, left, right, _matrix(columns, inner, own), {"a": In(2), "b": In(0), "y": Out(0)})
        sums = self._sums(ctx, dy.with_shape((rows, columns)), elements, scratch)
        if dw is None or sums is None:
            return None
        inputs: list[TensorSpec | None] = [row_major_spec(x, elements), None, row_major_spec(dy, elements)]
        outputs: list[TensorSpec | None] = [w.plain, w.with_shape((columns,))]
        if op.n_out < 3 or ctx.demand(2) == "never":
            return prepared(inputs, [*outputs, *([None] if op.n_out > 2 else [])], [*dw, sums], scratch)
        weights = _matrix(columns, inner, elements, transposed=op._transposed)
        dx = self._product(
            ctx, _matrix(rows, columns, elements), weights, _matrix(rows, inner, elements),
            {"a": In(2), "b": In(1), "y": Out(2)},
        )  # fmt: skip
        if dx is None:
            return None
        inputs[1] = row_major_spec(w, elements)
        return prepared(inputs, [*outputs, row_major_spec(x, elements)], [*dw, sums, *dx], scratch)

    def matmul(self, op: Any, ctx: PlanContext, a: TensorSpec, b: TensorSpec, *like: TensorSpec) -> Prepared | None:
        """Prepare MatMul: Y = A B, both folded to matrices; of a further input only the shape is used."""
        if not _serves(a, b):
            return None
        m, n, k = op.sizes(a, b)
        (y,) = op.infer(a.plain, b.plain, *(spec.plain for spec in like))
        return self._stacked(op, ctx, (a, b), y, (1, m, n, k), like)

    def batch_matmul(self, op: Any, ctx: PlanContext, a: TensorSpec, b: TensorSpec) -> Prepared | None:
        """Prepare BatchMatMul. Stacks that are broadcast, and vectors, are cuBLAS's."""
        if not _serves(a, b):
            return None
        (y,) = op.infer(a.plain, b.plain)
        if a.ndim != b.ndim or a.ndim < 2 or a.shape[:-2] != b.shape[:-2]:
            return self._broadcast(op, ctx, a, b, y)
        m, n = y.shape[-2:]
        return self._stacked(op, ctx, (a, b), y, (math.prod(a.shape[:-2]), m, n, a.shape[-2 if op.trans_a else -1]))

    def _stacked(
        self, op: Any, ctx: PlanContext, factors: tuple[TensorSpec, TensorSpec], y: TensorSpec,
        extents: tuple[int, ...], like: Sequence[TensorSpec] = (),
    ) -> Prepared | None:  # fmt: skip
        """Prepare the product of two stacks of matrices.

        Args:
            op: the operator, with ``trans_a`` and ``trans_b``.
            ctx: of the plan.
            factors: the specs of A and B.
            y: the spec of the result.
            extents: number of matrices, rows and columns of a result, inner extent.
            like: further inputs, which are not read.
        """
        (a, b), (stack, m, n, k) = factors, extents
        for elements in self._types(ctx, a):
            result = y.dtype.name if ctx.op_def.is_gradient_op else elements  # the gradient may be that of a parameter
            steps = self._product(
                ctx,
                _matrix(m, k, elements, transposed=bool(op.trans_a), stack=stack),
                _matrix(k, n, elements, transposed=bool(op.trans_b), stack=stack),
                _matrix(m, n, result, stack=stack),
                {"a": In(0), "b": In(1), "y": Out(0)},
            )
            if steps is not None:
                inputs = [row_major_spec(a, elements), row_major_spec(b, elements), *(None for _ in like)]
                return prepared(inputs, [row_major_spec(y, result)], steps)
        return None

    def _broadcast(self, op: Any, ctx: PlanContext, a: TensorSpec, b: TensorSpec, y: TensorSpec) -> Prepared | None:
        """Prepare a BatchMatMul of vectors, or of stacks with different leading axes."""
        left, right = op._row(a.shape), op._column(b.shape)
        calls = _calls(left[:-2], right[:-2])
        if len(calls) > _MOST_CALLS:
            return None
        elements = next(iter(self._types(ctx, a)))
        if not cublas.serves(ctx.device_id, elements, *left, *right):
            elements = a.dtype.name
        if not cublas.serves(ctx.device_id, elements, *left, *right):
            return None
        moved = (bool(op.trans_a) and a.ndim > 1, bool(op.trans_b) and b.ndim > 1)
        products = [
            (cublas.Product(each.count, left[-2], right[-1], left[-1], moved, elements, elements, each.same,
                            tf32=_uses_tf32(ctx)), each.begin)
            for each in calls
        ]  # fmt: skip

        def bind(memory: dict[str, Any]) -> Call:
            return in_order([p.bind(memory["a"], memory["b"], memory["y"], begin) for p, begin in products])

        inputs = [row_major_spec(a, elements), row_major_spec(b, elements)]
        step = Extra("cuBLAS", bind, {"a": In(0), "b": In(1), "y": Out(0)})
        return prepared(inputs, [row_major_spec(y, elements)], [step])

    # The parts.

    def _types(self, ctx: PlanContext, x: TensorSpec) -> tuple[str, ...]:
        """Return the types of elements, best first."""
        return types_for_products(ctx, x) if self.graphs else (x.dtype.name,)

    def _product(
        self, ctx: PlanContext, a: Tensor, b: Tensor, y: Tensor, memory: dict[str, Reference], *,
        bias: Tensor | None = None, relu: bool = False, scratch: ScratchAllocator | None = None,
    ) -> list[Step | Extra] | None:  # fmt: skip
        """Return the steps that compute y = relu(a b + bias); None if there is no kernel for these types.

        Args:
            ctx: of the plan.
            a, b, y: stacks of matrices.
            memory: of a, b, y and the bias, by the names of the graph ``Product``.
            bias: one number for each column.
            relu: whether a Relu follows; only after a bias.
            scratch: where memory for the product is taken from, if there is a bias.
        """
        if self.graphs and (a.elements in ("float16", "bfloat16") or (a.elements == "float32" and ctx.allow_tf32)):
            row = None if bias is None else Tensor((1, 1, bias.size), ROW_MAJOR, bias.elements)
            whole = graph_of(Product(a, b, y, row, relu, tf32=True), ctx)
            if whole is not None:
                return [Step(whole, memory)]
        if not cublas.serves(ctx.device_id, a.elements, *a.shape, *b.shape):
            return None
        if bias is None:
            return [_by_cublas(ctx, a, b, y, memory)]
        wide = replace(y, elements="float64" if y.elements == "float64" else "float32")
        place = memory["y"]
        if wide != y:  # the sum with the bias is rounded, not the product
            assert scratch is not None
            place = scratch.allocate(wide.nbytes)
        return [
            _by_cublas(ctx, a, b, wide, {**memory, "y": place}),
            self._bias(ctx, y, bias, relu, {"x": place, "b": memory["bias"], "y": memory["y"]}),
        ]

    def _bias(
        self, ctx: PlanContext, y: Tensor, bias: Tensor, relu: bool, memory: dict[str, Reference]
    ) -> Step | Extra:
        """Return the step that adds a bias to the rows of a product, which may be y itself, with the Relu."""
        rows, columns = y.shape[-2:]
        if self.graphs and y.elements == bias.elements == "float32":
            graph = graph_of(AddPerChannel(matrix_tensor(rows, columns, "float32"), bias, relu), ctx)
            if graph is not None:
                return Step(graph, memory)
        kernel = bias_kernel("float64" if y.elements == "float64" else "float32", bias.elements, y.elements, relu)
        return Extra(f"cuda {kernel.name}", lambda memory: add_bias(kernel, rows, columns, memory), memory)

    def _sums(self, ctx: PlanContext, dy: TensorSpec, elements: str, scratch: ScratchAllocator) -> Step | Extra | None:
        """Return the step that computes db, the sums of the columns of dY."""
        memory: dict[str, Reference] = {"x": In(2), "sums": Out(1)}
        rows, columns, own = *dy.shape, dy.dtype.name
        if self.graphs and own != "float64":
            graph = graph_of(ChannelSums(matrix_tensor(rows, columns, elements), matrix_tensor(1, columns, own)), ctx)
            if graph is not None:
                return Step(graph, memory)
        kernel = column_sums(row_major_spec(dy, elements))
        if kernel is None:
            return None
        if kernel.scratch:
            memory["scratch"] = scratch.allocate(kernel.scratch)
        return Extra(kernel.name, lambda at: kernel.bind([at["x"]], [at["sums"]], at.get("scratch")), memory)


BY_CUDNN = Dense(graphs=True)
BY_CUBLAS = Dense(graphs=False)


def _uses_tf32(ctx: PlanContext) -> bool:
    return ctx.allow_tf32 and has_tf32(ctx.device_id)


def _by_cublas(ctx: PlanContext, a: Tensor, b: Tensor, y: Tensor, memory: dict[str, Reference]) -> Extra:
    """Return the step that computes y = a b."""
    (stack, rows, inner), columns = a.shape, b.shape[-1]
    moved = (a.order == TRANSPOSED, b.order == TRANSPOSED)
    product = cublas.Product(stack, rows, columns, inner, moved, a.elements, y.elements, tf32=_uses_tf32(ctx))
    used = {name: memory[name] for name in "aby"}
    return Extra("cuBLAS", lambda at: product.bind(at["a"], at["b"], at["y"]), used)


@dataclass(frozen=True)
class _Call:
    """A part of a product of stacks that are broadcast: ``count`` matrices, in one call.

    Args:
        count: of them.
        same: for a and b, whether all are multiplied with its first one.
        begin: for a, b and y, the number of the first matrix.
    """

    count: int
    same: tuple[bool, bool]
    begin: tuple[int, int, int]


def _calls(a: tuple[int, ...], b: tuple[int, ...]) -> list[_Call]:
    """Return the calls for stacks with these leading axes, which are broadcast as by NumPy."""
    stack = np.broadcast_shapes(a, b)
    wide = [(1,) * (len(stack) - len(own)) + own for own in (a, b)]
    count, same = 1, None
    for extent, *own in reversed([*zip(stack, *wide)]):
        if extent == 1:
            continue
        found = (own[0] == 1, own[1] == 1)
        if same not in (None, found):
            break
        count, same = count * extent, found
    numbers = [np.broadcast_to(np.arange(math.prod(own)).reshape(own), stack).reshape(-1) for own in wide]
    begins = range(0, math.prod(stack), count)
    return [_Call(count, same or (False, False), (int(numbers[0][i]), int(numbers[1][i]), i)) for i in begins]
