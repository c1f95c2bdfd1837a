"""FC, MatMul and BatchMatMul on cuDNN's graphs of matrix products; those of exact float32 by cuBLAS.

Matrices are stored in plain order, transposed or not. Products of 16 bits are graphs with bias and Relu in the same
kernel; where cuDNN has none, as for some extents, operators compute in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.engines.arrays import array_module
from netbuilder.ops.engines.cuda import cublas
from netbuilder.ops.engines.cudnn.convolutions import matrix_tensor
from netbuilder.ops.engines.cudnn.graphs import ROW_MAJOR, TRANSPOSED, AddPerChannel, ChannelSums, Product, Tensor
from netbuilder.ops.engines.cudnn.layout import row_major_spec
from netbuilder.ops.engines.cudnn.precision import serves, types_for_products
from netbuilder.ops.engines.cudnn.steps import Extra, Reference, Step, graph_of, prepared
from netbuilder.ops.engines.references import In, Out
from netbuilder.proto import PROTO_CUDA

__all__ = ["batch_matmul", "fc", "fc_gradient", "fused_fc_relu", "matmul"]


def _matrix(rows: int, columns: int, elements: str, *, transposed: bool = False, stack: int = 1) -> Tensor:
    """Return a matrix, or a stack of matrices; if ``transposed``, it is stored as (columns, rows)."""
    return Tensor((stack, rows, columns), TRANSPOSED if transposed else ROW_MAJOR, elements)


def _product(
    ctx: PlanContext, a: Tensor, b: Tensor, y: Tensor, memory: dict[str, Reference], *, bias: Tensor | None = None,
    relu: bool = False,
) -> list[Step | Extra] | None:  # fmt: skip
    """Return the steps that compute y = relu(a b + bias); None if there is no kernel for these types.

    Args:
        ctx: of the plan.
        a, b, y: stacks of matrices.
        memory: of a, b, y and the bias, by the names of ``Product``.
        bias: one number for each column.
        relu: whether a Relu follows.
    """
    if a.elements != "float32" or ctx.allow_tf32:
        row = None if bias is None else Tensor((1, 1, bias.size), ROW_MAJOR, bias.elements)
        whole = graph_of(Product(a, b, y, row, relu, tf32=True), ctx)
        if whole is not None:
            return [Step(whole, memory)]
    if {a.elements, b.elements, y.elements} != {"float32"}:
        return None
    steps: list[Step | Extra] = [_by_cublas(a, b, y, memory)]
    if bias is not None:
        total = graph_of(AddPerChannel(matrix_tensor(y.shape[1], y.shape[2], "float32"), bias, relu), ctx)
        if total is None:
            return None
        steps.append(Step(total, {"x": memory["y"], "b": memory["bias"], "y": memory["y"]}))
    return steps


def _by_cublas(a: Tensor, b: Tensor, y: Tensor, memory: dict[str, Reference]) -> Extra:
    """Return the step that computes y = a b in float32."""
    direct = cublas.serves(*a.shape, *b.shape)

    def array(buffers: dict[type, Sequence[Any]], name: str) -> Any:
        ref: Any = memory[name]
        return buffers[type(ref)][ref.index]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any]) -> Call:
        buffers: dict[type, Sequence[Any]] = {In: inputs, Out: outputs}
        left, right = ((array(buffers, name), t.order == TRANSPOSED) for t, name in ((a, "a"), (b, "b")))
        result = array(buffers, "y").reshape(y.shape)
        if direct:
            return cublas.product(left, right, result)
        return _by_cupy(_matrices(left[0], a), _matrices(right[0], b), result)

    return Extra("cuBLAS", bind, capturable=direct)


def _matrices(stored: Any, tensor: Tensor) -> Any:
    """Return a stack of matrices, whatever order they are stored in."""
    stack, rows, columns = tensor.shape
    if tensor.order == ROW_MAJOR:
        return stored.reshape(tensor.shape)
    return stored.reshape(stack, columns, rows).swapaxes(1, 2)


def _by_cupy(left: Any, right: Any, result: Any) -> Call:
    """Return the call of cuBLAS by CuPy."""
    xp = array_module(PROTO_CUDA)
    if len(result) == 1:
        return partial(xp.dot, left[0], right[0], out=result[0])
    return partial(xp.matmul, left, right, out=result)


def fc(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare FC (Y = X W^T + b) or FCTransposed (Y = X W + b)."""
    return _fc(op, ctx, *specs)


