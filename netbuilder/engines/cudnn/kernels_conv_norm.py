"""Conv fused with the SpatialBN before or after it, in training: products compute the sums that it needs as they run.

Forward they are those for the batch's statistics, shifted by the running mean; backward those for the gradient of the
SpatialBN and the Relu before a Conv. They are sums of products in float32, before these are rounded. Whether this is
faster than two kernels is measured; where that was not asked for, they run apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.engines.cuda.gpu_layout import WIDE, elements_of
from netbuilder.engines.cuda.gradient_pair import gradient_step
from netbuilder.engines.cuda.shifted_sums import normalize_step, statistics_of_sums_step
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
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["ConvBN", "computed_images", "fused_conv_bn", "fused_conv_bn_gradient", "gradient_images", "summed_images"]


@dataclass(frozen=True, eq=False)
class ConvBN:
    """A Conv and the SpatialBN after it: the Conv's inputs, and the SpatialBN's but X -> X, Y, statistics.

    Args:
        bn: the SpatialBN.
        ctx: of the plan.
        images, window: of the Conv.
        specs: of X, W, [b], scale, bias, running mean, running variance, and of the other summand, if there is one.
        add: Y is that of the Sum after the SpatialBN.
        limit: the largest result of the Relu after these, whose result is Y, which may be inf; None: there is none.
    """

    bn: Any
    ctx: PlanContext
    images: Images
    window: Window
    specs: Sequence[TensorSpec]
    add: bool
    limit: float | None

    @staticmethod
    def of(
        conv: Any, bn: Any, ctx: PlanContext, specs: Sequence[TensorSpec], *, add: bool, limit: float | None
    ) -> ConvBN | None:
        """Return the pair of two operators; None if their kernel is not searched for, or cuDNN has none."""
        own, addend = specs[: len(specs) - 4 - add], specs[len(specs) - add :]
        statistics = specs[len(own) : len(own) + 4]
        if not searches(ctx) or bn.is_test or bn.n_out != 5 or len(own) < 2 or conv.order != bn.order:
            return None
        images = summed_images(conv, ctx, own)
        if images is None or any(spec.dtype != np.float32 for spec in statistics):
            return None
        window = images.window
        if window is None or any((spec.shape, spec.dtype) != (images.y.shape, images.y.dtype) for spec in addend):
            return None
        return ConvBN(bn, ctx, images, window, specs, add, limit)

    @property
    def first(self) -> int:
        """The index of the SpatialBN's scale."""
        return len(self.specs) - 4 - self.add

    @property
    def channels(self) -> TensorSpec:
        return self.specs[self.first].plain

    @property
    def own_inputs(self) -> list[TensorSpec | None]:
        """The specs of the inputs; the running variance is left to a later kernel."""
        images, y = self.images, self.images.spec(self.images.y)
        given = [images.spec(images.x), images.spec(images.w), *(each.plain for each in self.specs[2 : self.first + 2])]
        return [*given, self.channels, None, *([y] if self.add else [])]

    @property
    def convolved(self) -> dict[str, Reference]:
        """The memory of the Conv's tensors, and of the numbers of the SpatialBN that it normalizes with."""
        biased = self.first > 2
        return {"x": In(0), "w": In(1), **({"b": In(2)} if biased else {}), "y": Out(0)}

    @property
    def normalized(self) -> dict[str, Reference]:
        """The memory of the SpatialBN's tensors."""
        return {
            "x": Out(0), "scale": In(self.first), "bias": In(self.first + 1), "y": Out(1), "mean": Out(4),
            "inverse": Out(5),
        }  # fmt: skip

    def product(self, **options: Any) -> Convolution:
        x, w, y = (self.images.tensor(spec) for spec in (self.images.x, self.images.w, self.images.y))
        bias = channels_of(self.channels.size, y, self.specs[2].dtype.name) if self.first > 2 else None
        return Convolution(x, w, y, self.window, bias, tf32=self.ctx.allow_tf32, **options)

    def apart(self) -> tuple[str, Prepared | None]:
        """Return cuDNN's graphs for the two, one after the other, and what they are."""
        images, channels = self.images, self.channels
        y, spec = images.tensor(images.y), images.spec(images.y)
        normalization = BatchNormalization(y, float(self.bn.epsilon), y if self.add else None, self.limit)
        first, second = graph_of(self.product(), self.ctx), graph_of(normalization, self.ctx)
        if first is None or second is None:
            return "", None
        addend: dict[str, Reference] = {"z": In(self.first + 4)} if self.add else {}
        steps = [first.step(self.convolved), second.step({**self.normalized, **addend})]
        outputs = [spec, spec, None, None, channels, channels]
        return str(normalization), prepared(self.own_inputs, outputs, steps, again=y.nbytes)

    def together(self, *, computes: float | None = None, stored: bool = True) -> Prepared | None:
        """Return the kernel whose product computes the sums.

        Args:
            computes: the Conv's X is computed: further inputs have what it is computed from (``computed_images``), and
                this is the largest result of the Relu that makes it.
            stored: Y is written.
        """
        limit = {} if computes is None else {"limit": computes}
        graph = graph_of(self.product(shifted_sums=True, normalizes=computes is not None, **limit), self.ctx)
        if graph is None:
            return None
        images, channels, first = self.images, self.channels, self.first
        spec, inputs, scratch = images.spec(images.y), self.own_inputs, scratch_memory()
        source: dict[str, Reference] = {}
        if computes is not None:
            inputs, source = computed_images(inputs, images)
        sums: dict[str, Reference] = {name: scratch.allocate(channels.nbytes) for name in ("sums", "sumsq")}
        shifted: dict[str, Reference] = {"shift": In(first + 2), **sums}
        addend: dict[str, Reference] = {"addend": In(first + 4)} if self.add else {}
        if stored:
            memory = {**self.normalized, **shifted, **addend}
            last = normalize_step(self.bn, spec, memory, add=self.add, limit=self.limit)
        else:
            last = statistics_of_sums_step(self.bn, spec, {**shifted, "mean": Out(4), "inverse": Out(5)})
        steps = [graph.step({**self.convolved, **source, **shifted}), last]
        made = prepared(inputs, [spec, spec if stored else None, None, None, channels, channels], steps, scratch)
        work = running_statistics(self.bn, count_per_channel(self.bn.order, images.y), channels)
        end = len(inputs)
        return made.extend(Rest(work, (first + 2, first + 3, end + 4, end + 5), (2, 3)))


