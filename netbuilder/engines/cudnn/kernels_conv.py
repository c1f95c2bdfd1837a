"""Conv and ConvTranspose on cuDNN, their gradients, and Conv with the operators after it in inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from netbuilder.engines.cuda.gpu_layout import WIDE, image_spec
from netbuilder.engines.cuda.pixels import prepared_images
from netbuilder.engines.cuda.steps import Reference, Step, prepared
from netbuilder.engines.cudnn.compiled import graph_of
from netbuilder.engines.cudnn.convolutions import Images, channels_of
from netbuilder.engines.cudnn.element_types import serves, types_for_products
from netbuilder.engines.cudnn.graphs import (
    AddPerChannel,
    ChannelSums,
    Convolution,
    DataGradient,
    FilterGradient,
    Recipe,
    Tensor,
    Window,
)
from netbuilder.engines.references import In, Out
from netbuilder.ops.core.contexts import PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec

__all__ = [
    "conv",
    "conv_gradient",
    "conv_relu",
    "conv_transpose",
    "conv_transpose_gradient",
    "fused_conv",
    "normalize_images",
    "parameter_gradients",
    "scaled_parameter_gradients",
]


def conv(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare Conv: X, W, [b] -> Y."""
    return _in_best_type(_forward, op, ctx, specs)


