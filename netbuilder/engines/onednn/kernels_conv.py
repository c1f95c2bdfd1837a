"""Conv and ConvTranspose on oneDNN; their gradients are in kernels_conv_gradient.

In bfloat16, the kernels read images and a rounded copy of the weights, and write images; biases are float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn import winograd
from netbuilder.engines.onednn.arguments import In, Out
from netbuilder.engines.onednn.autotune import fastest, time_of_fastest
from netbuilder.engines.onednn.bfloat16 import types_for_products
from netbuilder.engines.onednn.blocked_layout import Desc, element_code, plain_in
from netbuilder.engines.onednn.channels_last import (
    ChannelsLastConvolution,
    can_be_channels_last,
    channels_last_desc,
    forward_channels_last,
)
from netbuilder.engines.onednn.convolutions import (
    Views,
    any_order,
    description_of,
    forward,
    own_order,
    serves,
    worth_measuring,
)
from netbuilder.engines.onednn.machine_code import by_machine_code
from netbuilder.engines.onednn.primitive import Extra, PostOp, Primitive, Step, first_fast, prepared
from netbuilder.engines.onednn.reorders import reorder
from netbuilder.ops.core.contexts import CHANNELS_LAST, NOT_NEGATIVE, Call, PlanContext, Prepared
from netbuilder.ops.core.extensions import MeasuredTime
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["conv", "conv_relu", "conv_transpose", "fused_conv"]


def conv(op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, b: TensorSpec | None = None) -> Prepared | None:
    """Prepare Conv: X, W, [b] -> Y."""
    return _prepare_forward(op, ctx, (x, w, b), transposed=False)


def conv_relu(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare ConvRelu: X, W, [b] -> Y."""
    return fused_conv(op, ctx, specs, relu=True)


def conv_transpose(
    op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, b: TensorSpec | None = None
) -> Prepared | None:
    """Prepare ConvTranspose: X, W, [b] -> Y."""
    return _prepare_forward(op, ctx, (x, w, b), transposed=True)


def fused_conv(
    op: Any, ctx: PlanContext, specs: Sequence[TensorSpec], *, relu: bool = False, add: TensorSpec | None = None
) -> Prepared | None:
    """Prepare Conv with the operators after it in an inference net: Y = relu(conv(X, W, b) + A).

    Args:
        op: the Conv.
        ctx: of the plan.
        specs: of X, W and, if there is one, b.
        relu: whether a Relu follows.
        add: the spec of the addend A, which has the shape of Y, or None. A becomes the last input, and may share its
            buffer with Y (the pair is in ``inplace``; then it is not copied).
    """
    x, w = specs[0], specs[1]
    b = specs[2] if len(specs) > 2 else None
    post = ((PostOp("sum"),) if add is not None else ()) + ((PostOp("product relu"),) if relu else ())
    return _prepare_forward(op, ctx, (x, w, b), transposed=False, post=post, add=add)


def _prepare_forward(
    op: Any,
    ctx: PlanContext,
    specs: tuple[TensorSpec, TensorSpec, TensorSpec | None],
    *,
    transposed: bool,
    post: tuple[PostOp, ...] = (),
    add: TensorSpec | None = None,
) -> Prepared | None:
    x, w, b = specs
    given = [s for s in (x, w, b) if s is not None]
    if not serves(*given):
        return None
    v = Views(op, x, w, transposed=transposed)
    relu = bool(post) and post[-1].kind == "product relu"
    own = by_machine_code(op, ctx, v, specs, add=add is not None, relu=relu)
    measured = worth_measuring(op, ctx, v, x, w)
    depthwise = op.group > 1 and op.group == v.x.dims[1]  # the library is faster, where it need not change the layout
    if own is not None and not measured and not depthwise:
        if relu:
            ctx.publish(0, NOT_NEGATIVE, True)
        return own
    bias = plain_in(v.bias, c.F32) if b is not None else None
    inference = bool(post) or ctx.is_constant(1)  # the library has faster kernels then, such as all depthwise ones

    def make(src: Desc, y: Desc) -> Primitive | None:
        dst = y if add is None else own_order(add, v.y, src.code)
        return forward(
            v.kind, src, any_order(v.weights, src.code), bias, dst, v.window, inference, post, threads=ctx.threads
        )

    codes = types_for_products(ctx)
    made = None
    if ctx.image_order == CHANNELS_LAST and can_be_channels_last(v) and not _reads_plain_images(v):
        made = first_fast(make, [(channels_last_desc(v.x, code), channels_last_desc(v.y, code)) for code in codes])
    last = made is not None and not made.slow
    if not last:
        sources = [
            (src, any_order(v.y, code)) for code in codes for src in (own_order(x, v.x, code), any_order(v.x, code))
        ]
        made = first_fast(make, sources)
    if made is None:
        return None
    if relu:
        ctx.publish(0, NOT_NEGATIVE, True)
    ends = _Endpoints(
        made.spec(c.SRC, x, v.x), b, made.spec(c.DST, TensorSpec(v.y_shape, x.dtype), v.y), add is not None
    )
    direct = ends.direct(made, made.spec(c.WEIGHTS, w, v.weights))
    if own is not None and (ends.x, ends.y) != (own.inputs[0], own.outputs[0]):
        return own
    if not measured:
        return direct
    code = element_code(made.argument(c.SRC))

    def through_channels_last() -> Prepared | None:
        found = forward_channels_last(v, ends.x, ends.y, code, bias, inference, post, threads=ctx.threads)
        return None if found is None else ends.through(found, w)

    def through_winograd() -> Prepared | None:
        found = winograd.forward(
            v, ends.x, ends.y, b is not None, post, constant_weights=ctx.is_constant(1), threads=ctx.threads
        )
        return None if found is None else ends.through(found, w)

    others = {} if last else {"channels last": through_channels_last}
    if ctx.enabled("winograd") and winograd.may_serve(v, code):
        others["winograd"] = through_winograd
    if own is not None:
        others["machine code"] = lambda: own
    if not others:
        return direct
    order = ", images with channels last" if last else ""
    flops = 2 * op.products(x, w)
    return _fastest(f"forward {description_of(v, code)}{order}", ctx, direct, others, flops=flops)