def computed_images(
    inputs: Sequence[TensorSpec | None], images: Images
) -> tuple[list[TensorSpec | None], dict[str, Reference]]:
    """Return inputs of a Conv and, in place of its images, those of the normalization and Relu that make them.

    These follow the others: X, mean, inverse deviation, scale, bias. Also returns the memory of each, by the names of
    ``Convolution``.
    """
    end, channels = len(inputs), TensorSpec((images.tensor(images.x).shape[1],), np.dtype(np.float32))
    names = ("x", "mean", "inverse", "scale", "bias")
    return (
        [None, *inputs[1:], images.spec(images.x), *(channels,) * 4],
        {name: In(end + i) for i, name in enumerate(names)},
    )


def summed_images(conv: Any, ctx: PlanContext, specs: Sequence[TensorSpec]) -> Images | None:
    """Return a convolution of X and W with sums or with computed images; None if cuDNN has none.

    It has none for groups, nor for exact products of float32.
    """
    if not serves(*specs) or not 3 <= specs[0].ndim <= 5:
        return None
    images = Images(conv, specs[0].plain, specs[1].plain, types_for_products(ctx, specs[0])[0])
    return images if conv.group == 1 and (images.elements != "float32" or ctx.allow_tf32) else None


def fused_conv_bn(
    conv: Any, bn: Any, ctx: PlanContext, *specs: TensorSpec, add: bool = False, limit: float | None = None
) -> Prepared | None:
    """Prepare a Conv and the SpatialBN after it, if their kernel is faster than the two that it replaces.

    Args:
        conv: the Conv.
        bn, ctx, specs, add, limit: see ``ConvBN``.
    """
    pair = ConvBN.of(conv, bn, ctx, specs, add=add, limit=limit)
    together = None if pair is None else pair.together()
    if pair is None or together is None:
        return None
    what, apart = pair.apart()
    if apart is None:
        return None
    return together if faster(ctx, f"{pair.product(shifted_sums=True)} {what}", apart, together) is together else None


