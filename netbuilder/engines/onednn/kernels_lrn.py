"""LRN, forward and backward, on oneDNN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn.arguments import In, Out, Workspace
from netbuilder.engines.onednn.bfloat16 import orders_as_given
from netbuilder.engines.onednn.blocked_layout import Desc, View, image_view
from netbuilder.engines.onednn.geometry import channels_last
from netbuilder.engines.onednn.primitive import Primitive, Step, cached, compile_primitive, prepared
from netbuilder.ops.core.contexts import NOT_NEGATIVE, Call, PlanContext, Prepared
from netbuilder.ops.core.extensions import Deferred, DeferredOutputs
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.core.registry import CPU, plain_kernel

__all__ = ["lrn", "lrn_gradient"]


@cached
def _forward(data: Desc, size: int, alpha: float, beta: float, bias: float) -> Primitive:
    return compile_primitive(
        "lrn_forward", c.FORWARD_TRAINING, c.LRN_ACROSS_CHANNELS, data.handle, data.handle, size, alpha, beta, bias
    )


@cached
def _backward(data: Desc, size: int, alpha: float, beta: float, bias: float, hint: Primitive) -> Primitive:
    return compile_primitive(
        "lrn_backward", c.LRN_ACROSS_CHANNELS, data.handle, data.handle, data.handle, size, alpha, beta, bias, hint=hint
    )


_LRN = "onednn lrn"


def _parameters(op: Any) -> tuple[int, float, float, float]:
    return int(op.size), float(op.alpha), float(op.beta), float(op.bias)


def _over(op: Any, ctx: PlanContext, x: TensorSpec, view: View) -> Primitive | None:
    """Return the forward primitive for the first layout of X in which it and the backward one are fast."""
    parameters, slow = _parameters(op), None
    for data in orders_as_given(ctx, view, x):
        forward = _forward(data, *parameters, threads=ctx.threads)
        if forward is None or forward.slow:
            continue
        backward = _backward(data, *parameters, forward, threads=ctx.threads)
        if backward is not None and not backward.slow:
            return forward
        slow = slow or forward
    return slow


def lrn(op: Any, ctx: PlanContext, x: TensorSpec) -> Prepared | None:
    """Prepare LRN: X -> Y, [scale]; None if the scale is read in each run, because oneDNN does not compute it."""
    if x.dtype != np.float32 or x.ndim != 4 or x.size == 0:
        return None
    demand = ctx.demand(1, (0,)) if op.n_out > 1 else "never"
    if demand == "run":
        return None
    if op.size % 2 == 0:
        return None  # the longer half of such a window is before the channel in oneDNN, and after it in Caffe2
    if op.size == 1:
        return None  # oneDNN 3.2 crashes while it compiles the gradient for channels last
    view = image_view(x.shape, channels_last(op))
    if op.size > 5 and view.dims[1] % 16:
        return None  # oneDNN 3.2 computes a wrong gradient for channels last
    made = _over(op, ctx, x, view)
    if made is None:
        return None
    arguments: dict[int, Any] = {c.SRC: In(0), c.DST: Out(0)}
    if made.workspace:
        arguments[c.WORKSPACE] = Workspace(made.workspace)
    ctx.publish(0, _LRN, (made, arguments.get(c.WORKSPACE)))
    if ctx.published(0, NOT_NEGATIVE):
        ctx.publish(0, NOT_NEGATIVE, True)
    spec = made.spec(c.SRC, x, view)
    y_spec = made.spec(c.DST, x.plain, view)
    result = prepared([spec], [y_spec, None][: op.n_out], [Step(made, arguments)])
    if demand == "fetch":
        result.extend(DeferredOutputs({1: Deferred(lambda: _scale(op, ctx.run, x.plain), (0,))}))
    return result


def _scale(op: Any, run: Any, x: TensorSpec) -> Prepared:
    """Prepare the scale of LRN alone, by the plain kernel."""
    plain = plain_kernel("LRN", CPU)
    assert plain is not None

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        return lambda: np.copyto(outputs[0], plain(op, run, inputs[0])[1])

    return Prepared([x], [x], bind, name="plain")


def lrn_gradient(op: Any, ctx: PlanContext, x: TensorSpec, y: TensorSpec, dy: TensorSpec) -> Prepared | None:
    """Prepare LRNGradient: X, Y, dY -> dX; None unless the forward operator published its primitive."""
    found = ctx.published(1, _LRN)
    if found is None or dy.dtype != np.float32:
        return None
    forward, workspace = found
    view = image_view(x.shape, channels_last(op))
    spec = forward.spec(c.SRC, x.plain, view)
    made = _backward(forward.desc(c.SRC, view), *_parameters(op), forward, threads=ctx.threads)
    if made is None or made.slow:
        return None  # the plain kernel is faster than the library's reference
    arguments: dict[int, Any] = {c.SRC: In(0), c.DIFF_DST: In(2), c.DIFF_SRC: Out(0)}
    if workspace is not None:
        arguments[c.WORKSPACE] = workspace
    return prepared([spec, None, spec], [spec], [Step(made, arguments)])
