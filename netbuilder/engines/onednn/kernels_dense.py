"""FC, MatMul and BatchMatMul on oneDNN, all in plain order.

Matrix products read plain matrices, transposed or not, so weights stay in plain order in the forward pass, the gradient
and the update: nothing is reordered, which is best for very large layers; small ones run as machine code. Constant
weights of an FC are copied once to the layout that is fastest. In bfloat16, which is not used for small products,
forward pass and gradient share one rounded copy of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from netbuilder.engines.arrays import as_flat
from netbuilder.engines.llvm.small_products import small_fc, small_fc_dx, small_fc_gradient
from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn.arguments import Constant, In, Out, Scratch
from netbuilder.engines.onednn.bfloat16 import sums_depend_on_extents, types_for_products
from netbuilder.engines.onednn.blocked_layout import Desc, View, plain_in, rounded, row_major
from netbuilder.engines.onednn.primitive import (
    PostOp,
    Primitive,
    Step,
    prepared,
)
from netbuilder.engines.onednn.products import product
from netbuilder.ops.core import extensions
from netbuilder.ops.core.contexts import NOT_NEGATIVE, Call, PlanContext, Prepared
from netbuilder.ops.core.extensions import InParts
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["batch_matmul", "fc", "fc_gradient", "fused_fc_relu", "matmul"]

# One thread finishes products of fewer multiplications than this before several threads would have synchronized.
SMALL = 500_000

# Up to so many elements, column sums are faster as a product with ones than by NumPy's reduction.
_SMALL_SUMS = 8192

# A deferred dX needs a copy of the weights, which takes about as long as dX for so many rows.
_FEW_ROWS = 32

# Constant weights of more bytes are not copied to the layout in which products read them fastest.
_MOST_COPIED = 32 << 20

# Into how many parts a large gradient of the weights may be divided. Each has a copy of its columns of dY.
_PARTS = (16, 8, 4, 2)

_RELU = (PostOp("product relu"),)


def _matrix(rows: int, columns: int, code: int, transposed: bool = False) -> Desc:
    """Describe a plain matrix; if ``transposed``, it is stored as (columns, rows)."""
    return plain_in(View((rows, columns), (1, rows)) if transposed else row_major((rows, columns)), code)


def _make(
    ctx: PlanContext, code: int, rows: int, inner: int, columns: int, *, trans_a: bool = False, trans_b: bool = False,
    bias: bool = False, relu: bool = False, result: int | None = None,
) -> Primitive | None:  # fmt: skip
    """Compile Y (rows, columns) = A B (+ bias).

    Args:
        ctx: of the plan.
        code: the element type of A and B, and of Y unless ``result`` is given; the bias is float32.
        rows, inner, columns: A is (rows, inner), B is (inner, columns).
        trans_a, trans_b: whether a matrix is stored transposed.
        bias, relu: whether a bias is added, and whether a Relu follows.
        result: the element type of Y.
    """
    threads = 1 if rows * inner * columns < SMALL else ctx.threads
    post = _RELU if relu else ()
    return product(
        _matrix(rows, inner, code, trans_a), _matrix(inner, columns, code, trans_b),
        _matrix(1, columns, c.F32) if bias else None, _matrix(rows, columns, result or code), post, threads=threads,
    )  # fmt: skip


Made = tuple[Primitive | None, ...]


def _in_best_type(
    ctx: PlanContext, multiplications: int, make: Callable[[int], Made]
) -> tuple[int, tuple[Primitive, ...]] | None:
    """Return the best element type for products, and the primitives that ``make`` makes for it."""
    types = types_for_products(ctx) if multiplications >= SMALL else (c.F32,)
    for code in types:
        made = make(code)
        found = tuple(primitive for primitive in made if primitive is not None)
        if len(found) == len(made) and (code == c.F32 or not any(primitive.slow for primitive in found)):
            return code, found
    return None


def _as(spec: TensorSpec, code: int) -> TensorSpec:
    """Return the spec of a value in plain order, stored as the type ``code``."""
    return spec.plain if code == c.F32 else spec.with_layout(rounded(spec.size))


def _fold(shape: tuple[int, ...], axis: int) -> tuple[int, int]:
    """Return the extents of the matrix that has the axes before ``axis`` as rows and the others as columns."""
    axis = axis + len(shape) if axis < 0 else axis
    rows = columns = 1
    for extent in shape[:axis]:
        rows *= extent
    for extent in shape[axis:]:
        columns *= extent
    return rows, columns


def _serves(*specs: TensorSpec) -> bool:
    return all(s.dtype == np.float32 and s.size > 0 for s in specs)


def fc(op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, b: TensorSpec) -> Prepared | None:
    """Prepare FC (Y = X W^T + b) or FCTransposed (Y = X W + b)."""
    return _fc(op, ctx, x, w, b, relu=False)


def fused_fc_relu(op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, b: TensorSpec) -> Prepared | None:
    """Prepare an FC with the Relu that follows it: Y = relu(X W^T + b).

    Args:
        op: the FC.
        ctx: of the plan.
        x, w, b: its inputs.
    """
    made = _fc(op, ctx, x, w, b, relu=True)
    if made is not None:
        ctx.publish(0, NOT_NEGATIVE, True)
    return made


def _fc(op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, b: TensorSpec, *, relu: bool) -> Prepared | None:
    if not _serves(x, w, b):
        return None
    rows, columns, inner = op.sizes(x, w)
    copied = ctx.is_constant(1) and w.nbytes <= _MOST_COPIED and types_for_products(ctx) == (c.F32,)
    if copied or (not relu and ctx.repeats(1)):
        return _fc_with_copied_weights(op, ctx, x, w, b, relu=relu)
    if small := small_fc(op, ctx, x, w, b, relu=relu):
        return small

    def make(code: int) -> Made:
        return (_make(ctx, code, rows, inner, columns, trans_b=not op._transposed, bias=True, relu=relu),)

    found = _in_best_type(ctx, rows * columns * inner, make)
    if found is None:
        return None
    code, (made,) = found
    y = TensorSpec(op.y_shape(x, columns), x.dtype)
    step = Step(made, {c.SRC: In(0), c.WEIGHTS: In(1), c.BIAS: In(2), c.DST: Out(0)})
    return prepared([_as(x, code), _as(w, code), b.plain], [_as(y, code)], [step])


def _fc_with_copied_weights(
    op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, b: TensorSpec, *, relu: bool
) -> Prepared | None:
    """Prepare an FC that runs many times with the same weights, with a copy of them in the layout that is fastest."""
    rows, columns, inner = op.sizes(x, w)
    view = row_major((inner, columns)) if op._transposed else View((inner, columns), (1, inner))
    threads = 1 if rows * inner * columns < SMALL else ctx.threads
    made = product(
        _matrix(rows, inner, c.F32), plain_in(view, c.F32).any_order, _matrix(1, columns, c.F32),
        _matrix(rows, columns, c.F32), _RELU if relu else (), threads=threads,
    )  # fmt: skip
    if made is None:
        return None
    y = TensorSpec(op.y_shape(x, columns), x.dtype)
    step = Step(made, {c.SRC: In(0), c.WEIGHTS: In(1), c.BIAS: In(2), c.DST: Out(0)})
    return prepared([x.plain, made.spec(c.WEIGHTS, w.plain, view), b.plain], [y], [step])


def fc_gradient(op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, dy: TensorSpec) -> Prepared | None:
    """Prepare FCGradient or FCTransposedGradient: X, W, dY -> dW, db, [dX], dX only where it is read."""
    if not _serves(x, w, dy):
        return None
    rows, _, _ = op.sizes(x, w)
    if op.n_out < 3 or (rows < _FEW_ROWS and ctx.demand(2) == "fetch"):
        return _fc_gradient(op, ctx, x, w, dy)
    from netbuilder.engines.onednn.deferred_gradients import without_unread_dx  # a predictor does without it

    return without_unread_dx(
        op, ctx, w, lambda each: _fc_gradient(each, ctx, x, w, dy), lambda: _fc_dx(op, ctx, x, w, dy)
    )


def _fc_dx(op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, dy: TensorSpec) -> Prepared | None:
    """Prepare dX alone, in float32; X is not read."""
    if small := small_fc_dx(op, ctx, x, w, dy):
        return small
    rows, columns, inner = op.sizes(x, w)
    dx = _make(ctx, c.F32, rows, columns, inner, trans_b=op._transposed)
    if dx is None:
        return None
    step = Step(dx, {c.SRC: In(2), c.WEIGHTS: In(1), c.DST: Out(0)})
    return prepared([None, w.plain, dy.plain], [x.plain], [step])


def _fc_gradient(op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, dy: TensorSpec) -> Prepared | None:
    if small := small_fc_gradient(op, ctx, x, w, dy):
        return small
    rows, columns, inner = op.sizes(x, w)
    first, second = (inner, columns) if op._transposed else (columns, inner)

    def make(code: int) -> Made:
        return (
            _make(ctx, code, first, rows, second, trans_a=True, result=c.F32),
            _make(ctx, code, rows, columns, inner, trans_b=op._transposed),
            _make(ctx, code, 1, rows, columns, result=c.F32),
        )

    found = _in_best_type(ctx, rows * columns * inner, make)
    if found is None:
        return None
    code, (dw, dx, db) = found
    factors = {c.SRC: In(0), c.WEIGHTS: In(2)} if op._transposed else {c.SRC: In(2), c.WEIGHTS: In(0)}
    steps: list[Any] = [Step(dw, {**factors, c.DST: Out(0)}), _column_sums(rows, columns)]
    if code == c.BF16:
        steps[1] = Step(db, {c.SRC: _ones(rows), c.WEIGHTS: In(2), c.DST: Out(1)})
    outputs = [w.plain, TensorSpec((columns,), w.dtype)]
    inputs: list[TensorSpec | None] = [_as(x, code), None, _as(dy, code)]
    if op.n_out > 2:
        steps.append(Step(dx, {c.SRC: In(2), c.WEIGHTS: In(1), c.DST: Out(2)}))
        outputs.append(_as(x, code))
        inputs[1] = _as(w, code)
    if w.nbytes < extensions.LARGE_GRADIENT:
        return prepared(inputs, outputs, steps)
    rest = prepared(inputs, [None, *outputs[1:]], steps[1:])
    parts = _in_parts(op, ctx, x, w, inputs, dw, code, rest)
    if parts is None or not sums_depend_on_extents(code):
        made = prepared(inputs, outputs, steps)
    else:
        steps[:1] = [partial(_bind_part, parts, start) for start in range(0, first, parts.rows)]
        made = prepared(inputs, outputs, steps, scratch=parts.part(0).scratch, name=dw.name)
    return made if parts is None else made.extend(parts)


def _bind_part(parts: InParts, start: int, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
    """Bind the part that computes the rows from ``start`` on, to these rows of the gradient, output 0."""
    whole = outputs[0].reshape(outputs[0].shape[0], -1)
    return parts.part(start).bind(inputs, [whole[start : start + parts.rows]], scratch)


def _in_parts(
    op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, inputs: Any, whole: Primitive, code: int, rest: Prepared
) -> InParts | None:
    """Return how the gradient of the weights is computed in parts, by the implementation that computes the whole.

    Args:
        op, ctx, x, w: as in ``_fc_gradient``.
        inputs: the specs of the inputs as they are read.
        whole: the product that computes all rows.
        code: the element type of its factors.
        rest: computes the other outputs.
    """
    rows, columns, inner = op.sizes(x, w)
    first, second = (inner, columns) if op._transposed else (columns, inner)
    source, other = (0, 2) if op._transposed else (2, 0)
    dtype = np.dtype(np.float32 if code == c.F32 else np.uint16)
    if w.shape[0] != first:
        return None
    for count in _PARTS:
        made = None
        if first % count == 0:
            made = _make(ctx, code, first // count, rows, second, trans_a=True, result=c.F32)
        if made is not None and made.name == whole.name:
            break
    else:
        return None
    size = first // count
    copied = Scratch(0, rows * size * dtype.itemsize)
    step = Step(made, {c.SRC: copied, c.WEIGHTS: In(other), c.DST: Out(0)})

    def part(start: int) -> Prepared:
        def copy(ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> Call:
            factor = as_flat(ins[source], dtype).reshape(rows, first)[:, start : start + size]
            target = as_flat(scratch[: copied.nbytes], dtype).reshape(rows, size)
            return partial(np.copyto, target, factor)

        read = [spec if i in (0, 2) else None for i, spec in enumerate(inputs)]
        return prepared(read, [TensorSpec((size, second), w.dtype)], [copy, step], scratch=copied.nbytes)

    return InParts(size, part, rest)


def _ones(count: int) -> Constant:
    """Return ones in bfloat16; their product with a matrix gives the sums of its columns."""
    return Constant(np.full(count, 0x3F80, np.uint16))


def _column_sums(rows: int, columns: int) -> Any:
    """Return the step that sums dY (input 2) over its rows into db (output 1)."""

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        dy, db = inputs[2].reshape(rows, columns), outputs[1]
        if rows * columns <= _SMALL_SUMS:
            return partial(np.dot, np.ones(rows, np.float32), dy, db)
        return partial(np.add.reduce, dy, 0, None, db)

    return bind


def matmul(op: Any, ctx: PlanContext, a: TensorSpec, b: TensorSpec, *shape_only: TensorSpec) -> Prepared | None:
    """Prepare MatMul: Y = A B, both folded to matrices; of further inputs only the shapes are used."""
    if not _serves(a, b):
        return None
    a_rows, a_columns = _fold(a.shape, op.axis_a)
    b_rows, b_columns = _fold(b.shape, op.axis_b)
    rows, inner = (a_columns, a_rows) if op.trans_a else (a_rows, a_columns)
    columns = b_rows if op.trans_b else b_columns

    def make(code: int) -> Made:
        options: dict[str, Any] = {
            "trans_a": bool(op.trans_a),
            "trans_b": bool(op.trans_b),
            "result": _result(ctx, code),
        }
        return (_make(ctx, code, rows, inner, columns, **options),)

    found = _in_best_type(ctx, rows * inner * columns, make)
    if found is None:
        return None
    code, (made,) = found
    (y,) = op.infer(a.plain, b.plain, *(s.plain for s in shape_only))
    step = Step(made, {c.SRC: In(0), c.WEIGHTS: In(1), c.DST: Out(0)})
    inputs = [_as(a, code), _as(b, code), *(None for _ in shape_only)]
    return prepared(inputs, [_as(y, _result(ctx, code))], [step])


def _result(ctx: PlanContext, code: int) -> int:
    """Return the element type of a product of factors of type ``code``: float32 for a gradient, as of a parameter."""
    return c.F32 if ctx.op_def.is_gradient_op else code


def batch_matmul(op: Any, ctx: PlanContext, a: TensorSpec, b: TensorSpec) -> Prepared | None:
    """Prepare BatchMatMul; a vector is a matrix of one row or column, and what is broadcast is not copied."""
    if not _serves(a, b):
        return None
    left, right, result = _stacks(_matrix_shape(a, op.trans_a, row=True), _matrix_shape(b, op.trans_b, row=False))
    multiplications = result.size * left.dims[-1]
    threads = 1 if multiplications < SMALL else ctx.threads

    def make(code: int) -> Made:
        y_desc = plain_in(result, _result(ctx, code))
        return (product(plain_in(left, code), plain_in(right, code), None, y_desc, threads=threads),)

    found = _in_best_type(ctx, multiplications, make)
    if found is None or found[1][0].slow:
        return None
    code, (made,) = found
    step = Step(made, {c.SRC: In(0), c.WEIGHTS: In(1), c.DST: Out(0)})
    (y,) = op.infer(a.plain, b.plain)
    return prepared([_as(a, code), _as(b, code)], [_as(y, _result(ctx, code))], [step])


def _matrix_shape(spec: TensorSpec, transposed: bool, *, row: bool) -> tuple[tuple[int, ...], bool]:
    """Return the shape of a stack of matrices as it is stored, and whether each is transposed."""
    if spec.ndim > 1:
        return spec.shape, bool(transposed)
    return ((1, *spec.shape) if row else (*spec.shape, 1)), False


def _stacks(a: tuple[tuple[int, ...], bool], b: tuple[tuple[int, ...], bool]) -> tuple[View, View, View]:
    """Return the views of both factors and of their product, with as few dimensions as there can be."""
    (left, trans_a), (right, trans_b) = a, b
    ndim = max(len(left), len(right)) - 2
    leads = [((1,) * (ndim - len(shape) + 2) + shape)[:ndim] for shape in (left, right)]
    if not trans_a and math.prod(leads[1]) == 1:  # one matrix for all: the rows of the stack are those of one matrix
        left, leads = (math.prod(leads[0]) * left[-2], left[-1]), [(), ()]
    joined: list[tuple[int, bool, bool]] = []  # extent, and which factor has it
    for n, m in zip(*leads):
        extent, own = max(n, m), (n != 1, m != 1)
        if extent == 1:
            continue
        if joined and joined[-1][1:] == own:
            joined[-1] = (joined[-1][0] * extent, *own)
        else:
            joined.append((extent, *own))
    rows, columns = left[-1 if trans_a else -2], right[-2 if trans_b else -1]
    views = []
    for factor, (shape, transposed) in enumerate(((left, trans_a), (right, trans_b))):
        dims = [extent if own[factor] else 1 for extent, *own in joined]
        stored = row_major((*dims, *shape[-2:]))
        if transposed:
            turned = (*dims, shape[-1], shape[-2]), (*stored.strides[:-2], 1, shape[-1])
            stored = View(*turned)
        views.append(stored)
    return views[0], views[1], row_major((*(extent for extent, *_ in joined), rows, columns))