def gradient_images(conv: Any, bn: Any, ctx: PlanContext, specs: Sequence[TensorSpec]) -> Images | None:
    """Return the convolution of a pair of gradients that has a kernel with sums; None if there is none.

    Args:
        conv, bn, ctx: as in ``fused_conv_bn_gradient``.
        specs: of the Conv's images, W, dY, X, scale, mean, inverse deviation, and others like X.
    """
    image, w, dy, x, *numbers = specs[:7]
    if not searches(ctx) or not conv.computes_dx or bn.is_test or bn.num_batches > 1 or conv.order != bn.order:
        return None
    images = summed_images(conv, ctx, (image, w, dy))
    if images is None or images.window is None or any(spec.dtype != np.float32 for spec in numbers):
        return None
    if any(spec.plain != image.plain or elements_of(spec) != images.elements for spec in (image, x, *specs[7:])):
        return None  # what is stored with other elements than those of products is normalized as it is
    return images


def fused_conv_bn_gradient(
    conv: Any, bn: Any, ctx: PlanContext, *specs: TensorSpec, add: bool, shared: bool, limit: float
) -> Prepared | None:
    """Prepare the gradients of a Conv, and of the SpatialBN and Relu before it: -> dW, [db], [dZ], dX, dscale, dbias.

    Args:
        conv: the ConvGradient, which computes the gradient of its images.
        bn: the SpatialBNGradient.
        ctx: of the plan.
        specs: of the Conv's images, which are the Relu's result, W, dY; of X, scale, mean, inverse deviation of the
            SpatialBN; and with ``add`` of a value that is added to the gradient of the Relu's result.
        add: the Relu's result has another gradient.
        shared: dZ, the gradient of the Relu, is an output.
        limit: the largest result of the Relu, which may be inf.
    """
    images = gradient_images(conv, bn, ctx, specs)
    window = None if images is None else images.window
    if images is None or window is None:
        return None
    chosen = _faster_gradient(bn, ctx, images, window, specs[4].plain, add=add, shared=shared, limit=limit)
    parameters = None if chosen is None else parameter_gradients(ctx, images, window)
    if chosen is None or parameters is None:
        return None
    outputs: list[TensorSpec | None] = [images.spec(images.w)]
    outputs += [images.w.with_shape((images.channels_out,))] if conv.computes_db else []
    count = len(outputs)
    rest = step_of(
        chosen,
        [In(2), In(1), *map(In, range(3, 7)), In(0), *map(In, range(7, len(specs)))],
        [Out(count + j) for j in range(len(chosen.outputs))],
    )
    ctx.publish(0, WIDE, True)
    inputs: list[TensorSpec | None] = [images.spec(images.x), images.spec(images.w), images.spec(images.y)]
    inputs += [*chosen.inputs[2:6], *chosen.inputs[7:]]
    further = chosen.get(FurtherBytes)
    again = 0 if further is None else further.count
    return prepared(inputs, [*outputs, *chosen.outputs], [*parameters, rest], again=again)


def _faster_gradient(
    bn: Any,
    ctx: PlanContext,
    images: Images,
    window: Window,
    channels: TensorSpec,
    *,
    add: bool,
    shared: bool,
    limit: float,
) -> Prepared | None:
    """Return the kernel for dY, W, X, scale, mean, inverse deviation, Y, [addend] -> [dZ], dX, dscale, dbias.

    Returns:
        The one whose product computes the sums; None if it is not faster, or if cuDNN has none.
    """
    x, w, y = (images.tensor(each) for each in (images.x, images.w, images.y))
    spec = images.spec(images.x)
    recipe = DataGradientSums(y, w, x, window, add, limit=limit, tf32=ctx.allow_tf32)
    together = graph_of(recipe, ctx)
    product = graph_of(DataGradient(y, w, x, window, tf32=ctx.allow_tf32), ctx)
    given = [spec, channels, spec, channels, channels, spec, *([spec] if add else [])]
    make: Callable[..., Prepared | None] = fused_shared_gradient if shared else fused_bn_relu_gradient
    apart = make(bn, ctx, *given, limit=limit)
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
