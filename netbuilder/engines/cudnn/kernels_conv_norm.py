"""Conv fused with the SpatialBN before or after it, in training: products compute the sums that it needs as they run.

Forward they are those for the batch's statistics, shifted by the running mean; backward those for the gradient of the
SpatialBN and the Relu before a Conv. They are sums of products in float32, before these are rounded. Whether this is
faster than two kernels is measured; where that was not asked for, they run apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from netbuilder.engines.cuda.gpu_layout import WIDE, elements_of
from netbuilder.engines.cuda.gradient_pair import gradient_step
from netbuilder.engines.cuda.shifted_sums import normalize_step
from netbuilder.engines.cuda.steps import Reference, prepared, scratch_memory, step_of
from netbuilder.engines.cudnn.compiled import graph_of, searches
from netbuilder.engines.cudnn.convolutions import Images, channels_of
from netbuilder.engines.cudnn.element_types import serves, types_for_products
from netbuilder.engines.cudnn.faster import faster
from netbuilder.engines.cudnn.graphs import BatchNormalization, Convolution, DataGradient, DataGradientSums, Window
from netbuilder.engines.cudnn.kernels_conv import parameter_gradients
from netbuilder.engines.cudnn.kernels_norm import fused_bn_relu_gradient, fused_shared_gradient, running_statistics
from netbuilder.engines.references import In, Out
from netbuilder.ops.core.contexts import PlanContext, Prepared
from netbuilder.ops.core.extensions import FurtherBytes, Rest
from netbuilder.ops.core.image_order import count_per_channel
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["fused_conv_bn", "fused_conv_bn_gradient"]


def fused_conv_bn(
    conv: Any, bn: Any, ctx: PlanContext, *specs: TensorSpec, add: bool = False, relu: bool = False
) -> Prepared | None:
    """Prepare a Conv and the SpatialBN after it: the Conv's inputs, and the SpatialBN's but X -> X, Y, statistics.

    Args:
        conv: the Conv.
        bn: the SpatialBN.
        ctx: of the plan.
        specs: of X, W, [b], scale, bias, running mean, running variance, and of the other summand, if there is one.
        add: Y is that of the Sum after the SpatialBN.
        relu: Y is that of the Relu after these.
    """
    own, addend = specs[: len(specs) - 4 - add], specs[len(specs) - add :]
    statistics = specs[len(own) : len(own) + 4]
    if not searches(ctx) or bn.is_test or bn.n_out != 5 or len(own) < 2 or conv.order != bn.order:
        return None
    if not serves(*own) or not 3 <= own[0].ndim <= 5 or any(spec.dtype != np.float32 for spec in statistics):
        return None
    images = Images(conv, own[0].plain, own[1].plain, types_for_products(ctx, own[0])[0])
    window = images.window
    if window is None or not _sums(images, ctx):
        return None
    if any((spec.shape, spec.dtype) != (images.y.shape, images.y.dtype) for spec in addend):
        return None
    return _faster(bn, ctx, images, window, specs, biased=len(own) > 2, add=add, relu=relu)


def _sums(images: Images, ctx: PlanContext) -> bool:
    """Whether cuDNN has products with sums: without groups, and not for exact products of float32."""
    return bool(images.op.group == 1 and (images.elements != "float32" or ctx.allow_tf32))


def _faster(
    bn: Any, ctx: PlanContext, images: Images, window: Window, specs: tuple[TensorSpec, ...], *, biased: bool,
    add: bool, relu: bool,
) -> Prepared | None:  # fmt: skip
    """Return the fused kernel if it is faster than the two that it replaces; None if it is not, or cuDNN lacks one."""
    x, w, y = (images.tensor(spec) for spec in (images.x, images.w, images.y))
    spec, channels, first = images.spec(images.y), specs[2 + biased].plain, 2 + biased
    bias = channels_of(channels.size, y, specs[2].dtype.name) if biased else None
    product = Convolution(x, w, y, window, bias, tf32=ctx.allow_tf32)
    summed = Convolution(x, w, y, window, bias, shifted_sums=True, tf32=ctx.allow_tf32)
    normalization = BatchNormalization(y, float(bn.epsilon), y if add else None, relu)
    apart, batch, together = (graph_of(recipe, ctx) for recipe in (product, normalization, summed))
    if apart is None or batch is None or together is None:
        return None

    convolved: dict[str, Reference] = {"x": In(0), "w": In(1), **({"b": In(2)} if biased else {}), "y": Out(0)}
    normalized: dict[str, Reference] = {
        "x": Out(0), "scale": In(first), "bias": In(first + 1), "y": Out(1), "mean": Out(4), "inverse": Out(5),
    }  # fmt: skip
    addend: dict[str, Reference] = {"addend": In(first + 4)} if add else {}
    scratch = scratch_memory()
    sums: dict[str, Reference] = {name: scratch.allocate(channels.nbytes) for name in ("sums", "sumsq")}
    shifted: dict[str, Reference] = {"shift": In(first + 2), **sums}
    inputs: list[TensorSpec | None] = [images.spec(images.x), images.spec(images.w)]
    inputs += [*(each.plain for each in specs[2 : first + 2]), channels, None]
    inputs += [spec] if add else []
    outputs: list[TensorSpec | None] = [spec, spec, None, None, channels, channels]
    steps = [
        together.step({**convolved, **shifted}),
        normalize_step(bn, spec, {**normalized, **shifted, **addend}, add=add, relu=relu),
    ]
    fused = prepared(inputs, outputs, steps, scratch)
    steps = [apart.step(convolved), batch.step({**normalized, **({"z": In(first + 4)} if add else {})})]
    unfused = prepared(inputs, outputs, steps, again=y.nbytes)
    if faster(ctx, f"{summed} {normalization}", unfused, fused) is unfused:
        return None
    work, end = running_statistics(bn, count_per_channel(bn.order, images.y), channels), len(inputs)
    return fused.extend(Rest(work, (first + 2, first + 3, end + 4, end + 5), (2, 3)))


def fused_conv_bn_gradient(
    conv: Any, bn: Any, ctx: PlanContext, *specs: TensorSpec, add: bool, shared: bool
) -> Prepared | None:
    """Prepare the gradients of a Conv, and of the SpatialBN and Relu before it: -> dW, [db], [dZ], dX, dscale, dbias.

    Args:
        conv: the ConvGradient, which computes the gradient of its images.
        bn: the SpatialBNGradient.
        ctx: of the plan.
        specs: of the Conv's images, W, dY; of X, scale, mean, inverse deviation of the SpatialBN; of the Relu's result,
            and with ``add`` of a value that is added to its gradient.
        add: the Relu's result has another gradient.
        shared: dZ, the gradient of the Relu, is an output.
    """
    image, w, dy, x, scale, *_ = specs
    numbers, images_too = specs[4:7], (x, *specs[7:])
    if not searches(ctx) or not conv.computes_dx or bn.is_test or bn.num_batches > 1 or conv.order != bn.order:
        return None
    if not serves(image, w, dy) or not 3 <= image.ndim <= 5 or any(spec.dtype != np.float32 for spec in numbers):
        return None
    images = Images(conv, image.plain, w.plain, types_for_products(ctx, image)[0])
    window, stored = images.window, images.spec(images.x)
    if window is None or not _sums(images, ctx):
        return None
    if any(spec.plain != image.plain or elements_of(spec) != images.elements for spec in images_too):
        return None  # what is stored with other elements than those of products is normalized as it is
    chosen = _faster_gradient(bn, ctx, images, window, scale.plain, add=add, shared=shared)
    parameters = None if chosen is None else parameter_gradients(ctx, images, window, transposed=False)
    if chosen is None or parameters is None:
        return None
    outputs: list[TensorSpec | None] = [images.spec(images.w)]
    outputs += [images.w.with_shape((images.channels_out,))] if conv.computes_db else []
    count = len(outputs)
    rest = step_of(
        chosen, [In(2), In(1), *map(In, range(3, len(specs)))], [Out(count + j) for j in range(len(chosen.outputs))]
    )
    ctx.publish(0, WIDE, True)
    inputs: list[TensorSpec | None] = [stored, images.spec(images.w), images.spec(images.y), *chosen.inputs[2:]]
    further = chosen.get(FurtherBytes)
    again = 0 if further is None else further.count
    return prepared(inputs, [*outputs, *chosen.outputs], [*parameters, rest], again=again)


def _faster_gradient(
    bn: Any, ctx: PlanContext, images: Images, window: Window, channels: TensorSpec, *, add: bool, shared: bool
) -> Prepared | None:
    """Return the kernel for dY, W, X, scale, mean, inverse deviation, Y, [addend] -> [dZ], dX, dscale, dbias.

    Returns:
        The one whose product computes the sums; None if it is not faster, or if cuDNN has none.
    """
    x, w, y = (images.tensor(each) for each in (images.x, images.w, images.y))
    spec = images.spec(images.x)
    recipe = DataGradientSums(y, w, x, window, add, tf32=ctx.allow_tf32)
    together = graph_of(recipe, ctx)
    product = graph_of(DataGradient(y, w, x, window, tf32=ctx.allow_tf32), ctx)
    given = [spec, channels, spec, channels, channels, spec, *([spec] if add else [])]
    make: Callable[..., Prepared | None] = fused_shared_gradient if shared else fused_bn_relu_gradient
    apart = make(bn, ctx, *given)
    if together is None or product is None or apart is None:
        return None
    scratch = scratch_memory()
    results: list[Reference] = [Out(j) for j in range(3 + shared)]
    memory: dict[str, Reference] = dict(
        zip(("dy", "w", "x", "scale", "mean", "inverse", "y", "addend")[: 7 + add], map(In, range(7 + add)))
    )
    memory |= dict(zip(("dx", "dscale", "dbias"), results[shared:]))
    memory["dz"] = results[0] if shared else scratch.allocate(spec.nbytes)
    memory |= {name: scratch.allocate(channels.nbytes) for name in ("dscale_sum", "dbias_sum")}

    def of(*names: str) -> dict[str, Reference]:
        return {name: memory[name] for name in names}

    sums = ("dz", "dscale_sum", "dbias_sum", "x", "mean", "inverse")
    steps = [
        together.step(of("dy", "w", "y", *sums, *(["addend"] if add else []))),
        gradient_step(bn, spec, of(*sums, "scale", "dx", "dscale", "dbias")),
    ]
    inputs = [images.spec(images.y), images.spec(images.w), spec, channels, channels, channels, spec]
    inputs += [spec] if add else []
    fused = prepared(inputs, apart.outputs, steps, scratch)
    scratch = scratch_memory()
    da = scratch.allocate(spec.nbytes)
    steps = [
        product.step({"dy": In(0), "w": In(1), "dx": da}),
        step_of(apart, [In(2), In(3), da, In(4), In(5), In(6), *([In(7)] if add else [])], results),
    ]
    further = apart.get(FurtherBytes)
    unfused = prepared(inputs, apart.outputs, steps, scratch, again=0 if further is None else further.count)
    return fused if faster(ctx, f"{recipe} {shared=}", unfused, fused) is fused else None
