"""Gradients of inputs that no operator reads: not computed, or, if observable, computed from dY and W when fetched."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn import kernels_conv_gradient as conv
from netbuilder.engines.onednn.arguments import In, Out, SavedCopy
from netbuilder.engines.onednn.convolutions import Views, any_order, backward_data, forward, serves
from netbuilder.engines.onednn.primitive import Step, prepared
from netbuilder.engines.onednn.widened import widened_where_faster
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.extensions import Deferred, DeferredOutputs
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["conv_gradient", "conv_transpose_gradient", "without_unread_dx"]


def _dx_of(op: Any) -> tuple[int, ...]:
    return (op.n_out - 1,) if op.computes_dx and op.n_out > 1 + op.computes_db else ()


_CONV_GRADIENT = widened_where_faster(conv.conv_gradient, _dx_of)
_CONV_TRANSPOSE_GRADIENT = widened_where_faster(conv.conv_transpose_gradient, _dx_of)


def conv_gradient(op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, dy: TensorSpec) -> Prepared | None:
    """Prepare ConvGradient: X, W, dY -> dW, [db], [dX], dX only where it is read."""
    return _unless_unread(_CONV_GRADIENT, op, ctx, (x, w, dy), transposed=False)


def conv_transpose_gradient(op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, dy: TensorSpec) -> Prepared | None:
    """Prepare ConvTransposeGradient: X, W, dY -> dW, [db], [dX], dX only where it is read."""
    return _unless_unread(_CONV_TRANSPOSE_GRADIENT, op, ctx, (x, w, dy), transposed=True)


def _unless_unread(make: Any, op: Any, ctx: PlanContext, specs: Any, *, transposed: bool) -> Prepared | None:
    if not op.computes_dx or not serves(*specs):
        made: Prepared | None = make(op, ctx, *specs)
        return made
    return without_unread_dx(
        op, ctx, specs[1], lambda each: make(each, ctx, *specs), lambda: _dx(op, ctx, *specs, transposed=transposed)
    )


def without_unread_dx(
    op: Any,
    ctx: PlanContext,
    w: TensorSpec,
    make: Callable[[Any], Prepared | None],
    make_dx: Callable[[], Prepared | None],
) -> Prepared | None:
    """Prepare the gradient of a layer with inputs X, W, dY; without dX, its last output, where no operator reads it.

    A fetch computes dX later. W is saved for it, because the parameter update changes W before.

    Args:
        op: the gradient operator, whose last output is dX.
        ctx: of the plan.
        w: the spec of the weights in their layout.
        make: prepares the operator that it is given, which may lack the last output.
        make_dx: prepares dX alone, from W and dY.
    """
    last = op.n_out - 1
    demand = ctx.demand(last, (2,))
    if demand == "run":
        return make(op)
    made = make(copy.copy(op).with_arity(op.n_in, last))
    if made is None:
        return None
    made.outputs = [*made.outputs, None]
    return made if demand == "never" else _with_saved_weights(made, w, SavedCopy(w), make_dx, last)


def _with_saved_weights(
    made: Prepared, w: TensorSpec, saved: SavedCopy, make_dx: Callable[[], Prepared | None], output: int
) -> Prepared:
    """Make a kernel save W in each call, and declare how output ``output`` is computed from it."""
    made.inputs = [made.inputs[0], w, *made.inputs[2:]]
    bind_alone = made.bind

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        call, source, target, copy_to = bind_alone(inputs, outputs, scratch), inputs[1], saved.buffer, np.copyto

        def call_and_copy() -> None:
            copy_to(target, source)
            call()

        return call_and_copy

    def prepare() -> Prepared:
        found = make_dx()
        assert found is not None, "there is a kernel for dX alone wherever there is one for the whole gradient"
        return found

    made.bind = bind
    made.extend(DeferredOutputs({output: Deferred(prepare, (2,), {1: saved})}))
    return made


def _dx(
    op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, dy: TensorSpec, *, transposed: bool
) -> Prepared | None:
    """Prepare dX of a convolution alone, in float32: X, W, dY -> dX; X is not read."""
    v = Views(op, x, w, transposed=transposed)
    source, weights, target = (any_order(view, c.F32) for view in (v.x, v.weights, v.y))
    hint = forward(v.kind, source, weights, None, target, v.window, False, (), threads=ctx.threads)
    dx = backward_data(v.kind, source, weights, target, v.window, hint, threads=ctx.threads) if hint else None
    if dx is None:
        return None
    inputs = [None, dx.spec(c.WEIGHTS, w, v.weights), dx.spec(c.DIFF_DST, dy.plain, v.y)]
    step = Step(dx, {c.DIFF_DST: In(2), c.WEIGHTS: In(1), c.DIFF_SRC: Out(0)})
    return prepared(inputs, [dx.spec(c.DIFF_SRC, x.plain, v.x)], [step])
