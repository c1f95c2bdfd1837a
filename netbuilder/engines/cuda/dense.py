"""FC, MatMul and BatchMatMul on cuBLAS, with our own kernels for the bias, the Relu and the sums of columns.

Matrices are stored in plain order, transposed or not. The sum of a product and a bias is rounded once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from netbuilder.engines.cuda import cublas
from netbuilder.engines.cuda.code import c_type, stored, value_of, with_prelude
from netbuilder.engines.cuda.gpu_layout import row_major_spec
from netbuilder.engines.cuda.kernel import THREADS, Kernel
from netbuilder.engines.cuda.steps import Reference, Step, one_call, prepared, scratch_memory
from netbuilder.engines.cuda.sums import with_sums
from netbuilder.engines.references import In, Out, ScratchAllocator
from netbuilder.engines.tf32 import has_tf32
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec, decode
from netbuilder.ops.core.registry import find
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["BY_CUBLAS", "Dense", "Matrix", "bias_kernel", "column_sums"]

_MOST_CALLS = 32  # of cuBLAS, for stacks that are broadcast


@dataclass(frozen=True)
class Matrix:
    """A matrix, or a stack of matrices.

    Args:
        rows, columns: extents of one.
        elements: the type of its elements: float32, float64, float16 or bfloat16.
        transposed: whether it is stored as (columns, rows).
        stack: number of matrices.
    """

    rows: int
    columns: int
    elements: str
    transposed: bool = False
    stack: int = 1


def _serves(*specs: TensorSpec) -> bool:
    """Whether all values are of one type that is multiplied, and none is empty."""
    dtype = specs[0].dtype
    known = dtype in (np.float32, np.float16, np.float64)
    return known and all(s.dtype == dtype and s.size > 0 for s in specs)


class Dense:
    """The kernels of dense layers and matrix products.

    An engine with graphs of its own overrides ``types``, ``product``, ``bias`` and ``sums``.
    """

    def fc(
        self, op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, b: TensorSpec, *, relu: bool = False
    ) -> Prepared | None:
        """Prepare FC (Y = X W^T + b) or FCTransposed (Y = X W + b), with the Relu that follows it if there is one."""
        if not _serves(x, w, b):
            return None
        rows, columns, inner = op.sizes(x, w)
        y = x.with_shape(op.y_shape(x, columns))
        memory: dict[str, Reference] = {"a": In(0), "b": In(1), "bias": In(2), "y": Out(0)}
        for elements in self.types(ctx, x):
            right = Matrix(inner, columns, elements, transposed=not op._transposed)
            left, result = Matrix(rows, inner, elements), Matrix(rows, columns, elements)
            scratch = scratch_memory()
            steps = self.product(ctx, left, right, result, memory, bias=b.dtype.name, relu=relu, scratch=scratch)
            if steps is not None:
                inputs = [row_major_spec(x, elements), row_major_spec(w, elements), b.plain]
                return prepared(inputs, [row_major_spec(y, elements)], steps, scratch)
        return None

    def fused_fc_relu(self, op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
        """Prepare an FC with the Relu that follows it: Y = relu(X W^T + b).

        Args:
            op: the FC.
            ctx: of the plan.
            specs: of X, W and b.
        """
        return self.fc(op, ctx, *specs, relu=True)

    def fc_gradient(self, op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, dy: TensorSpec) -> Prepared | None:
        """Prepare FCGradient or FCTransposedGradient: X, W, dY -> dW, db, [dX]."""
        if not _serves(x, w, dy):
            return None
        for elements in self.types(ctx, x):
            made = self._fc_gradient(op, ctx, x, w, dy, elements)
            if made is not None:
                return made
        return None

    def _fc_gradient(
        self, op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, dy: TensorSpec, elements: str
    ) -> Prepared | None:
        rows, columns, inner = op.sizes(x, w)
        own = w.dtype.name
        if op._transposed:
            left, right = Matrix(inner, rows, elements, transposed=True), Matrix(rows, columns, elements)
            dw = self.product(ctx, left, right, Matrix(inner, columns, own), {"a": In(0), "b": In(2), "y": Out(0)})
        else:
            left, right = Matrix(columns, rows, elements, transposed=True), Matrix(rows, inner, elements)
            dw = self.product(ctx, left, right, Matrix(columns, inner, own), {"a": In(2), "b": In(0), "y": Out(0)})
        sums = self.sums(ctx, dy.with_shape((rows, columns)), elements)
        if dw is None or sums is None:
            return None
        inputs: list[TensorSpec | None] = [row_major_spec(x, elements), None, row_major_spec(dy, elements)]
        outputs: list[TensorSpec | None] = [w.plain, w.with_shape((columns,))]
        if op.n_out < 3 or ctx.demand(2) == "never":
            return prepared(inputs, [*outputs, *([None] if op.n_out > 2 else [])], [*dw, sums])
        weights = Matrix(columns, inner, elements, transposed=op._transposed)
        dx = self.product(
            ctx, Matrix(rows, columns, elements), weights, Matrix(rows, inner, elements),
            {"a": In(2), "b": In(1), "y": Out(2)},
        )  # fmt: skip
        if dx is None:
            return None
        inputs[1] = row_major_spec(w, elements)
        return prepared(inputs, [*outputs, row_major_spec(x, elements)], [*dw, sums, *dx])

    def matmul(self, op: Any, ctx: PlanContext, a: TensorSpec, b: TensorSpec, *like: TensorSpec) -> Prepared | None:
        """Prepare MatMul: Y = A B, both folded to matrices; of a further input only the shape is used."""
        if not _serves(a, b):
            return None
        m, n, k = op.sizes(a, b)
        (y,) = op.infer(a.plain, b.plain, *(spec.plain for spec in like))
        return self._stacked(op, ctx, (a, b), y, (1, m, n, k), like)

    def batch_matmul(self, op: Any, ctx: PlanContext, a: TensorSpec, b: TensorSpec) -> Prepared | None:
        """Prepare BatchMatMul. Stacks that are broadcast, and vectors, take several calls."""
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
        for elements in self.types(ctx, a):
            result = y.dtype.name if ctx.op_def.is_gradient_op else elements  # the gradient may be that of a parameter
            steps = self.product(
                ctx,
                Matrix(m, k, elements, transposed=bool(op.trans_a), stack=stack),
                Matrix(k, n, elements, transposed=bool(op.trans_b), stack=stack),
                Matrix(m, n, result, stack=stack),
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
        elements = next(iter(self.types(ctx, a)))
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

        def bind(at: Mapping[str, Any], _: Any) -> Call:
            return one_call([product.bind(at["a"], at["b"], at["y"], begin) for product, begin in products])

        inputs = [row_major_spec(a, elements), row_major_spec(b, elements)]
        step = Step("cuBLAS", bind, {"a": In(0), "b": In(1), "y": Out(0)})
        return prepared(inputs, [row_major_spec(y, elements)], [step])

    # The parts.

    def types(self, ctx: PlanContext, x: TensorSpec) -> tuple[str, ...]:
        """Return the types in which elements may be stored, best first."""
        return (x.dtype.name,)

    def product(
        self, ctx: PlanContext, a: Matrix, b: Matrix, y: Matrix, memory: Mapping[str, Reference], *,
        bias: str | None = None, relu: bool = False, scratch: ScratchAllocator | None = None,
    ) -> list[Step] | None:  # fmt: skip
        """Return the steps that compute y = relu(a b + bias); None if there is no kernel for these types.

        Args:
            ctx: of the plan.
            a, b, y: stacks of matrices.
            memory: of "a", "b", "y" and, if there is one, the "bias".
            bias: the type of a bias, which has one number for each column; only of one matrix.
            relu: whether a Relu follows; only after a bias.
            scratch: where memory for the product is taken from, if there is a bias.
        """
        if not cublas.serves(ctx.device_id, a.elements, a.stack, a.rows, a.columns, b.columns):
            return None
        if bias is None:
            return [_by_cublas(ctx, a, b, y, memory)]
        wide = replace(y, elements="float64" if y.elements == "float64" else "float32")
        place = memory["y"]
        if wide != y:  # the sum with the bias is rounded, not the product
            assert scratch is not None
            place = scratch.allocate_words(y.rows, y.columns)
        return [
            _by_cublas(ctx, a, b, wide, {**memory, "y": place}),
            self.bias(ctx, y, bias, relu, {"x": place, "b": memory["bias"], "y": memory["y"]}),
        ]

    def bias(self, ctx: PlanContext, y: Matrix, bias: str, relu: bool, memory: Mapping[str, Reference]) -> Step:
        """Return the step that adds a bias of a type to the rows of a product, which may be y itself, with the Relu."""
        kernel = bias_kernel("float64" if y.elements == "float64" else "float32", bias, y.elements, relu)
        size, columns = y.rows * y.columns, np.int64(y.columns)

        def bind(at: Mapping[str, Any], _: Any) -> Call:
            return functools.partial(kernel, -(-size // THREADS), (at["x"], at["b"], at["y"], np.int64(size), columns))

        return Step(f"cuda {kernel.name}", bind, memory)

    def sums(self, ctx: PlanContext, dy: TensorSpec, elements: str) -> Step | None:
        """Return the step that computes db, output 1: the sums of the columns of dY, input 2."""
        kernel = column_sums(row_major_spec(dy, elements))
        if kernel is None:
            return None
        memory: dict[str, Reference] = {"x": In(2), "sums": Out(1)}
        bind = kernel.bind
        return Step(kernel.name, lambda at, scratch: bind([at["x"]], [at["sums"]], scratch), memory, kernel.scratch)


BY_CUBLAS = Dense()


def _uses_tf32(ctx: PlanContext) -> bool:
    return ctx.allow_tf32 and has_tf32(ctx.device_id)


def _by_cublas(ctx: PlanContext, a: Matrix, b: Matrix, y: Matrix, memory: Mapping[str, Reference]) -> Step:
    """Return the step that computes y = a b."""
    extents, moved = (a.stack, a.rows, b.columns, a.columns), (a.transposed, b.transposed)
    product = cublas.Product(*extents, moved, a.elements, y.elements, tf32=_uses_tf32(ctx))
    used = {name: memory[name] for name in "aby"}
    return Step("cuBLAS", lambda at, _: product.bind(at["a"], at["b"], at["y"]), used)


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


def column_sums(matrix: TensorSpec) -> Prepared | None:
    """Return the kernel that sums each column of a matrix, as it is stored; None if it has no elements."""
    op_def = make_op("ReduceFrontSum", ["x"], ["sums"], num_reduce_dim=1)
    ctx: Any = SimpleNamespace(op_def=op_def)
    return with_sums(decode(find("ReduceFrontSum"), op_def), ctx, matrix)
