"""Batch normalization over the parts of a batch on oneDNN: ChannelStats, ChannelBackpropStats, the gradient of a part.

The library has no primitive that sums products per channel. The gradient of the weights of a depthwise convolution with
a filter of 1x1 is that, and the gradient of its bias is the sum per channel: one primitive reads each value once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn.arguments import In, MemoryRef, Out, Persistent, ScratchAllocator, resolve
from netbuilder.engines.onednn.bfloat16 import orders_as_given
from netbuilder.engines.onednn.blocked_layout import Desc, View, image_view, per_channel, plain_in, row_major
from netbuilder.engines.onednn.convolutions import any_order, backward_weights, forward
from netbuilder.engines.onednn.geometry import channels_last
from netbuilder.engines.onednn.library import dnnl
from netbuilder.engines.onednn.primitive import (
    PostOp,
    Primitive,
    Step,
    cached,
    compile_primitive,
    post_argument,
    prepared,
)
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["channel_backprop_stats", "channel_stats", "gradient_of_part", "serves_gradient"]


def serves_gradient(x: TensorSpec, *others: TensorSpec) -> bool:
    """Whether the library has sums and gradients of a normalization over images like ``x``: in float32, not empty."""
    return x.size > 0 and 3 <= x.ndim <= 5 and all(spec.dtype == np.float32 for spec in (x, *others))


@cached
def _product(data: Desc, other: Desc, post: tuple[PostOp, ...]) -> Primitive:
    """Return the primitive that multiplies a value by another one, which may be broadcast."""
    return compile_primitive("binary", c.BINARY_MUL, data.handle, other.handle, data.handle, post=post)


def _products(ctx: PlanContext, view: View, x: TensorSpec, *others: TensorSpec) -> Primitive | None:
    """Return the primitive for the sums per channel of the products of two images, and of the second one.

    None if the library has no kernel made for depthwise convolutions, because the others are slower than NumPy.
    """
    channels, axes = view.dims[1], len(view.dims) - 2
    filter_view = row_major((channels, 1, 1, *[1] * axes))
    sums = plain_in(row_major((channels,)), c.F32)
    window = ((1,) * axes, *[(0,) * axes] * 3)
    weights = any_order(filter_view, c.F32)
    for data in orders_as_given(ctx, view, x, *others):
        hint_weights = any_order(filter_view, data.code)
        hint = forward("convolution", data, hint_weights, sums, data, window, False, (), threads=ctx.threads)
        if hint is None:
            continue
        made = backward_weights("convolution", data, weights, sums, data, window, hint, threads=ctx.threads)
        if made is not None and "jit_dw" in made.name:
            found: Primitive = made
            return found
    return None


def channel_stats(op: Any, ctx: PlanContext, x: TensorSpec, *weight: TensorSpec) -> Prepared | None:
    """Prepare ChannelStats: X, [weight] -> sum, sumsq, [count]."""
    if not serves_gradient(x):
        return None
    view = image_view(x.shape, channels_last(op))
    made = _products(ctx, view, x)
    if made is None:
        return None
    spec, channel, one = made.spec(c.SRC, x, view), TensorSpec((view.dims[1],), x.dtype), TensorSpec((1,), x.dtype)
    scratch = ScratchAllocator()
    squares = scratch.allocate(made.nbytes(c.DIFF_WEIGHTS))  # blocks of channels are padded
    execution = Step(made, {c.SRC: In(0), c.DIFF_DST: In(0), c.DIFF_WEIGHTS: squares, c.DIFF_BIAS: Out(0)})
    count = x.size // channel.size

    def finish(inputs: Sequence[Any], outputs: Sequence[Any], memory: Any) -> Call:
        found = resolve(squares, inputs, outputs, memory).view(np.float32)[: channel.size]

        def call() -> None:
            outputs[1][...] = found
            if len(outputs) > 2:
                outputs[2][...] = count
            if len(inputs) > 1 and inputs[1].reshape(-1)[0] == 0:
                for output in outputs:
                    output[...] = 0

        return call

    outputs = [channel, channel, one][: op.n_out]
    inputs = [spec, *(each.plain for each in weight)]
    return prepared(inputs, outputs, [execution, finish], scratch=scratch.nbytes)


def channel_backprop_stats(
    op: Any, ctx: PlanContext, x: TensorSpec, mean: TensorSpec, inverse: TensorSpec, dy: TensorSpec
) -> Prepared | None:
    """Prepare ChannelBackpropStats: X, mean, inverse deviation, dY -> dscale, dbias."""
    if not serves_gradient(x, mean, inverse, dy):
        return None
    view = image_view(x.shape, channels_last(op))
    made = _products(ctx, view, x, dy)
    if made is None:
        return None
    channel = TensorSpec((view.dims[1],), x.dtype)
    scratch = ScratchAllocator()
    products = scratch.allocate(made.nbytes(c.DIFF_WEIGHTS))
    execution = Step(made, {c.SRC: In(0), c.DIFF_DST: In(3), c.DIFF_WEIGHTS: products, c.DIFF_BIAS: Out(1)})

    def finish(inputs: Sequence[Any], outputs: Sequence[Any], memory: Any) -> Call:
        found = resolve(products, inputs, outputs, memory).view(np.float32)[: channel.size]
        _, mean, inverse, _ = inputs
        dscale, dbias = outputs
        centered = np.empty(channel.size)

        def call() -> None:
            np.multiply(mean, dbias, centered, dtype=np.float64)
            np.subtract(found, centered, centered)
            np.multiply(centered, inverse, centered)
            dscale[...] = centered

        return call

    inputs = [made.spec(c.SRC, x, view), mean.plain, inverse.plain, made.spec(c.DIFF_DST, dy, view)]
    return prepared(inputs, [channel, channel], [execution, finish], scratch=scratch.nbytes)


def gradient_of_part(
    op: Any,
    ctx: PlanContext,
    x: TensorSpec,
    scale: TensorSpec,
    dy: TensorSpec,
    mean: TensorSpec,
    inverse: TensorSpec,
    *sums: TensorSpec,
) -> Prepared | None:
    """Prepare SpatialBNGradient for a part of a batch: dX is a linear function of X and dY, in one pass.

    Args:
        op: the SpatialBNGradient.
        ctx: of the plan.
        x, scale, dy, mean, inverse: its inputs.
        sums: the gradients of scale and bias summed over all parts, and possibly the count and the weight.
    """
    if not serves_gradient(x, scale, dy) or op.num_batches <= 1 or bool(op.is_test) or len(sums) < 2:
        return None
    view = image_view(x.shape, channels_last(op))
    if all(extent == 1 for extent in view.dims[2:]):
        return None  # oneDNN 3.2 adds the number of another channel to images of one pixel
    made = _linear_over(ctx, view, x, dy)
    if made is None:
        return None
    primitive, channels = made
    channel = TensorSpec((view.dims[1],), x.dtype)
    factors = [Persistent(_nbytes(channels)) for _ in range(3)]
    arguments: dict[int, MemoryRef] = {c.SRC: In(0), c.SRC_1: factors[0], c.DST: Out(0)}
    arguments |= {post_argument(0): factors[1], post_argument(1): In(2), post_argument(2): factors[2]}
    count = x.size // channel.size * op.num_batches

    def prepare(inputs: Sequence[Any], outputs: Sequence[Any], memory: Any) -> Call:
        _, scale, _, mean, inverse, dscale_sum, dbias_sum, *rest = inputs
        of_x, offset, of_all = (each.buffer.view(np.float32)[: channel.size] for each in factors)
        _, dscale, dbias = outputs
        per_x, per_one = (np.empty(channel.size) for _ in range(2))

        def call() -> None:
            counted = max(float(rest[0].reshape(-1)[0]), 1.0) if rest else count
            np.multiply(dscale_sum, inverse, per_x, dtype=np.float64)
            np.divide(per_x, -counted, per_x)
            np.multiply(per_x, mean, per_one)
            np.add(per_one, np.divide(dbias_sum, counted, dtype=np.float64), per_one)
            of_x[...] = per_x
            np.negative(per_one, offset, casting="same_kind")
            np.multiply(scale, inverse, of_all)
            if len(rest) > 1 and rest[1].reshape(-1)[0] == 0:
                of_all[...] = 0
            np.divide(dscale_sum, op.num_batches, dscale)
            np.divide(dbias_sum, op.num_batches, dbias)

        return call

    data = primitive.spec(c.SRC, x, view)
    inputs = [data, scale.plain, data, mean.plain, inverse.plain, *(each.plain for each in sums)]
    return prepared(
        inputs,
        [data, channel, channel],
        [prepare, Step(primitive, arguments)],
        inplace=[(2, 0), (5, 1), (6, 2)],
    )


def _linear_over(ctx: PlanContext, view: View, x: TensorSpec, dy: TensorSpec) -> tuple[Primitive, Desc] | None:
    """Return the primitive for (X * a + b + dY) * c with a, b and c per channel, and the description of these."""
    for data in orders_as_given(ctx, view, x, dy):
        channels = per_channel(data)
        post = (PostOp("add", channels), PostOp("add", data), PostOp("multiply", channels))
        made = _product(data, channels, post, threads=ctx.threads)
        if made is not None and not made.slow:
            return made, channels
    return None


def _nbytes(desc: Desc) -> int:
    return int(dnnl().lib.dnnl_memory_desc_get_size(desc.handle))