def fused_fc_relu(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare an FC with the Relu that follows it: Y = relu(X W^T + b).

    Args:
        op: the FC.
        ctx: of the plan.
        specs: of X, W and b.
    """
    return _fc(op, ctx, *specs, relu=True)


def _fc(
    op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, b: TensorSpec, *, relu: bool = False
) -> Prepared | None:
    if not serves(x, w, b):
        return None
    rows, columns, inner = op.sizes(x, w)
    y = x.with_shape(op.y_shape(x, columns))
    memory: dict[str, Reference] = {"a": In(0), "b": In(1), "bias": In(2), "y": Out(0)}
    for elements in types_for_products(ctx, x):
        right = _matrix(inner, columns, elements, transposed=not op._transposed)
        left, result = _matrix(rows, inner, elements), _matrix(rows, columns, elements)
        bias = matrix_tensor(1, columns, b.dtype.name)
        steps = _product(ctx, left, right, result, memory, bias=bias, relu=relu)
        if steps is not None:
            inputs = [row_major_spec(x, elements), row_major_spec(w, elements), b.plain]
            return prepared(inputs, [row_major_spec(y, elements)], steps)
    return None


def fc_gradient(op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, dy: TensorSpec) -> Prepared | None:
    """Prepare FCGradient or FCTransposedGradient: X, W, dY -> dW, db, [dX]."""
    if not serves(x, w, dy):
        return None
    for elements in types_for_products(ctx, x):
        made = _fc_gradient(op, ctx, x, w, dy, elements)
        if made is not None:
            return made
    return None


def _fc_gradient(
    op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, dy: TensorSpec, elements: str
) -> Prepared | None:
    rows, columns, inner = op.sizes(x, w)
    own = w.dtype.name
    if op._transposed:
        left, right = _matrix(inner, rows, elements, transposed=True), _matrix(rows, columns, elements)
        dw = _product(ctx, left, right, _matrix(inner, columns, own), {"a": In(0), "b": In(2), "y": Out(0)})
    else:
        left, right = _matrix(columns, rows, elements, transposed=True), _matrix(rows, inner, elements)
        dw = _product(ctx, left, right, _matrix(columns, inner, own), {"a": In(2), "b": In(0), "y": Out(0)})
    sums = graph_of(ChannelSums(matrix_tensor(rows, columns, elements), matrix_tensor(1, columns, own)), ctx)
    if dw is None or sums is None:
        return None
    steps = [*dw, Step(sums, {"x": In(2), "sums": Out(1)})]
    inputs: list[TensorSpec | None] = [row_major_spec(x, elements), None, row_major_spec(dy, elements)]
    outputs: list[TensorSpec | None] = [w.plain, w.with_shape((columns,))]
    if op.n_out < 3 or ctx.demand(2) == "never":
        return prepared(inputs, [*outputs, *([None] if op.n_out > 2 else [])], steps)
    weights = _matrix(columns, inner, elements, transposed=op._transposed)
    dx = _product(
        ctx, _matrix(rows, columns, elements), weights, _matrix(rows, inner, elements),
        {"a": In(2), "b": In(1), "y": Out(2)},
    )  # fmt: skip
    if dx is None:
        return None
    inputs[1] = row_major_spec(w, elements)
    return prepared(inputs, [*outputs, row_major_spec(x, elements)], [*steps, *dx])


def matmul(op: Any, ctx: PlanContext, a: TensorSpec, b: TensorSpec, *like: TensorSpec) -> Prepared | None:
    """Prepare MatMul: Y = A B, both folded to matrices; of a further input only the shape is used."""
    if not serves(a, b):
        return None
    m, n, k = op.sizes(a, b)
    (y,) = op.infer(a.plain, b.plain, *(spec.plain for spec in like))
    return _stacked(op, ctx, (a, b), y, (1, m, n, k), like)


def batch_matmul(op: Any, ctx: PlanContext, a: TensorSpec, b: TensorSpec) -> Prepared | None:
    """Prepare BatchMatMul of two stacks with the same number of matrices (no broadcasting)."""
    if not serves(a, b) or a.ndim != b.ndim or a.ndim < 2 or a.shape[:-2] != b.shape[:-2]:
        return None
    (y,) = op.infer(a.plain, b.plain)
    m, n = y.shape[-2:]
    return _stacked(op, ctx, (a, b), y, (math.prod(a.shape[:-2]), m, n, a.shape[-2 if op.trans_a else -1]))


def _stacked(
    op: Any, ctx: PlanContext, factors: tuple[TensorSpec, TensorSpec], y: TensorSpec, extents: tuple[int, ...],
    like: Sequence[TensorSpec] = (),
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
    for elements in types_for_products(ctx, a):
        result = y.dtype.name if ctx.op_def.is_gradient_op else elements  # the gradient may be that of a parameter
        steps = _product(
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
