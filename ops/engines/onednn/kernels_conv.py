"""Conv and ConvTranspose on oneDNN; their gradients are in kernels_conv_gradient.

In bfloat16, images and a rounded copy of the weights are read, and images are written; biases are float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.ops.contexts import Call, PlanContext, Prepared
from netbuilder.ops.engines.onednn import declarations as c
from netbuilder.ops.engines.onednn.convolutions import Views, forward, free, serves, wish
from netbuilder.ops.engines.onednn.layout import Desc, plain_in
from netbuilder.ops.engines.onednn.precision import types_for_products
from netbuilder.ops.engines.onednn.primitive import (
    NOT_NEGATIVE,
    In,
    Out,
    PostOp,
    Primitive,
    Step,
    first_fast,
    prepared,
)
from netbuilder.ops.operator import TensorSpec

__all__ = ["conv", "conv_transpose", "fused_conv"]


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
    post: tuple[PostOp, ...] = (),
    add: TensorSpec | None = None,
) -> Prepared | None:
    x, w, b = specs
    given = [s for s in (x, w, b) if s is not None]
    if not serves(*given):
        return None
    v = Views(op, x, w, transposed=transposed)
    y = TensorSpec(v.y_shape, x.dtype)
    bias = plain_in(v.bias, c.F32) if b is not None else None

    def make(src: Desc) -> Primitive | None:
        weights = free(v.weights, src.code)
        dst = free(v.y, src.code) if add is None else wish(add, v.y, src.code)
        return forward(v.kind, src, weights, bias, dst, v.window, inference, post, threads=ctx.threads)

    sources = [(wish(x, v.x, code), free(v.x, code)) for code in types_for_products(ctx)]
    made = first_fast(make, [(src,) for of_type in sources for src in of_type])
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
