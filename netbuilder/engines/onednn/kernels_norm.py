"""SpatialBN, alone and fused with the Relu after it, forward and backward, on oneDNN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from netbuilder.engines.arrays import aligned_empty
from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn.arguments import (
    Constant,
    In,
    MemoryRef,
    Out,
    Persistent,
    SavedCopy,
    Workspace,
)
from netbuilder.engines.onednn.bfloat16 import orders_as_given
from netbuilder.engines.onednn.blocked_layout import Desc, View, image_view
from netbuilder.engines.onednn.geometry import channels_last
from netbuilder.engines.onednn.kernels_parts import gradient_of_part, serves_gradient
from netbuilder.engines.onednn.primitive import (
    RELU,
    Primitive,
    Step,
    cached,
    compile_primitive,
    first_fast,
    prepared,
)
from netbuilder.ops.core.contexts import NOT_NEGATIVE, Call, PlanContext, Prepared
from netbuilder.ops.core.extensions import Again, Deferred, DeferredOutputs
from netbuilder.ops.core.operator import TensorSpec

__all__ = [
    "fused_bn_relu",
    "fused_bn_relu_gradient",
    "fused_relu_gradient_stats",
    "spatial_bn",
    "spatial_bn_gradient",
]

_VARIANCE = "onednn batch variance"
_RELU = "onednn relu after batch normalization"


@cached
def _forward(prop: int, data: Desc, epsilon: float, flags: int) -> Primitive:
    return compile_primitive("batch_normalization_forward", prop, data.handle, data.handle, epsilon, flags)


@cached
def _backward(data: Desc, diff: Desc, epsilon: float, flags: int, hint: Primitive) -> Primitive:
    return compile_primitive(
        "batch_normalization_backward", c.BACKWARD, diff.handle, diff.handle, data.handle, epsilon, flags, hint=hint
    )


def _serves(x: TensorSpec) -> bool:
    return x.dtype == np.float32 and x.size > 0 and 2 <= x.ndim <= 5


def spatial_bn(
    op: Any, ctx: PlanContext, x: TensorSpec, scale: TensorSpec, bias: TensorSpec, *stats: TensorSpec
) -> Prepared | None:
    """Prepare SpatialBN: X, scale, bias, running mean, running variance -> Y, and in training four statistics.

    For a part of a batch, the sums over all parts follow, and possibly their number of elements.
    """
    return _prepare_forward(op, ctx, x, scale, bias, stats, relu=False)


def fused_bn_relu(
    op: Any, ctx: PlanContext, x: TensorSpec, scale: TensorSpec, bias: TensorSpec, *stats: TensorSpec
) -> Prepared | None:
    """Prepare a SpatialBN with the Relu that follows it; output 0 is the Relu's.

    In training, the mask of the Relu is published with outputs 0 and 4, for ``fused_bn_relu_gradient`` or, for a part
    of a batch, ``fused_relu_gradient_stats``.

    Args:
        op: the SpatialBN.
        ctx: of the plan.
        x, scale, bias, stats: the inputs of the SpatialBN.
    """
    return _prepare_forward(op, ctx, x, scale, bias, stats, relu=True)


def _prepare_forward(
    op: Any, ctx: PlanContext, x: TensorSpec, scale: TensorSpec, bias: TensorSpec, stats: Any, *, relu: bool
) -> Prepared | None:
    test, parts = bool(op.is_test), op.num_batches > 1 and not op.is_test
    if not _serves(x) or len(stats) not in ((4, 5) if parts else (2,)) or op.n_out != (1 if test else 5):
        return None
    view = image_view(x.shape, channels_last(op))
    flags = c.USE_SCALE | c.USE_SHIFT | (c.FUSE_RELU if relu and not test else 0)
    prop = c.FORWARD_INFERENCE if test or parts and not relu else c.FORWARD_TRAINING
    all_flags = flags | (c.GLOBAL_STATS if test or parts else 0)
    made = _forward_over(ctx, prop, x, view, float(op.epsilon), all_flags)
    if made is None:
        return None
    if relu:
        ctx.publish(0, NOT_NEGATIVE, True)
    spec, channel = made.spec(c.SRC, x, view), TensorSpec((view.dims[1],), x.dtype)
    inputs = [spec, scale.plain, bias.plain, *(each.plain for each in stats)]
    if test:
        return _test_mode(ctx, made, inputs, made.desc(c.DST, view), relu=relu)
    variance = Persistent(4 * channel.size)
    count = x.size // channel.size
    data, epsilon = made.desc(c.SRC, view), float(op.epsilon)
    arguments = _arguments(Out(3), variance)
    if made.workspace:
        arguments[c.WORKSPACE] = Workspace(made.workspace)
    if relu:
        for output in (0, 4):
            ctx.publish(output, _RELU, (made, arguments.get(c.WORKSPACE)))
    steps: list[Any] = [Step(made, arguments)]
    if parts:
        steps.insert(0, _of_parts(float(op.momentum), epsilon, count * op.num_batches, variance))
    else:
        ctx.publish(4, _VARIANCE, variance)
        steps.append(_running(float(op.momentum), epsilon, count, variance))
    if relu:
        steps.append(_with_nan(ctx, data, epsilon, Out(3), variance))
    result = prepared(inputs, [spec, channel, channel, channel, channel], steps, inplace=[(3, 1), (4, 2)])
    if ctx.ends_early(0, (0,)):
        _defer(ctx, result, data, epsilon, variance, relu=relu)
    again = _again(ctx, data, epsilon, variance, inputs, channel, relu=relu)
    return result if again is None else result.extend(Again(again))


def _test_mode(
    ctx: PlanContext, made: Primitive, inputs: Sequence[TensorSpec], y: Desc, *, relu: bool
) -> Prepared | None:
    arguments: dict[int, Any] = {
        c.SRC: In(0), c.SCALE: In(1), c.SHIFT: In(2), c.MEAN: In(3), c.VARIANCE: In(4), c.DST: Out(0)
    }  # fmt: skip
    steps: list[Any] = [Step(made, arguments)]
    if relu:
        over = _relu(y, threads=ctx.threads)
        if over is None:
            return None
        steps.append(Step(over, {c.SRC: Out(0), c.DST: Out(0)}))
    return prepared(inputs, [inputs[0]], steps, inplace=[(0, 0)])


def _again(
    ctx: PlanContext,
    data: Desc,
    epsilon: float,
    variance: Persistent,
    inputs: Sequence[TensorSpec],
    channel: TensorSpec,
    *,
    relu: bool,
) -> Prepared | None:
    """Prepare the kernel that computes output 0 again, from the statistics of the batch."""
    steps = _from_statistics(ctx, data, epsilon, In(len(inputs) + 3), variance, relu=relu)
    if steps is None:
        return None
    unread: list[TensorSpec | None] = [None] * len(inputs)
    return prepared([*inputs[:3], *unread[3:], None, None, None, channel, None], [inputs[0]], steps)


def _from_statistics(
    ctx: PlanContext, data: Desc, epsilon: float, mean: MemoryRef, variance: Persistent, *, relu: bool
) -> list[Any] | None:
    """Return the executions that compute output 0 from the statistics of the batch."""
    flags = c.USE_SCALE | c.USE_SHIFT | c.GLOBAL_STATS | (c.FUSE_RELU if relu else 0)
    made = _forward(c.FORWARD_INFERENCE, data, epsilon, flags, threads=ctx.threads)
    if made is None:
        return None
    steps: list[Any] = [Step(made, _arguments(mean, variance))]
    return [*steps, _with_nan(ctx, data, epsilon, mean, variance)] if relu else steps


def _defer(ctx: PlanContext, made: Prepared, data: Desc, epsilon: float, variance: Persistent, *, relu: bool) -> None:
    """Declare how output 0 is computed when it is fetched: each call saves the parameters and the mean of the batch."""
    spec, scale, bias = made.inputs[:3]
    assert spec is not None and scale is not None and bias is not None
    mean = Persistent(scale.nbytes)
    again = _from_statistics(ctx, data, epsilon, mean, variance, relu=relu)
    if again is None:
        return
    saved, bind_alone = {1: SavedCopy(scale), 2: SavedCopy(bias)}, made.bind

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        call, copy_to = bind_alone(inputs, outputs, scratch), np.copyto
        copies = [(each.buffer, inputs[i]) for i, each in saved.items()]
        copies.append((mean.buffer[: scale.nbytes].view(scale.dtype), outputs[3]))

        def call_and_copy() -> None:
            call()
            for target, source in copies:
                copy_to(target, source)

        return call_and_copy

    def prepare() -> Prepared:
        return prepared([spec, scale, bias, None, None], [spec], again)

    made.bind = bind
    made.extend(DeferredOutputs({0: Deferred(prepare, (0,), saved)}))


def _arguments(mean: MemoryRef, variance: Persistent) -> dict[int, Any]:
    """Return the arguments of a normalization with given statistics."""
    return {c.SRC: In(0), c.SCALE: In(1), c.SHIFT: In(2), c.MEAN: mean, c.VARIANCE: variance, c.DST: Out(0)}


def _with_nan(ctx: PlanContext, data: Desc, epsilon: float, mean: MemoryRef, variance: Persistent) -> Any:
    """Return the step that, if the input has NaN or infinities, computes the output again, with a Relu that keeps NaN.

    The Relu fused into the primitive turns NaN into 0. An element that is not finite makes the variance of its channel
    NaN, so checking the variances is enough.
    """

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        scale, shift, batch, dot = inputs[1], inputs[2], variance.buffer.view(np.float32)[: data.dims[1]], np.dot

        def call() -> None:
            if not math.isfinite(dot(batch, scale) + dot(batch, shift)):
                for step in _normalize_then_relu(ctx, data, epsilon, mean, variance):
                    step.bind(inputs, outputs, aligned_empty(step.primitive.scratch), 0)()

        return call

    return bind


def _normalize_then_relu(
    ctx: PlanContext, data: Desc, epsilon: float, mean: MemoryRef, variance: Persistent
) -> list[Step]:
    """Return the executions that compute output 0 of a fused normalization in two steps, from the batch statistics."""
    flags = c.USE_SCALE | c.USE_SHIFT | c.GLOBAL_STATS
    normalize = _forward(c.FORWARD_INFERENCE, data, epsilon, flags, threads=ctx.threads)
    relu = _relu(data, threads=ctx.threads)
    assert normalize is not None and relu is not None, "both exist wherever the fused primitive exists"
    return [Step(normalize, _arguments(mean, variance)), Step(relu, {c.SRC: Out(0), c.DST: Out(0)})]


@cached
def _relu(data: Desc) -> Primitive:
    """Return a Relu that keeps NaN; it may work in place."""
    algorithm, alpha = RELU
    return compile_primitive("eltwise_forward", c.FORWARD_TRAINING, algorithm, data.handle, data.handle, alpha, 0.0)


def _forward_over(
    ctx: PlanContext, prop: int, x: TensorSpec, view: View, epsilon: float, flags: int
) -> Primitive | None:
    """Return the forward primitive for X in its layout or, if that is slow, in another layout."""

    def make(data: Desc) -> Primitive | None:
        made: Primitive | None = _forward(prop, data, epsilon, flags, threads=ctx.threads)
        return made

    return first_fast(make, ((order,) for order in orders_as_given(ctx, view, x)))


def _running(momentum: float, epsilon: float, count: int, variance: Persistent) -> Any:
    """Return the step that updates the running statistics and writes the inverse deviation of the batch."""
    unbiased = count / max(count - 1, 1)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        old_mean, old_variance = inputs[3], inputs[4]
        _, new_mean, new_variance, mean, inverse = outputs
        batch = variance.buffer.view(np.float32)
        rest = np.empty_like(mean)
        keep, share, share_unbiased, small, one = (
            np.array(number, np.float32) for number in (momentum, 1 - momentum, (1 - momentum) * unbiased, epsilon, 1)
        )
        multiply, add, sqrt, divide = np.multiply, np.add, np.sqrt, np.divide

        def call() -> None:
            multiply(mean, share, rest)
            multiply(old_mean, keep, new_mean)
            add(new_mean, rest, new_mean)
            multiply(batch, share_unbiased, rest)
            multiply(old_variance, keep, new_variance)
            add(new_variance, rest, new_variance)
            add(batch, small, rest)
            sqrt(rest, rest)
            divide(one, rest, inverse)

        return call

    return bind


def _of_parts(momentum: float, epsilon: float, count: int, variance: Persistent) -> Any:
    """Return the step that computes the statistics of a batch from the sums over its parts, and the running ones.

    As in the plain kernel: in float64, and sums over no elements change nothing.

    Args:
        count: the number of elements per channel, if it is not an input.
    """

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        old_mean, old_variance, sums, squares, *total = inputs[3:]
        _, new_mean, new_variance, mean, inverse = outputs
        batch = variance.buffer.view(np.float32)[: mean.size]
        first, second, rest = (np.empty(mean.size) for _ in range(3))

        def call() -> None:
            found = float(total[0].reshape(-1)[0]) if total else float(count)
            counted, share = max(found, 1.0), 1.0 - momentum if found > 0 else 0.0
            unbiased = counted / max(counted - 1.0, 1.0)
            np.divide(sums, counted, first)
            np.divide(squares, counted, second)
            np.multiply(first, first, rest)
            np.subtract(second, rest, second)
            np.maximum(second, 0.0, out=second)
            for old, new, value, part in (
                (old_mean, new_mean, first, share), (old_variance, new_variance, second, share * unbiased)
            ):  # fmt: skip
                np.multiply(value, part, rest)
                np.add(rest, np.multiply(old, 1.0 - share, dtype=np.float64), rest)
                new[...] = rest
            mean[...], batch[...] = first, second
            np.add(second, epsilon, rest)
            np.sqrt(rest, rest)
            np.divide(1.0, rest, rest)
            inverse[...] = rest

        return call

    return bind


def spatial_bn_gradient(
    op: Any,
    ctx: PlanContext,
    x: TensorSpec,
    scale: TensorSpec,
    dy: TensorSpec,
    mean: TensorSpec,
    inverse: TensorSpec,
    *sums: TensorSpec,
) -> Prepared | None:
    """Prepare SpatialBNGradient: X, scale, dY, saved mean, saved inverse deviation -> dX, dscale, dbias.

    The variance is the one that the forward operator published, or is computed from the inverse deviation. For a part
    of a batch, the sums of the gradients over all parts follow, see ``gradient_of_part``.
    """
    if sums:
        return gradient_of_part(op, ctx, x, scale, dy, mean, inverse, *sums)
    return _prepare_gradient(op, ctx, x, scale, dy, relu=False)


def fused_bn_relu_gradient(
    op: Any,
    ctx: PlanContext,
    x: TensorSpec,
    scale: TensorSpec,
    dy: TensorSpec,
    mean: TensorSpec,
    inverse: TensorSpec,
) -> Prepared | None:
    """Prepare the gradient of ``fused_bn_relu``; None unless the forward operator published the mask of the Relu.

    Args:
        op: the SpatialBNGradient.
        ctx: of the plan.
        x, scale, mean, inverse: as in SpatialBNGradient.
        dy: gradient of the Relu's output.
    """
    return _prepare_gradient(op, ctx, x, scale, dy, relu=True)


def _prepare_gradient(
    op: Any, ctx: PlanContext, x: TensorSpec, scale: TensorSpec, dy: TensorSpec, *, relu: bool
) -> Prepared | None:
    if not serves_gradient(x, dy) or bool(op.is_test) or op.num_batches > 1:
        return None
    view, epsilon = image_view(x.shape, channels_last(op)), float(op.epsilon)
    found = _backward_after(ctx, x, view, epsilon, relu_of=4 if relu else None)
    if found is None:
        return None
    made, arguments = found
    spec, channel = made.spec(c.SRC, x, view), TensorSpec((view.dims[1],), x.dtype)
    variance = ctx.published(4, _VARIANCE)
    inputs: list[TensorSpec | None] = [spec, scale.plain, spec, channel, None]
    steps: list[Any] = []
    if variance is None:
        inputs[4] = channel
        variance = Persistent(4 * channel.size)
        steps.append(_variance_from_inverse(epsilon, variance))
    arguments |= {c.SCALE: In(1), c.DIFF_DST: In(2), c.MEAN: In(3), c.VARIANCE: variance}
    steps.append(Step(made, arguments))
    return prepared(inputs, [spec, channel, channel], steps, inplace=[(2, 0)])


def fused_relu_gradient_stats(
    op: Any, ctx: PlanContext, x: TensorSpec, mean: TensorSpec, inverse: TensorSpec, dy: TensorSpec
) -> Prepared | None:
    """Prepare ReluGradient and the ChannelBackpropStats after it, for a part of a batch, in one pass.

    The outputs are the gradient of the Relu's input, which is exact, and those of ChannelBackpropStats: the primitive
    is given a variance and a scale of 1. None unless the forward operator published the mask of the Relu.

    Args:
        op: the ChannelBackpropStats.
        ctx: of the plan.
        x, mean, inverse: as in ChannelBackpropStats.
        dy: gradient of the Relu's output.
    """
    if not serves_gradient(x, dy):
        return None
    view = image_view(x.shape, channels_last(op))
    found = _backward_after(ctx, x, view, 0.0, relu_of=2, flags=c.GLOBAL_STATS)
    if found is None:
        return None
    made, arguments = found
    spec, channel = made.spec(c.SRC, x, view), TensorSpec((view.dims[1],), x.dtype)
    one = Constant(np.ones(channel.size, np.float32))
    arguments |= {c.SCALE: one, c.DIFF_DST: In(3), c.MEAN: In(1), c.VARIANCE: one}

    def normalize(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        return partial(np.multiply, outputs[1], inputs[2], outputs[1])

    inputs = [spec, channel, channel, spec]
    return prepared(inputs, [spec, channel, channel], [Step(made, arguments), normalize], inplace=[(3, 0)])


def _backward_after(
    ctx: PlanContext, x: TensorSpec, view: View, epsilon: float, *, relu_of: int | None, flags: int = 0
) -> tuple[Primitive, dict[int, Any]] | None:
    """Return the primitive of the gradient, and the arguments that it always has; None if there is none.

    Args:
        ctx: of the plan.
        x, view: of the normalization.
        epsilon: of the gradient.
        relu_of: the input with which the forward operator published the mask of the Relu; None: without Relu.
        flags: further flags.
    """
    flags |= c.USE_SCALE | c.USE_SHIFT | (0 if relu_of is None else c.FUSE_RELU)
    forward = mask = None
    if relu_of is None:
        forward = _forward_over(ctx, c.FORWARD_TRAINING, x, view, epsilon, flags)
    elif (found := ctx.published(relu_of, _RELU)) is not None:
        forward, mask = found
    if forward is None:
        return None
    data = forward.desc(c.SRC, view)
    made = _backward(data, data, epsilon, flags, forward, threads=ctx.threads)
    if made is None:
        return None
    arguments: dict[int, Any] = {c.SRC: In(0), c.DIFF_SRC: Out(0), c.DIFF_SCALE: Out(1), c.DIFF_SHIFT: Out(2)}
    return made, arguments if mask is None else {**arguments, c.WORKSPACE: mask}


def _variance_from_inverse(epsilon: float, variance: Persistent) -> Any:
    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        inverse, result = inputs[4], variance.buffer.view(np.float32)
        minus_two, small, zero = np.float32(-2), np.float32(epsilon), np.float32(0)

        def call() -> None:
            np.power(inverse, minus_two, result)
            np.subtract(result, small, result)
            np.maximum(result, zero, out=result)

        return call

    return bind
