"""The Relu after a SpatialBN in training, whose result is not stored: the Convs that read it compute it.

A Conv computes relu((x - mean) inverse scale + bias) as it reads x, in float32, and rounds that to the type of x before
it multiplies. So does the gradient to data, which needs the Relu's mask. The gradient of the filter reads what that has
computed, or in float16, where it is faster, computes relu(x factor + offset) from numbers in float16. What is rounded
so is off by some 2**-11 of x, as x is, which is stored in float16. All forms are measured, where that was asked for.

Where the result is stored for others, the pair of our kernels for the gradients of the Relu and the SpatialBN computes
it, if a kernel of ours has stored it: by the same statements, so that both find the same signs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from netbuilder.engines.cuda.gpu_layout import WIDE, elements_of, image_spec
from netbuilder.engines.cuda.gradient_pair import gradient_pair, gradient_step
from netbuilder.engines.cuda.shifted_sums import factors_step, normalize_by_statistics_step, statistics_step
from netbuilder.engines.cuda.steps import Reference, Step, prepared, scratch_memory, step_of
from netbuilder.engines.cudnn.compiled import graph_of, searches
from netbuilder.engines.cudnn.convolutions import Images, channels_of
from netbuilder.engines.cudnn.element_types import types_for_products
from netbuilder.engines.cudnn.faster import faster, second_is_faster
from netbuilder.engines.cudnn.graphs import Convolution, DataGradientSums
from netbuilder.engines.cudnn.kernels_conv import conv, parameter_gradients, scaled_parameter_gradients
from netbuilder.engines.cudnn.kernels_conv_norm import ConvBN, computed_images, gradient_images, summed_images
from netbuilder.engines.cudnn.kernels_norm import bn_serves, gradient_serves, limit_of, running_statistics
from netbuilder.engines.fusion import Unstored
from netbuilder.engines.references import In, Out
from netbuilder.ops.core.contexts import PlanContext, Prepared
from netbuilder.ops.core.extensions import FurtherBytes, Rest
from netbuilder.ops.core.image_order import count_per_channel
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["UNSTORED"]

_SOURCES = 5  # X, mean, inverse deviation, scale, bias
_Makers = Sequence[Any] | None  # operators of which the last one is the Relu


def _own(specs: Sequence[TensorSpec], computes: _Makers) -> Sequence[TensorSpec]:
    """Return the specs of operators without those of what they compute a value from."""
    return specs[: len(specs) - (0 if computes is None else _SOURCES)]


def _conv(ops: Sequence[Any], ctx: PlanContext, *specs: TensorSpec, computes: _Makers, stored: bool) -> Prepared | None:
    """Prepare a Conv."""
    op, own = ops[0], _own(specs, computes)
    if computes is None:
        return conv(op, ctx, *specs)
    images = summed_images(op, ctx, own) if searches(ctx) else None
    window = None if images is None else images.window
    if images is None or window is None:
        return None
    x, w, y = (images.tensor(spec) for spec in (images.x, images.w, images.y))
    bias = channels_of(own[2].size, y, own[2].dtype.name) if len(own) > 2 else None
    limit = limit_of(computes[-1])
    graph = graph_of(Convolution(x, w, y, window, bias, normalizes=True, limit=limit, tf32=ctx.allow_tf32), ctx)
    if graph is None:
        return None
    given = [images.spec(images.x), images.spec(images.w), *(spec.plain for spec in own[2:])]
    inputs, source = computed_images(given, images)
    memory: dict[str, Reference] = {**source, "w": In(1), "y": Out(0), **({"b": In(2)} if bias else {})}
    return prepared(inputs, [images.spec(images.y)], [graph.step(memory)])


def _conv_bn(
    ops: Sequence[Any], ctx: PlanContext, *specs: TensorSpec, computes: _Makers, stored: bool
) -> Prepared | None:
    """Prepare a Conv, the SpatialBN after it, and the Sum or Relu after that."""
    following = [type(op).__name__ for op in ops[2:]]
    limit = None if following in ([], ["Sum"]) else limit_of(ops[-1])
    pair = ConvBN.of(ops[0], ops[1], ctx, _own(specs, computes), add="Sum" in following, limit=limit)
    if pair is None:
        return None
    return pair.together(computes=None if computes is None else limit_of(computes[-1]), stored=stored)


def _bn(ops: Sequence[Any], ctx: PlanContext, *specs: TensorSpec, computes: _Makers, stored: bool) -> Prepared | None:
    """Prepare a SpatialBN and the Relu after it; not ``stored``, only the statistics of the batch are computed."""
    op, x, channels = ops[0], specs[0], specs[1].plain
    if not searches(ctx) or op.is_test or len(specs) != 5 or op.n_out != 5 or not bn_serves(*specs):
        return None
    elements = types_for_products(ctx, x)[0]
    if elements_of(x) != elements:
        return None  # Convs would read a copy
    spec = image_spec(x.plain, op.order, elements)
    inputs = [spec, *((channels,) * 2 if stored else (None, None)), channels, None]
    memory: dict[str, Reference] = {"x": In(0), "shift": In(3), "mean": Out(3), "inverse": Out(4)}
    steps, y = [statistics_step(op, spec, memory)], None
    if stored:
        memory, y = {**memory, "scale": In(1), "bias": In(2), "y": Out(0)}, spec
        steps.append(normalize_by_statistics_step(op, spec, memory, limit=limit_of(ops[-1])))
    again = spec.nbytes if stored else 0
    made = prepared(inputs, [y, None, None, channels, channels], steps, again=again)
    work = running_statistics(op, count_per_channel(op.order, x.plain), channels)
    return made.extend(Rest(work, (3, 4, 8, 9), (1, 2)))


def _pair(
    ops: Sequence[Any], ctx: PlanContext, *specs: TensorSpec, computes: _Makers, stored: bool, shared: bool = False
) -> Prepared | None:
    """Prepare the gradients of a SpatialBN, of the Relu after it, and a Sum before that: -> [dZ], dX, dscale, dbias.

    ``shared`` says whether dZ, the gradient of the Relu, is an output.
    """
    op, own = ops[0], _own(specs, computes)
    x, channels, y = own[0], own[1].plain, own[5]
    if computes is None or limit_of(computes[-1]) != limit_of(ops[1]) or not searches(ctx):
        return None
    images = [x, own[2], *own[5:]]
    if not gradient_serves(op, images, own[1], *own[3:5]) or elements_of(x) != elements_of(y):
        return None  # what others have stored is not repeated
    spec, add = image_spec(x.plain, op.order, elements_of(x)), len(own) > 6
    made = gradient_pair(op, spec, channels, add=add, shared=shared, limit=limit_of(ops[1]), computes=True)
    end, further = len(specs) - 1, made.get(FurtherBytes)
    addend = [In(6)] if add else []
    step = step_of(made, [*map(In, range(5)), In(end), *addend], [Out(j) for j in range(len(made.outputs))])
    inputs = [*made.inputs[:5], None, *([spec] if add else []), None, None, None, None, channels]
    return prepared(inputs, made.outputs, [step], again=0 if further is None else further.count)


_shared_pair = partial(_pair, shared=True)


def _gradient(
    ops: Sequence[Any], ctx: PlanContext, *specs: TensorSpec, computes: _Makers, stored: bool
) -> Prepared | None:
    """Prepare the gradients of a Conv, and of the SpatialBN and Relu before it: -> dW, [db], dX, dscale, dbias."""
    op, bn, own = ops[0], ops[1], (specs[3], *_own(specs, computes)[1:])  # Y would be stored as X is
    images = gradient_images(op, bn, ctx, own) if computes is not None else None
    if images is None or computes is None or limit_of(computes[-1]) != limit_of(ops[2]):
        return None
    found = [
        _gradients(op, bn, ctx, images, specs[4].plain, scales=scales, limit=limit_of(ops[2]))
        for scales in (False, True)
    ]
    written, scaled = found
    if written is None or scaled is None:
        return written or scaled
    return faster(ctx, f"activations as written or scaled, {op} {images}", written, scaled)


def _gradients(
    op: Any, bn: Any, ctx: PlanContext, images: Images, channels: TensorSpec, *, scales: bool, limit: float
) -> Prepared | None:
    """Return the kernel; with ``scales``, the gradient of the filter computes what the Conv has read."""
    x, w, y = (images.tensor(each) for each in (images.x, images.w, images.y))
    window, spec, scratch = images.window, images.spec(images.x), scratch_memory()
    assert window is not None
    if scales and images.elements != "float16":
        return None  # cuDNN has no other ones
    activation: Literal["computed", "written"] = "computed" if scales else "written"
    recipe = DataGradientSums(y, w, x, window, activation=activation, limit=limit, tf32=ctx.allow_tf32)
    together, first = graph_of(recipe, ctx), 1 + op.computes_db
    memory: dict[str, Reference] = {"x": In(3), "scale": In(4), "mean": In(5), "inverse": In(6), "bias": In(11)}
    memory |= {"dy": In(2), "w": In(1), "dz": scratch.allocate(spec.nbytes)}
    memory |= {name: scratch.allocate(channels.nbytes) for name in ("dscale_sum", "dbias_sum")}
    memory |= {name: Out(first + j) for j, name in enumerate(("dx", "dscale", "dbias"))}
    before: list[Step] = []
    if scales:
        memory |= {name: scratch.allocate(channels.size * 2) for name in ("factor", "offset")}
        before = [factors_step(bn, spec, images.elements, _of(memory, "scale bias mean inverse factor offset"))]
        parameters = scaled_parameter_gradients(ctx, images, window, _of(memory, "x factor offset"), limit)
    else:
        memory["y"] = scratch.allocate(spec.nbytes)
        parameters = parameter_gradients(ctx, images, window, image=memory["y"])
    if together is None or parameters is None:
        return None
    ctx.publish(0, WIDE, True)
    names = "dy w x mean inverse scale bias dz dscale_sum dbias_sum"
    steps = [
        together.step(_of(memory, names if scales else f"{names} y")),
        *before,
        *parameters,
        gradient_step(bn, spec, _of(memory, "x scale dz mean inverse dscale_sum dbias_sum dx dscale dbias")),
    ]
    inputs: list[TensorSpec | None] = [None, images.spec(images.w), images.spec(images.y), spec, *(channels,) * 3]
    inputs += [None, None, None, None, channels]
    outputs: list[TensorSpec | None] = [images.spec(images.w)]
    outputs += [images.w.with_shape((images.channels_out,))] if op.computes_db else []
    return prepared(inputs, [*outputs, spec, channels, channels], steps, scratch)


def _of(memory: dict[str, Reference], names: str) -> dict[str, Reference]:
    return {name: memory[name] for name in names.split()}


_STATISTICS = "variance -> y new_mean new_variance mean inverse"
_VALUES = "x scale dy mean inverse y"


def _result_of(activation: str) -> Unstored:
    """Return the rule for the result of an activation."""
    gradient = f"SpatialBNGradient+{activation}Gradient"
    return Unstored(
        "y",
        sources="x mean inverse scale bias",
        makers={
            f"SpatialBN+{activation}: x scale bias running {_STATISTICS}": _bn,
            **{
                f"Conv+SpatialBN+{activation}: image filter {b}scale bias running variance "
                "-> x y new_mean new_variance mean inverse": _conv_bn
                for b in ("", "b ")
            },
        },
        readers={
            "Conv: y *more -> *made": _conv,
            **{
                f"Conv+SpatialBN{sum}{last}: y *more -> *made": _conv_bn
                for sum in ("", "+Sum")
                for last in ("", "+Relu", "+ReluN")
            },
            **{
                f"ConvGradient+{gradient}: y w dy x scale mean inverse -> dw {db}dx dscale dbias": _gradient
                for db in ("", "db ")
            },
        },
        faster=second_is_faster,
        repeating={
            f"{gradient}: {_VALUES} -> dx ds dt": _pair,
            f"{gradient}: {_VALUES} -> dz dx ds dt": _shared_pair,
            f"{gradient}+Sum: {_VALUES} addend -> dz dx ds dt": _shared_pair,
        },
    )


UNSTORED = tuple(map(_result_of, ("Relu", "ReluN")))
"""What is not stored, or not read, where that is faster."""
