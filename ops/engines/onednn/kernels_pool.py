"""MaxPool and AveragePool, forward and backward, on oneDNN.

Where several elements of a window are the greatest, oneDNN gives the gradient to the first of them, while it is due to
each. So its MaxPoolGradient serves only where X comes from a Relu: there nearly all ties are between zeroes, to
which the Relu's own gradient lets nothing through. Elsewhere the kernel over arrays serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.core.registry import CPU, plain_kernel
from netbuilder.ops.engines.layouts import convert
from netbuilder.ops.engines.onednn import declarations as c
from netbuilder.ops.engines.onednn.arguments import Held, In, Out
from netbuilder.ops.engines.onednn.finite import finite_check
from netbuilder.ops.engines.onednn.geometry import channels_last, window_arguments
from netbuilder.ops.engines.onednn.layout import Desc, image_view, orders_of, plain_in
from netbuilder.ops.engines.onednn.precision import types_as_given
from netbuilder.ops.engines.onednn.primitive import (
    NOT_NEGATIVE,
    Primitive,
    Step,
    cached,
    compile_primitive,
    first_fast,
    prepared,
)
from netbuilder.ops.windows.conv_geometry import Geometry

__all__ = ["average_pool", "average_pool_gradient", "max_pool", "max_pool_gradient"]

_WORKSPACE = "onednn max pool"


@cached
def _forward(algorithm: int, prop: int, src: Desc, dst: Desc, w: Geometry) -> Primitive:
    return compile_primitive("pooling_forward", prop, algorithm, src.handle, dst.handle, *_geometry(w))


@cached
def _backward(algorithm: int, src: Desc, dst: Desc, w: Geometry, hint: Primitive) -> Primitive:
    return compile_primitive("pooling_backward", algorithm, src.handle, dst.handle, *_geometry(w), hint=hint)


def _geometry(w: Geometry) -> tuple[Any, ...]:
    strides, dilates, begin, end = window_arguments(w)
    return strides, w.kernel, dilates, begin, end


def _window(op: Any, x: TensorSpec) -> Geometry | None:
    """Return how the operator's windows lie on X, or None if oneDNN cannot serve it."""
    if x.dtype != np.float32 or not 3 <= x.ndim <= 5 or x.size == 0:
        return None
    w: Geometry = op.geometry(x)
    return None if any(pad >= k for pad, k in zip(w.begin, w.kernel)) else w


def _out_shape(op: Any, x: TensorSpec) -> tuple[int, ...]:
    shape: tuple[int, ...] = op.pooled(x).shape
    return shape


class _Pool:
    """The forward primitive of a pooling operator on X, and how it sees X and Y."""

    def __init__(self, op: Any, ctx: PlanContext, x: TensorSpec, w: Geometry, algorithm: int) -> None:
        last = channels_last(op)
        self.x, self.y = x, TensorSpec(_out_shape(op, x), x.dtype)
        self.view, self.y_view = image_view(x.shape, last), image_view(self.y.shape, last)

        def make(source: Desc) -> Primitive | None:
            # Blocked in, blocked out; plain in, plain out.
            plain = plain_in(self.y_view, source.code)
            target = plain if isinstance(source.order, tuple) else plain.free
            return _forward(algorithm, c.FORWARD_TRAINING, source, target, w, threads=ctx.threads)

        orders = (orders_of(x, self.view, code) for code in types_as_given(ctx, x))
        self.primitive = first_fast(make, ((order,) for of_type in orders for order in of_type))

    @property
    def specs(self) -> tuple[TensorSpec, TensorSpec]:
        """The specs of X and of Y that the primitive takes and gives."""
        assert self.primitive is not None
        return (
            self.primitive.spec(c.SRC, self.x.plain, self.view),
            self.primitive.spec(c.DST, self.y, self.y_view),
        )

    def backward(self, ctx: PlanContext, w: Geometry, algorithm: int) -> Primitive | None:
        """Return the backward primitive, in just the orders of the forward one."""
        forward = self.primitive
        if forward is None:
            return None
        source = forward.desc(c.SRC, self.view)
        target = forward.desc(c.DST, self.y_view)
        return _backward(algorithm, source, target, w, forward, threads=ctx.threads)