_FEW_CHANNELS = 16  # of images that the library reads in plain order, as fast as in any other


def _reads_plain_images(v: Views) -> bool:
    """Whether to leave a net's images as they are: what a convolution with strides makes of them is less to copy."""
    return v.x.dims[1] < _FEW_CHANNELS and max(v.window[0]) > 1


def _fastest(
    key: str, ctx: PlanContext, direct: Prepared, others: Mapping[str, Callable[[], Prepared | None]], *, flops: int
) -> Prepared:
    """Return the fastest kernel; the time includes the reorder of the weights, which training needs in each step."""
    constant = ctx.is_constant(1)

    def with_reorder(other: Callable[[], Prepared | None]) -> list[Prepared]:
        made = other()
        if made is None:
            return []
        own, needed = direct.inputs[1], made.inputs[1]
        assert own is not None and needed is not None
        return [made] if constant or own == needed else [made, reorder(ctx, own, needed)]

    key = f"{key}{', constant weights' if constant else ''}"
    chosen = fastest(
        key,
        {
            "blocked": lambda: [direct],
            **{name: functools.partial(with_reorder, other) for name, other in others.items()},
        },
        ctx,
        flops=flops,
    )
    made = direct if chosen == "blocked" else others[chosen]() or direct
    seconds = time_of_fastest(key, ctx)
    return made if seconds is None else replace(made).extend(MeasuredTime(seconds))


@dataclass(frozen=True)
class _Endpoints:
    """The specs of X, the bias and Y, which all alternative kernels share; ``add``: whether Y is added to."""

    x: TensorSpec
    b: TensorSpec | None
    y: TensorSpec
    add: bool

    def direct(self, made: Primitive, weights: TensorSpec) -> Prepared:
        arguments: dict[int, Any] = {c.SRC: In(0), c.WEIGHTS: In(1), c.DST: Out(0)}
        if self.b is not None:
            arguments[c.BIAS] = In(2)
        return self._prepared(weights, [Step(made, arguments)])

    def through(self, found: ChannelsLastConvolution | winograd.Winograd, w: TensorSpec) -> Prepared:
        steps = found.steps(In(0), Out(0), In(1), In(2) if self.b is not None else None)
        return self._prepared(found.weights(w), steps, scratch=found.scratch, saved_flops=found.saved_flops)

    def _prepared(self, weights: TensorSpec, steps: Sequence[Step | Extra], **options: Any) -> Prepared:
        inputs = [self.x, weights, *([self.b.plain] if self.b is not None else [])]
        if not self.add:
            return prepared(inputs, [self.y], steps, **options)
        inputs.append(self.y)
        last = len(inputs) - 1
        return prepared(inputs, [self.y], [_copy_into_output(last), *steps], inplace=[(last, 0)], **options)


def _copy_into_output(index: int) -> Any:
    """Return the step that copies an input to output 0, unless they share a buffer."""

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call | None:
        source, target = inputs[index], outputs[0]
        if source.ctypes.data == target.ctypes.data:
            return None
        return lambda: np.copyto(target, source)

    return bind