def conv_relu(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare ConvRelu: X, W, [b] -> Y."""
    return _in_best_type(_forward, op, ctx, specs, relu=True)


def conv_transpose(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare ConvTranspose: X, W, [b] -> Y."""
    return _in_best_type(_forward_transposed, op, ctx, specs)


def conv_gradient(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare ConvGradient: X, W, dY -> dW, [db], [dX]."""
    return _in_best_type(_gradient, op, ctx, specs)


def conv_transpose_gradient(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare ConvTransposeGradient: X, W, dY -> dW, [db], [dX]."""
    return _in_best_type(_gradient, op, ctx, specs, transposed=True)


def normalize_images(op: Any, ctx: PlanContext, x: TensorSpec) -> Prepared | None:
    """Prepare NormalizeImages: X -> Y, stored as the convolutions that read it read images."""
    if not any(ctx.may_be_read_by(0, f"Conv{rest}") for rest in ("", "2D", "Relu", "Transpose")):
        return None
    return prepared_images(op, x, image_spec(op.infer(x.plain)[0], op.order, ctx.precision))


def fused_conv(
    op: Any, ctx: PlanContext, specs: Sequence[TensorSpec], *, relu: bool = False, add: TensorSpec | None = None
) -> Prepared | None:
    """Prepare Conv with the operators after it: Y = relu(conv(X, W, b) + A).

    Args:
        op: the Conv.
        ctx: of the plan.
        specs: of X, W and, if there is one, b.
        relu: whether a Relu follows.
        add: the spec of the addend A, which has the shape of Y, or None; A becomes the last input.
    """
    return _in_best_type(_forward, op, ctx, specs, relu=relu, add=add)


def _in_best_type(make: Any, op: Any, ctx: PlanContext, specs: Sequence[TensorSpec], **options: Any) -> Prepared | None:
    """Return the kernel for the first type of elements that cuDNN has one for."""
    if not serves(*specs) or not 3 <= specs[0].ndim <= 5:
        return None
    for elements in types_for_products(ctx, specs[0]):
        images = Images(op, specs[0].plain, specs[1].plain, elements)
        window = images.window
        made: Prepared | None = make(ctx, images, window, specs, **options) if window is not None else None
        if made is not None:
            return made
    return None


def _forward(
    ctx: PlanContext, images: Images, window: Window, specs: Sequence[TensorSpec], *, relu: bool = False,
    add: TensorSpec | None = None,
) -> Prepared | None:  # fmt: skip
    b = specs[2] if len(specs) > 2 else None
    x, w, y = images.tensor(images.x), images.tensor(images.w), images.tensor(images.y)
    bias = None if b is None else channels_of(b.size, y, b.dtype.name)
    inputs = [images.spec(images.x), images.spec(images.w), *([] if b is None else [b.plain])]
    memory: dict[str, Reference] = {"x": In(0), "w": In(1), "y": Out(0)}
    if b is not None:
        memory["b"] = In(2)
    if add is not None:
        memory["z"] = In(len(inputs))
        inputs.append(images.spec(add.plain))
    tf32 = ctx.allow_tf32
    whole = graph_of(Convolution(x, w, y, window, bias, None if add is None else y, relu, tf32=tf32), ctx)
    outputs = [images.spec(images.y)]
    if whole is not None:
        return prepared(inputs, outputs, [whole.step(memory)])
    if bias is None or add is not None:
        return None
    product = graph_of(Convolution(x, w, y, window, tf32=tf32), ctx)
    steps = _with_bias(ctx, product, {"x": In(0), "w": In(1), "y": Out(0)}, y, bias, relu=relu)
    return None if steps is None else prepared(inputs, outputs, steps)


def _with_bias(
    ctx: PlanContext, product: Any, memory: dict[str, Reference], y: Tensor, bias: Tensor, *, relu: bool = False
) -> list[Any] | None:
    """Return the steps of a product into output 0, and of the bias, input 2, added to it in place."""
    total = graph_of(AddPerChannel(y, bias, relu), ctx)
    if product is None or total is None:
        return None
    return [product.step(memory), total.step({"x": Out(0), "b": In(2), "y": Out(0)})]


def _forward_transposed(
    ctx: PlanContext, images: Images, window: Window, specs: Sequence[TensorSpec]
) -> Prepared | None:
    x, w, y = images.tensor(images.x), images.tensor(images.w), images.tensor(images.y)
    product = graph_of(DataGradient(x, w, y, window, tf32=ctx.allow_tf32), ctx)
    memory: dict[str, Reference] = {"dy": In(0), "w": In(1), "dx": Out(0)}
    inputs, outputs = [images.spec(images.x), images.spec(images.w)], [images.spec(images.y)]
    if len(specs) == 2:
        return None if product is None else prepared(inputs, outputs, [product.step(memory)])
    b = specs[2]
    steps = _with_bias(ctx, product, memory, y, channels_of(b.size, y, b.dtype.name))
    return None if steps is None else prepared([*inputs, b.plain], outputs, steps)


def _gradient(
    ctx: PlanContext, images: Images, window: Window, specs: Sequence[TensorSpec], *, transposed: bool = False
) -> Prepared | None:
    op = images.op
    steps = parameter_gradients(ctx, images, window, transposed=transposed)
    outputs: list[TensorSpec | None] = [images.spec(images.w)]
    inputs: list[TensorSpec | None] = [images.spec(images.x), None, images.spec(images.y)]
    if steps is None:
        return None
    ctx.publish(0, WIDE, True)
    if op.computes_db:
        outputs.append(images.w.with_shape((images.channels_out,)))
    inplace = []
    if op.computes_dx:
        last = len(outputs)
        if ctx.demand(last) == "never":
            return prepared(inputs, [*outputs, None], steps)
        dx = _data_gradient(ctx, images, window, Out(last), transposed=transposed)
        if dx is None:
            return None
        steps.append(dx)
        inputs[1] = images.spec(images.w)
        outputs.append(images.spec(images.x))
        inplace.append((0, last))  # dX is computed when nothing reads X any more
    return prepared(inputs, outputs, steps, inplace=inplace)


def parameter_gradients(
    ctx: PlanContext, images: Images, window: Window, *, transposed: bool = False, image: Reference | None = None,
) -> list[Any] | None:  # fmt: skip
    """Return the steps that write the gradients of the filter to output 0, and of the bias to output 1.

    Args:
        ctx, images, window: of the convolution.
        transposed: it is a transposed one.
        image: where its images are, if not in input 0; dY is input 2.
    """
    x, y, dw = images.tensor(images.x), images.tensor(images.y), images.tensor(images.w)
    tf32 = ctx.allow_tf32
    ends: dict[str, Reference] = {"x": In(2), "dy": In(0)} if transposed else {"x": image or In(0), "dy": In(2)}
    recipe = FilterGradient(y, x, dw, window, tf32=tf32) if transposed else FilterGradient(x, y, dw, window, tf32=tf32)
    product = graph_of(recipe, ctx)
    if product is None:
        return None
    return _with_bias_gradient(ctx, images, product.step({**ends, "dw": Out(0)}))


def scaled_parameter_gradients(
    ctx: PlanContext, images: Images, window: Window, memory: Mapping[str, Reference], limit: float
) -> list[Any] | None:
    """Return the steps of ``parameter_gradients`` for images that are computed as they are read.

    Args:
        ctx, images, window: of the convolution.
        memory: of ``x``, and of ``factor`` and ``offset`` for each channel: relu(x factor + offset) was convolved.
        limit: the largest result of that Relu, which may be inf.
    """
    x, y, dw = images.tensor(images.x), images.tensor(images.y), images.tensor(images.w)
    product = graph_of(FilterGradient(x, y, dw, window, scales=True, limit=limit), ctx)
    step = None if product is None else product.step({**memory, "dy": In(2), "dw": Out(0)})
    return None if step is None else _with_bias_gradient(ctx, images, step)


def _with_bias_gradient(ctx: PlanContext, images: Images, of_filter: Step) -> list[Step] | None:
    if not images.op.computes_db:
        return [of_filter]
    sums = _bias_gradient(ctx, images)
    return None if sums is None else [of_filter, sums]


def _bias_gradient(ctx: PlanContext, images: Images) -> Step | None:
    """Return the step that sums dY, input 2, over all but the channels, into output 1."""
    dy = images.tensor(images.y)
    graph = graph_of(ChannelSums(dy, channels_of(images.channels_out, dy, images.w.dtype.name)), ctx)
    return None if graph is None else graph.step({"x": In(2), "sums": Out(1)})


def _data_gradient(ctx: PlanContext, images: Images, window: Window, dx: Reference, *, transposed: bool) -> Step | None:
    """Return the step that computes dX from dY, input 2, and W, input 1."""
    x, w, y = images.tensor(images.x), images.tensor(images.w), images.tensor(images.y)
    tf32 = ctx.allow_tf32
    recipe: Recipe
    if transposed:
        recipe, memory = Convolution(y, w, x, window, tf32=tf32), {"x": In(2), "w": In(1), "y": dx}
    else:
        recipe, memory = DataGradient(y, w, x, window, tf32=tf32), {"dy": In(2), "w": In(1), "dx": dx}
    graph = graph_of(recipe, ctx)
    return None if graph is None else graph.step(memory)
