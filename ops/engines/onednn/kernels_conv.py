"""Conv and ConvTranspose, forward and backward, on oneDNN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.ops.contexts import Call, PlanContext, Prepared
from netbuilder.ops.engines.onednn import declarations as c
from netbuilder.ops.engines.onednn.geometry import channels_last, window_arguments
from netbuilder.ops.engines.onednn.layout import Desc, View, desc_of, grouped, image_view, plain_desc, row_major
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
    first_fast,
    prepared,
)
from netbuilder.ops.operator import TensorSpec

__all__ = ["conv", "conv_gradient", "conv_transpose", "conv_transpose_gradient", "fused_conv"]

Post = tuple[PostOp, ...]


@cached
def _forward(
    kind: str, src: Desc, weights: Desc, bias: Desc | None, dst: Desc, geometry: Any, inference: bool, post: Post
) -> Primitive:
    prop = c.FORWARD_INFERENCE if inference else c.FORWARD_TRAINING
    return compile_primitive(
        f"{kind}_forward", prop, _ALGORITHM[kind], src.handle, weights.handle, _or_null(bias), dst.handle, *geometry,
        post=post,
    )  # fmt: skip


@cached
def _backward_weights(
    kind: str, src: Desc, weights: Desc, bias: Desc | None, dst: Desc, geometry: Any, hint: Primitive
) -> Primitive:
    return compile_primitive(
        f"{kind}_backward_weights", _ALGORITHM[kind], src.handle, weights.handle, _or_null(bias), dst.handle, *geometry,
        hint=hint,
    )  # fmt: skip


@cached
def _backward_data(kind: str, src: Desc, weights: Desc, dst: Desc, geometry: Any, hint: Primitive) -> Primitive:
    return compile_primitive(
        f"{kind}_backward_data", _ALGORITHM[kind], src.handle, weights.handle, dst.handle, *geometry, hint=hint
    )


_ALGORITHM = {"convolution": c.CONVOLUTION_DIRECT, "deconvolution": c.DECONVOLUTION_DIRECT}


def _or_null(desc: Desc | None) -> Any:
    return dnnl().ffi.NULL if desc is None else desc.handle


class _Views:
    """How oneDNN sees the tensors of a convolution, or of a transposed one."""

    def __init__(self, op: Any, x: TensorSpec, w: TensorSpec, *, transposed: bool) -> None:
        last = channels_last(op)
        group = op.group
        self.kind = "deconvolution" if transposed else "convolution"
        self.x = image_view(x.shape, last)
        weights = image_view(w.shape, last)
        geometry = op.geometry(x, w)
        if transposed:
            self.weights = _transposed_weights(weights, group)
            channels = op.channels_out(w)
        else:
            self.weights = grouped(weights, group)
            channels = weights.dims[0]
        n, spatial = x.shape[0], geometry.out
        self.window = window_arguments(geometry)
        self.y_shape = (n, *spatial, channels) if last else (n, channels, *spatial)
        self.y = image_view(self.y_shape, last)
        self.bias = row_major((channels,))


def _transposed_weights(view: View, group: int) -> View:
    """Return weights stored I, O/G, ... as O, I, ..., or as G, O/G, I/G, ..."""
    (i, o, *kernel), (si, so, *strides) = view.dims, view.strides
    if group == 1:
        return View((o, i, *kernel), (so, si, *strides))
    return View((group, o, i // group, *kernel), (i // group * si, so, si, *strides))


def _serves(*specs: TensorSpec) -> bool:
    return all(s.dtype == np.float32 and s.size > 0 for s in specs) and 3 <= specs[0].ndim <= 5


def _wish(spec: TensorSpec, view: View) -> Desc:
    """A blocked value is taken as it lies; a plain one in whatever order serves best."""
    desc = desc_of(spec, view)
    return desc if spec.layout is not None and not isinstance(desc.order, tuple) else desc.free


def conv(op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, b: TensorSpec | None = None) -> Prepared | None:
    """Prepare Conv: X, W, [b] -> Y."""
    return _prepare_forward(op, ctx, (x, w, b), transposed=False)


def conv_transpose(
    op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, b: TensorSpec | None = None
) -> Prepared | None:
    """Prepare ConvTranspose: X, W, [b] -> Y."""
    return _prepare_forward(op, ctx, (x, w, b), transposed=True)


def fused_conv(
    op: Any, ctx: PlanContext, specs: Sequence[TensorSpec], *, relu: bool = False, add: TensorSpec | None = None
) -> Prepared | None:
    """Prepare Conv with what follows it in an inference net: Y = relu(conv(X, W, b) + A).

    Args:
        op: the Conv.
        ctx: of the plan.
        specs: X, W and, if there is one, b.
        relu: whether a Relu follows.
        add: the addend A, of the shape of Y, or None. It becomes the last input, and may share its memory with Y
            (the pair is in ``inplace``; then it is not copied).
    """
    x, w = specs[0], specs[1]
    b = specs[2] if len(specs) > 2 else None
    post = ((PostOp("sum"),) if add is not None else ()) + ((PostOp("relu"),) if relu else ())
    return _prepare_forward(op, ctx, (x, w, b), transposed=False, inference=True, post=post, add=add)


def _prepare_forward(
    op: Any,
    ctx: PlanContext,
    specs: tuple[TensorSpec, TensorSpec, TensorSpec | None],
    *,
    transposed: bool,
    inference: bool = False,
    post: Post = (),
    add: TensorSpec | None = None,
) -> Prepared | None:
    x, w, b = specs
    given = [s for s in (x, w, b) if s is not None]
    if not _serves(*given):
        return None
    v = _Views(op, x, w, transposed=transposed)
    y = TensorSpec(v.y_shape, x.dtype)
    bias = plain_desc(v.bias, x.dtype) if b is not None else None
    dst = plain_desc(v.y, x.dtype).free
    if add is not None:
        dst = _wish(add, v.y)

    def make(src: Desc) -> Primitive | None:
        weights = plain_desc(v.weights, x.dtype).free
        return _forward(v.kind, src, weights, bias, dst, v.window, inference, post, threads=ctx.threads)

    made = first_fast(make, [(_wish(x, v.x),), (plain_desc(v.x, x.dtype).free,)])
    if made is None:
        return None
    arguments: dict[int, Any] = {c.SRC: In(0), c.WEIGHTS: In(1), c.DST: Out(0)}
    inputs = [made.spec(c.SRC, x, v.x), made.spec(c.WEIGHTS, w, v.weights)]
    if b is not None:
        arguments[c.BIAS] = In(2)
        inputs.append(b.plain)
    out = made.spec(c.DST, y, v.y)
    if post and post[-1].kind == "relu":
        ctx.publish(0, NOT_NEGATIVE, True)
    steps: list[Any] = [Step(made, arguments)]
    if add is None:
        return prepared(inputs, [out], steps)
    inputs.append(out)
    steps.insert(0, _copy_into_output(len(inputs) - 1))
    return prepared(inputs, [out], steps, inplace=[(len(inputs) - 1, 0)])


def _copy_into_output(index: int) -> Any:
    """A step that copies an input to output 0, unless they are the same memory."""

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call | None:
        source, target = inputs[index], outputs[0]
        if source.ctypes.data == target.ctypes.data:
            return None
        return lambda: np.copyto(target, source)

    return bind


def conv_gradient(op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, dy: TensorSpec) -> Prepared | None:
    """Prepare ConvGradient: X, W, dY -> dW, [db], [dX]."""
    return _prepare_gradient(op, ctx, x, w, dy, transposed=False)


def conv_transpose_gradient(op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, dy: TensorSpec) -> Prepared | None:
    """Prepare ConvTransposeGradient: X, W, dY -> dW, [db], [dX]."""
    return _prepare_gradient(op, ctx, x, w, dy, transposed=True)


def _prepare_gradient(
    op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, dy: TensorSpec, *, transposed: bool
) -> Prepared | None:
    if not _serves(x, w, dy):
        return None
    v = _Views(op, x, w, transposed=transposed)
    with_bias = op.computes_db
    with_dx = op.computes_dx
    weights = plain_desc(v.weights, x.dtype).free
    free_x, free_y = plain_desc(v.x, x.dtype).free, plain_desc(v.y, x.dtype).free
    bias = plain_desc(v.bias, x.dtype) if with_bias else None
    geometry, count = v.window, ctx.threads
    hint = _forward(v.kind, free_x, weights, bias, free_y, geometry, False, (), threads=count)
    if hint is None:
        return None

    def make_dw(src: Desc, dst: Desc) -> Primitive | None:
        return _backward_weights(v.kind, src, weights, bias, dst, geometry, hint, threads=count)

    def make_dx(src: Desc, dst: Desc) -> Primitive | None:
        return _backward_data(v.kind, src, weights, dst, geometry, hint, threads=count)

    wish_x, wish_y = _wish(x, v.x), _wish(dy, v.y)
    dw = first_fast(make_dw, [(wish_x, wish_y), (wish_x, free_y), (free_x, free_y)])
    if dw is None:
        return None
    inputs: list[TensorSpec | None] = [dw.spec(c.SRC, x, v.x), None, dw.spec(c.DIFF_DST, dy, v.y)]
    outputs = [dw.spec(c.DIFF_WEIGHTS, w.plain, v.weights)]
    places: dict[int, Any] = {c.SRC: In(0), c.DIFF_DST: In(2), c.DIFF_WEIGHTS: Out(0)}
    if with_bias:
        places[c.DIFF_BIAS] = Out(1)
        outputs.append(TensorSpec(v.bias.dims, x.dtype))
    steps = [Step(dw, places)]
    if with_dx:
        # Both primitives read one dY, so the second has to take what the first has chosen.
        chosen_y = dw.desc(c.DIFF_DST, v.y, x.dtype)
        dx = first_fast(make_dx, [(wish_x, chosen_y), (free_x, chosen_y)])
        if dx is None:
            return None
        inputs[1] = dx.spec(c.WEIGHTS, w, v.weights)
        outputs.append(dx.spec(c.DIFF_SRC, x.plain, v.x))
        steps.append(Step(dx, {c.DIFF_DST: In(2), c.WEIGHTS: In(1), c.DIFF_SRC: Out(len(outputs) - 1)}))
    return prepared(inputs, outputs, steps)
