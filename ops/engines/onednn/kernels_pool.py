"""MaxPool and AveragePool, forward and backward, on oneDNN.

Where several elements of a window are the greatest, oneDNN gives the gradient to the first of them, while it is due to
each. So its MaxPoolGradient serves only where X comes from a Relu: there nearly all ties are between zeroes, to
which the Relu's own gradient lets nothing through. Elsewhere the kernel over arrays serves.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.contexts import PlanContext, Prepared
from netbuilder.ops.conv_geometry import Geometry
from netbuilder.ops.engines.onednn import declarations as c
from netbuilder.ops.engines.onednn.geometry import channels_last, window_arguments
from netbuilder.ops.engines.onednn.layout import BlockedLayout, Desc, desc_of, image_view, plain_desc
from netbuilder.ops.engines.onednn.primitive import (
    NOT_NEGATIVE,
    Held,
    In,
    Out,
    Primitive,
    Step,
    cached,
    compile_primitive,
    prepared,
)
from netbuilder.ops.operator import TensorSpec

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


def max_pool(op: Any, ctx: PlanContext, x: TensorSpec) -> Prepared | None:
    """Prepare MaxPool; behind a Relu, where each maximum stood is published for the gradient."""
    w = _window(op, x)
    if w is None:
        return None
    last = channels_last(op)
    y = TensorSpec(_out_shape(op, x), x.dtype)
    view, y_view = image_view(x.shape, last), image_view(y.shape, last)
    free = plain_desc(y_view, x.dtype).free
    made = _forward(c.POOLING_MAX, c.FORWARD_TRAINING, desc_of(x, view), _same_order(x, view, free), w,
                    threads=ctx.threads)  # fmt: skip
    if made is None:
        return None
    places: dict[int, Any] = {c.SRC: In(0), c.DST: Out(0)}
    if made.workspace:
        places[c.WORKSPACE] = Held(made.workspace)
    if ctx.published(0, NOT_NEGATIVE):
        ctx.publish(0, NOT_NEGATIVE, True)
        ctx.publish(0, _WORKSPACE, (made, w, places.get(c.WORKSPACE), x.plain))
    return prepared([made.spec(c.SRC, x, view)], [made.spec(c.DST, y, y_view)], [Step(made, places)])


def _same_order(x: TensorSpec, view: Any, free: Desc) -> Desc:
    """Blocked in, blocked out; plain in, plain out."""
    if isinstance(x.layout, BlockedLayout) and x.layout.view == view:
        return free
    return free if view.strides[-1] != 1 else _plain_like(free)


def _plain_like(free: Desc) -> Desc:
    strides = [1] * len(free.dims)
    for i in range(len(free.dims) - 2, -1, -1):
        strides[i] = strides[i + 1] * free.dims[i + 1]
    return Desc(free.dims, free.code, tuple(strides))


def max_pool_gradient(op: Any, ctx: PlanContext, x: TensorSpec, y: TensorSpec, dy: TensorSpec) -> Prepared | None:
    """Prepare MaxPoolGradient: X, Y, dY -> dX, if the forward operator published; X and Y are not read."""
    found = ctx.published(1, _WORKSPACE)
    if found is None or dy.dtype != np.float32 or dy.shape != y.shape:
        return None
    forward, w, held, made_for = found
    if made_for != x.plain or held is None:
        return None
    last = channels_last(op)
    view, y_view = image_view(x.shape, last), image_view(y.shape, last)
    # The workspace is ordered as Y was, so dY has to be, too.
    y_spec = forward.spec(c.DST, dy.plain, y_view)
    x_spec = forward.spec(c.SRC, x.plain, view)
    source, target = (forward.desc(n, v, x.dtype) for n, v in ((c.SRC, view), (c.DST, y_view)))
    made = _backward(c.POOLING_MAX, source, target, w, forward, threads=ctx.threads)
    if made is None:
        return None
    step = Step(made, {c.DIFF_DST: In(2), c.WORKSPACE: held, c.DIFF_SRC: Out(0)})
    return prepared([None, None, y_spec], [x_spec], [step])


def average_pool(op: Any, ctx: PlanContext, x: TensorSpec) -> Prepared | None:
    """Prepare AveragePool."""
    w = _window(op, x)
    if w is None:
        return None
    last = channels_last(op)
    y = TensorSpec(_out_shape(op, x), x.dtype)
    view, y_view = image_view(x.shape, last), image_view(y.shape, last)
    free = plain_desc(y_view, x.dtype).free
    made = _forward(_average(op), c.FORWARD_TRAINING, desc_of(x, view), _same_order(x, view, free), w,
                    threads=ctx.threads)  # fmt: skip
    if made is None:
        return None
    step = Step(made, {c.SRC: In(0), c.DST: Out(0)})
    return prepared([made.spec(c.SRC, x, view)], [made.spec(c.DST, y, y_view)], [step])


def _average(op: Any) -> int:
    return c.POOLING_AVERAGE_ALL if getattr(op, "count_include_pad", False) else c.POOLING_AVERAGE_VALID


def average_pool_gradient(op: Any, ctx: PlanContext, x: TensorSpec, y: TensorSpec, dy: TensorSpec) -> Prepared | None:
    """Prepare AveragePoolGradient: X, Y, dY -> dX, in the layout of X; X and Y are not read."""
    w = _window(op, x)
    if w is None or dy.dtype != np.float32 or dy.shape != _out_shape(op, x):
        return None
    last = channels_last(op)
    view, y_view = image_view(x.shape, last), image_view(dy.shape, last)
    source, free = desc_of(x, view), plain_desc(y_view, x.dtype).free
    algorithm, count = _average(op), ctx.threads
    forward = _forward(algorithm, c.FORWARD_TRAINING, source, _same_order(x, view, free), w, threads=count)
    if forward is None:
        return None
    y_spec = forward.spec(c.DST, dy.plain, y_view)
    made = _backward(algorithm, source, forward.desc(c.DST, y_view, x.dtype), w, forward, threads=count)
    if made is None:
        return None
    step = Step(made, {c.DIFF_DST: In(2), c.DIFF_SRC: Out(0)})
    return prepared([None, None, y_spec], [made.spec(c.DIFF_SRC, x.plain, view)], [step])
