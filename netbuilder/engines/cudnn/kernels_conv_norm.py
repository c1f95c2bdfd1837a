"""Conv with the SpatialBN after it in training: the convolution computes sums for the batch's statistics as it runs.

The sums are those of the product in float32, before it is rounded, shifted by the running mean. Whether this is faster
than a convolution and a normalization that reads X twice is measured; where that was not asked for, they run apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.engines.cuda.shifted_sums import normalize_step
from netbuilder.engines.cuda.steps import Reference, prepared, scratch_memory
from netbuilder.engines.cudnn.compiled import graph_of, searches
from netbuilder.engines.cudnn.convolutions import Images, channels_of
from netbuilder.engines.cudnn.element_types import serves, types_for_products
from netbuilder.engines.cudnn.faster import faster
from netbuilder.engines.cudnn.graphs import BatchNormalization, Convolution, Window
from netbuilder.engines.cudnn.kernels_norm import running_statistics
from netbuilder.engines.references import In, Out
from netbuilder.ops.core.contexts import PlanContext, Prepared
from netbuilder.ops.core.extensions import Rest
from netbuilder.ops.core.image_order import count_per_channel
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["fused_conv_bn"]


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
    if window is None or any((spec.shape, spec.dtype) != (images.y.shape, images.y.dtype) for spec in addend):
        return None
    return _faster(bn, ctx, images, window, specs, biased=len(own) > 2, add=add, relu=relu)


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
    graphs = [graph_of(recipe, ctx) for recipe in (product, normalization, summed)]
    if None in graphs:
        return None
    apart, batch, together = graphs

    convolved: dict[str, Reference] = {"x": In(0), "w": In(1), **({"b": In(2)} if biased else {}), "y": Out(0)}
    normalized: dict[str, Reference] = {
        "x": Out(0), "scale": In(first), "bias": In(first + 1), "y": Out(1), "mean": Out(4), "inverse": Out(5),
    }  # fmt: skip
    addend: dict[str, Reference] = {"addend": In(first + 4)} if add else {}
    scratch = scratch_memory()
    sums: dict[str, Reference] = {name: scratch.allocate(channels.nbytes) for name in ("sums", "sumsq")}
    shifted = {"shift": In(first + 2), **sums}
    inputs = [images.spec(images.x), images.spec(images.w), *(s.plain for s in specs[2 : first + 2]), channels, None]
    inputs += [spec] if add else []
    outputs = [spec, spec, None, None, channels, channels]
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
