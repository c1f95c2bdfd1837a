"""FC, MatMul and BatchMatMul on oneDNN, all in plain order.

Matrix products take matrices as they lie, transposed or not, so weights keep the plain order through forward pass,
gradient and update: nothing is reordered, which is what small and very large layers want alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.ops.contexts import Call, PlanContext, Prepared
from netbuilder.ops.engines.onednn import declarations as c
from netbuilder.ops.engines.onednn.layout import Desc, View, plain_desc, row_major
from netbuilder.ops.engines.onednn.library import dnnl
from netbuilder.ops.engines.onednn.primitive import (
    NOT_NEGATIVE,
    In,
    Out,
    PostOp,
    Primitive,
    Step,
    cached,
    compile_primitive,
    prepared,
)
from netbuilder.ops.operator import TensorSpec

__all__ = ["batch_matmul", "fc", "fc_gradient", "fused_fc_relu", "matmul"]

# Products of fewer multiplications than this are done by one thread, before several would have met.
SMALL = 500_000

_FLOAT = np.dtype(np.float32)


@cached
def _product(a: Desc, b: Desc, bias: Desc | None, y: Desc, post: tuple[PostOp, ...]) -> Primitive:
    null = dnnl().ffi.NULL
    return compile_primitive("matmul", a.handle, b.handle, null if bias is None else bias.handle, y.handle, post=post)


def _matrix(rows: int, columns: int, transposed: bool = False) -> Desc:
    """Describe a plain matrix; ``transposed``: it is stored (columns, rows)."""
    if not transposed:
        return plain_desc(row_major((rows, columns)), _FLOAT)
    return plain_desc(View((rows, columns), (1, rows)), _FLOAT)


def _make(
    ctx: PlanContext, rows: int, inner: int, columns: int, *, trans_a: bool = False, trans_b: bool = False,
    bias: bool = False, relu: bool = False,
) -> Primitive | None:  # fmt: skip
    """Compile Y (rows, columns) = A B (+ bias), the matrices stored transposed where said."""
    threads = 1 if rows * inner * columns < SMALL else ctx.threads
    post = (PostOp("relu"),) if relu else ()
    return _product(
        _matrix(rows, inner, trans_a), _matrix(inner, columns, trans_b), _matrix(1, columns) if bias else None,
        _matrix(rows, columns), post, threads=threads,
    )  # fmt: skip


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
    made = _make(ctx, rows, inner, columns, trans_b=not op._transposed, bias=True, relu=relu)
    if made is None:
        return None
    y = TensorSpec(op.y_shape(x, columns), x.dtype)
    step = Step(made, {c.SRC: In(0), c.WEIGHTS: In(1), c.BIAS: In(2), c.DST: Out(0)})
    return prepared([x.plain, w.plain, b.plain], [y], [step])


def fc_gradient(op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, dy: TensorSpec) -> Prepared | None:
    """Prepare FCGradient or FCTransposedGradient: X, W, dY -> dW, db, [dX]."""
    if not _serves(x, w, dy):
        return None
    rows, columns, inner = op.sizes(x, w)
    if op._transposed:
        dw = _make(ctx, inner, rows, columns, trans_a=True)
        factors = {c.SRC: In(0), c.WEIGHTS: In(2)}
    else:
        dw = _make(ctx, columns, rows, inner, trans_a=True)
        factors = {c.SRC: In(2), c.WEIGHTS: In(0)}
    dx = _make(ctx, rows, columns, inner, trans_b=op._transposed)
    if dw is None or dx is None:
        return None
    steps: list[Any] = [Step(dw, {**factors, c.DST: Out(0)}), _column_sums(rows, columns)]
    outputs = [w.plain, TensorSpec((columns,), w.dtype)]
    inputs: list[TensorSpec | None] = [x.plain, None, dy.plain]
    if op.n_out > 2:
        steps.append(Step(dx, {c.SRC: In(2), c.WEIGHTS: In(1), c.DST: Out(2)}))
        outputs.append(x.plain)
        inputs[1] = w.plain
    return prepared(inputs, outputs, steps)


def _column_sums(rows: int, columns: int) -> Any:
    """A step that sums dY (input 2) over its rows into db (output 1)."""

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        dy, db, add_up = inputs[2].reshape(rows, columns), outputs[1], np.add.reduce
        return lambda: add_up(dy, 0, None, db)

    return bind


def matmul(op: Any, ctx: PlanContext, a: TensorSpec, b: TensorSpec, *shape_only: TensorSpec) -> Prepared | None:
    """Prepare MatMul: Y = A B, both folded to matrices; further inputs tell shapes only and are not read."""
    if not _serves(a, b):
        return None
    a_rows, a_columns = _fold(a.shape, op.axis_a)
    b_rows, b_columns = _fold(b.shape, op.axis_b)
    rows, inner = (a_columns, a_rows) if op.trans_a else (a_rows, a_columns)
    columns = b_rows if op.trans_b else b_columns
    made = _make(ctx, rows, inner, columns, trans_a=bool(op.trans_a), trans_b=bool(op.trans_b))
    if made is None:
        return None
    (y,) = op.infer(a.plain, b.plain, *(s.plain for s in shape_only))
    step = Step(made, {c.SRC: In(0), c.WEIGHTS: In(1), c.DST: Out(0)})
    return prepared([a.plain, b.plain, *(None for _ in shape_only)], [y], [step])


def batch_matmul(op: Any, ctx: PlanContext, a: TensorSpec, b: TensorSpec) -> Prepared | None:
    """Prepare BatchMatMul of two stacks of equally many matrices (no broadcasting)."""
    if not _serves(a, b) or a.ndim != b.ndim or not 3 <= a.ndim <= 5 or a.shape[:-2] != b.shape[:-2]:
        return None
    lead = a.shape[:-2]
    batch = 1
    for extent in lead:
        batch *= extent

    def stack(shape: tuple[int, ...], transposed: bool) -> Desc:
        rows, columns = shape[-2:]
        if transposed:
            return plain_desc(View((batch, columns, rows), (rows * columns, 1, columns)), _FLOAT)
        return plain_desc(row_major((batch, rows, columns)), _FLOAT)

    left, right = stack(a.shape, bool(op.trans_a)), stack(b.shape, bool(op.trans_b))
    rows, inner, columns = left.dims[1], left.dims[2], right.dims[2]
    threads = 1 if batch * rows * inner * columns < SMALL else ctx.threads
    y = plain_desc(row_major((batch, rows, columns)), _FLOAT)
    made = _product(left, right, None, y, (), threads=threads)
    if made is None:
        return None
    step = Step(made, {c.SRC: In(0), c.WEIGHTS: In(1), c.DST: Out(0)})
    return prepared([a.plain, b.plain], [TensorSpec((*lead, rows, columns), a.dtype)], [step])