def max_pool(op: Any, ctx: PlanContext, x: TensorSpec) -> Prepared | None:
    """Prepare MaxPool; behind a Relu, where each maximum stood is published for the gradient."""
    w = _window(op, x)
    if w is None:
        return None
    pool = _Pool(op, ctx, x, w, c.POOLING_MAX)
    if pool.primitive is None:
        return None
    places: dict[int, Any] = {c.SRC: In(0), c.DST: Out(0)}
    if pool.primitive.workspace:
        places[c.WORKSPACE] = Held(pool.primitive.workspace)
    if ctx.published(0, NOT_NEGATIVE):
        ctx.publish(0, NOT_NEGATIVE, True)
        if ctx.enabled("kept_maxima"):
            ctx.publish(0, _WORKSPACE, (pool, w, places.get(c.WORKSPACE)))
    x_spec, y_spec = pool.specs
    return prepared([x_spec], [y_spec], [Step(pool.primitive, places), _with_nan(op, ctx, x_spec, y_spec)])


def _with_nan(op: Any, ctx: PlanContext, x_spec: TensorSpec, y_spec: TensorSpec) -> Any:
    """A step that computes MaxPool again by the kernel over arrays where X holds NaN or an infinity.

    oneDNN passes NaN over, and the greatest of none but NaN and -inf is the least float to it.
    """
    plain = plain_kernel(op.type, CPU)
    assert plain is not None

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        is_finite = finite_check(inputs[0], x_spec)

        def call() -> None:
            if not is_finite():
                (y, *_) = plain(op, ctx.run, convert(inputs[0], x_spec, x_spec.plain, ctx))
                convert(y, y_spec.plain, y_spec, ctx, outputs[0])

        return call

    return bind


def max_pool_gradient(op: Any, ctx: PlanContext, x: TensorSpec, y: TensorSpec, dy: TensorSpec) -> Prepared | None:
    """Prepare MaxPoolGradient: X, Y, dY -> dX, if the forward operator published; X and Y are not read.

    Of several elements of a window that equal the greatest, the first one gets the gradient, where the plain kernel
    gives it to each of them.
    """
    found = ctx.published(1, _WORKSPACE)
    if found is None or dy.dtype != np.float32 or dy.shape != y.shape:
        return None
    pool, w, held = found
    made = pool.backward(ctx, w, c.POOLING_MAX)
    if made is None or held is None or pool.x.plain != x.plain:
        return None
    x_spec, y_spec = pool.specs
    step = Step(made, {c.DIFF_DST: In(2), c.WORKSPACE: held, c.DIFF_SRC: Out(0)})
    return prepared([None, None, y_spec], [x_spec], [step])


def average_pool(op: Any, ctx: PlanContext, x: TensorSpec) -> Prepared | None:
    """Prepare AveragePool."""
    w = _window(op, x)
    if w is None:
        return None
    pool = _Pool(op, ctx, x, w, _average(op))
    if pool.primitive is None:
        return None
    x_spec, y_spec = pool.specs
    return prepared([x_spec], [y_spec], [Step(pool.primitive, {c.SRC: In(0), c.DST: Out(0)})])


def average_pool_gradient(op: Any, ctx: PlanContext, x: TensorSpec, y: TensorSpec, dy: TensorSpec) -> Prepared | None:
    """Prepare AveragePoolGradient: X, Y, dY -> dX, in the layout of X; X and Y are not read."""
    w = _window(op, x)
    if w is None or dy.dtype != np.float32 or dy.shape != _out_shape(op, x):
        return None
    pool = _Pool(op, ctx, x, w, _average(op))
    made = pool.backward(ctx, w, _average(op))
    if made is None:
        return None
    x_spec, y_spec = pool.specs
    step = Step(made, {c.DIFF_DST: In(2), c.DIFF_SRC: Out(0)})
    return prepared([None, None, y_spec], [x_spec], [step])


def _average(op: Any) -> int:
    return c.POOLING_AVERAGE_ALL if getattr(op, "count_include_pad", False) else c.POOLING_AVERAGE_VALID
