"""Batch normalization over parts of a batch: sums per channel, the normalization, and its gradient; one launch each.

Each reads its images once, as they are stored. The Relu, or the Sum and the Relu, after a normalization are part of its
kernel, and their gradients part of the sums for the gradient.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.engines.cuda.channel_code import (
    ChannelsVariant,
    Launcher,
    accumulators,
    arrays,
    as_stored,
    each_place,
    images_of,
    memory_of_sums,
    normalized_again,
    numbers_of,
    of_channels,
    one_number,
    own_channel,
    passes,
    rectified,
    source,
    sums,
)
from netbuilder.engines.cuda.code import stored, value_of
from netbuilder.engines.cuda.elementwise import elementwise
from netbuilder.engines.cuda.gpu_layout import elements_of, in_order, order_of
from netbuilder.engines.cuda.kernel import Kernel
from netbuilder.engines.fusion import Fusion
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.extensions import CAPTURABLE
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["CHANNELS", "CHANNEL_FUSIONS", "backprop_stats_kernel", "gradient_kernel"]


@functools.cache
def _stats_kernel(v: ChannelsVariant) -> Kernel:
    zero = "if (*weight == 0) { sum_one = 0; sum_two = 0; }" if v.weight is not None else ""
    number = "(double)images * pixels" if v.weight is None else "(*weight == 0 ? 0.0 : (double)images * pixels)"
    lines = [
        accumulators(v),
        *each_place(v, ["x"], ["one[j] += x_;", "two[j] += x_ * x_;"]),
        *sums(v, [
            zero,
            f"sum[c] = ({v.wide})sum_one;",
            f"sumsq[c] = ({v.wide})sum_two;",
            f"if (c == 0) *number = ({v.wide})({number});" if v.counts else "",
        ]),
    ]  # fmt: skip
    parameters = [*arrays(v, "x"), *one_number("weight", v.weight), f"{v.wide}* sum", f"{v.wide}* sumsq"]
    parameters += [f"{v.wide}* number"] if v.counts else []
    return Kernel("channel_stats", source(v, [*parameters, *memory_of_sums()], lines))


@functools.cache
def backprop_stats_kernel(v: ChannelsVariant) -> Kernel:
    """Return the kernel for dscale and dbias.

    With a Relu, dz is written, if it is an image; else, if Y is read, ``mask``. If it is not, it is computed from X.
    """
    dz, body, note = "dy_", [], {}
    again = v.relu and not v.has("y")
    if v.relu and not v.has("dz"):
        dz, body = "dz_", [f"const {v.wide} dz_ = dy_ * ({v.wide})({passes(v)});"]
        if v.masked:
            body.append(f"mine |= (unsigned)({passes(v)}) << j;")
            note = {"before": "unsigned mine = 0;", "after": f"mask[at / {v.width}] = (unsigned char)mine;"}
    elif v.relu:
        total, storage = ("dy_ + addend_" if v.has("addend") else "dy_"), dict(v.images)["dz"]
        rounded = value_of(stored(f"(({total}) * ({v.wide})({passes(v)}))", storage), storage)  # as readers see it
        dz, body = "dz_", [f"const {v.wide} dz_ = {rounded};"]
    numbers = {"average": "mean[first + j]"}
    if again:
        numbers |= {"factor": "scale[first + j] * inverse[first + j]", "offset": "bias[first + j]"}
        body = [*normalized_again(v), *body]
    own = v.width if v.last else 1
    lines = [
        accumulators(v),
        *(f"{v.wide} {name}[{own}] = {{}};" for name in numbers),
        f"if (inside) for (int j = 0; j < {own}; j++) {{",
        *(f"{name}[j] = {value};" for name, value in numbers.items()),
        "}",
        *each_place(
            v,
            [name for name in ("x", "dy", "y", "addend") if v.has(name)],
            [*body, f"one[j] += {dz} * (x_ - average[{own_channel(v)}]);", f"two[j] += {dz};"],
            ["dz"] if v.has("dz") else [],
            **note,
        ),
        *sums(v, [f"dscale[c] = ({v.wide})(sum_one * inverse[c]);", f"dbias[c] = ({v.wide})sum_two;"]),
    ]
    parameters = [*arrays(v, "x"), *numbers_of(v, "mean", "inverse", *(("scale", "bias") if again else ()))]
    parameters += arrays(v, "dy", "y", "addend")
    parameters += arrays(v, "dz", const=False) or (["unsigned char* mask"] if v.relu and not again else [])
    parameters += [f"{v.wide}* dscale", f"{v.wide}* dbias", *memory_of_sums()]
    title = "channel_backprop_stats"
    return Kernel(f"relu_{title}" if v.relu else title, source(v, parameters, lines))


@functools.cache
def _normalize_kernel(v: ChannelsVariant) -> Kernel:
    root = "sqrt" if v.wide == "double" else "sqrtf"
    given = "(double)images * pixels * num_batches" if v.count is None else "(double)*count"
    channels = of_channels(v, ["factor", "offset"], [  # in float64, because the variance is a difference
        f"const double total = {given}, counted = total > 1 ? total : 1;",
        "const double exact = sums[c] / counted;",
        "double square = sumsq[c] / counted - exact * exact;",
        "square = square < 0 ? 0 : square;",
        f"const {v.wide} average = ({v.wide})exact, inv = 1 / {root}(({v.wide})square + ({v.wide})epsilon);",
        "all_factor[slot] = scale[c] * inv;",
        "all_offset[slot] = bias[c] - average * all_factor[slot];",
        "if (part == 0) {",
        "const double fresh = total > 0 ? 1.0 - momentum : 0.0;",
        "const double unbiased = counted / (counted > 2 ? counted - 1 : 1);",
        f"new_mean[c] = ({v.wide})((1 - fresh) * mean[c] + fresh * exact);",
        f"new_variance[c] = ({v.wide})((1 - fresh) * variance[c] + fresh * unbiased * square);",
        "saved_mean[c] = average;",
        "saved_inverse[c] = inv;",
        "}",
    ])  # fmt: skip
    own = own_channel(v)
    body = [f"{v.wide} y_ = x_ * factor[{own}] + offset[{own}]{' + addend_' if v.has('addend') else ''};"]
    body += rectified(v, "y_")
    lines = [*channels, *each_place(v, [name for name in ("x", "addend") if v.has(name)], body, ["y"])]
    parameters = [
        *arrays(v, "x"),
        *numbers_of(v, "scale", "bias"),
        f"const {v.wide}* mean",
        f"const {v.wide}* variance",
    ]
    parameters += [*numbers_of(v, "sums", "sumsq"), *one_number("count", v.count), *arrays(v, "addend")]
    parameters += arrays(v, "y", const=False)
    parameters += [f"{v.wide}* {name}" for name in ("new_mean", "new_variance", "saved_mean", "saved_inverse")]
    parameters += ["double epsilon", "double momentum", "double num_batches"]
    return Kernel("normalize_part", source(v, parameters, lines))


@functools.cache
def gradient_kernel(v: ChannelsVariant) -> Kernel:
    """Return the kernel for dx; with a Relu, from y or the ``mask`` that the kernel for sums has written, or from x."""
    given = "(double)images * pixels * num_batches" if v.count is None else "(*count > 1 ? (double)*count : 1.0)"
    again = v.relu and not v.has("y")
    names = ["average", "inv", "factor", "of_bias", "of_scale", *(["offset"] if again else [])]
    channels = of_channels(v, names, [
        f"const {v.wide} total = ({v.wide})({given});",
        "all_average[slot] = mean[c];",
        "all_inv[slot] = inverse[c];",
        "all_factor[slot] = scale[c] * inverse[c];",
        "all_offset[slot] = bias[c];" if again else "",
        "all_of_bias[slot] = dbias_sum[c] / total;",
        "all_of_scale[slot] = dscale_sum[c] / total;",
        "if (part == 0) {",
        f"dscale[c] = dscale_sum[c] / ({v.wide})num_batches;",
        f"dbias[c] = dbias_sum[c] / ({v.wide})num_batches;",
        "}",
    ])  # fmt: skip
    own = own_channel(v)
    dz = "dy_"
    if v.relu:
        dz = f"dy_ * ({v.wide})({'(mine >> j & 1)' if v.masked else f'({passes(v)})'})"
    body = [
        *(normalized_again(v) if again else []),
        f"const {v.wide} normal = (x_ - average[{own}]) * inv[{own}];",
        f"{v.wide} dx_ = factor[{own}] * ({dz} - of_bias[{own}] - normal * of_scale[{own}]);",
        "if (*weight == 0) dx_ = 0;" if v.weight is not None else "",
    ]
    reads = ["x", "dy", *(["y"] if v.has("y") and not v.masked else [])]
    before = f"const unsigned mine = mask[at / {v.width}];" if v.masked else ""
    lines = [*channels, *each_place(v, reads, body, ["dx"], before=before)]
    parameters = [*arrays(v, "x"), *numbers_of(v, "scale"), *arrays(v, "dy"), *numbers_of(v, "mean", "inverse")]
    if v.relu:
        parameters += numbers_of(v, "bias") if again else [*arrays(v, "y"), "const unsigned char* mask"]
    parameters += [
        *numbers_of(v, "dscale_sum", "dbias_sum"),
        *one_number("count", v.count),
        *one_number("weight", v.weight),
    ]
    parameters += [*arrays(v, "dx", const=False), f"{v.wide}* dscale", f"{v.wide}* dbias", "double num_batches"]
    return Kernel("normalize_part_gradient", source(v, parameters, lines))


# Prepared kernels.


def _serves(x: TensorSpec, images: Sequence[TensorSpec], numbers: Sequence[TensorSpec]) -> bool:
    """Whether all images are like X, floating-point and not empty, and all numbers of the type of statistics."""
    if x.dtype not in (np.float16, np.float32, np.float64) or x.size == 0:
        return False
    wide = np.float64 if x.dtype == np.float64 else np.float32
    return all((spec.shape, spec.dtype) == (x.shape, x.dtype) for spec in images) and all(
        spec.dtype == wide for spec in numbers
    )


def channel_stats(op: Any, ctx: PlanContext, x: TensorSpec, *weight: TensorSpec) -> Prepared | None:
    """Prepare ChannelStats: X, [weight] -> sum, sumsq, [count]."""
    if not _serves(x, (), ()) or any(spec.dtype.kind != "f" for spec in weight):
        return None
    found, given = images_of(op, x), as_stored(x, x)
    kind = weight[0].dtype.name if weight else None
    launch = Launcher(_stats_kernel, found, {"x": given}, weight=kind, counts=op.n_out > 2)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        return launch.bind(inputs[:1], [*inputs, *outputs], scratch)

    outs = op.infer(x.plain, *(spec.plain for spec in weight))
    return _prepared(launch, [given, *(spec.plain for spec in weight)], outs, bind, launch.sums)


def _backprop_stats(
    op: Any, x: TensorSpec, mean: TensorSpec, inverse: TensorSpec, dy: TensorSpec, *others: TensorSpec
) -> Prepared | None:
    """Prepare ChannelBackpropStats; ``others``: the result of a Relu, whose gradient comes first, and an addend."""
    if not _serves(x, (dy, *others), (mean, inverse)):
        return None
    found, images = images_of(op, x), [as_stored(x, spec) for spec in (x, dy, *others)]
    named = dict(zip(("x", "dy", "y", "addend"), images))
    if others:
        named["dz"] = in_order(dy, order_of(x), elements_of(x))
    launch = Launcher(backprop_stats_kernel, found, named, limit=math.inf if others else None)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        arrays = [inputs[0], inputs[3], *inputs[4:], *outputs[:-2]]
        return launch.bind(arrays, [*inputs, *outputs], scratch)

    given = [images[0], mean.plain, inverse.plain, *images[1:]]
    outs = [*([named["dz"]] if others else []), mean.plain, mean.plain]
    pairs = [(3, 0)] if others and given[3] == outs[0] else []
    return _prepared(launch, given, outs, bind, launch.sums, pairs)


def channel_backprop_stats(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare ChannelBackpropStats: X, mean, inverse deviation, dY -> dscale, dbias."""
    return _backprop_stats(op, *specs)


def fused_relu_gradient_stats(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare a ReluGradient and the ChannelBackpropStats after it; output 0 is the gradient of the Relu's input.

    Args:
        op: the ChannelBackpropStats.
        ctx: of the plan.
        specs: of X, mean, inverse deviation, dY, and of the Relu's result; the gradient of that is dY, or the sum of dY
            and of a further input.
    """
    return _backprop_stats(op, *specs)


def _normalize(op: Any, *specs: TensorSpec, add: bool = False, relu: bool = False) -> Prepared | None:
    x, *numbers = specs[: len(specs) - add]
    addend = specs[-1:] if add else ()
    if op.is_test or op.num_batches < 2 or len(numbers) < 6 or op.n_out != 5 or not _serves(x, addend, numbers):
        return None
    found, images = images_of(op, x), [as_stored(x, spec) for spec in (x, *addend)]
    y, count = in_order(x, order_of(x), elements_of(x)), numbers[6].dtype.name if len(numbers) > 6 else None
    launch = Launcher(
        _normalize_kernel,
        found,
        dict(zip(("x", "addend"), images)) | {"y": y},
        count=count,
        limit=math.inf if relu else None,
    )
    constants = [np.float64(value) for value in (op.epsilon, op.momentum, op.num_batches)]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        arrays = [inputs[0], *(inputs[-1:] if add else ()), outputs[0]]
        return launch.bind(arrays, [*inputs, *outputs, *constants])

    channels = numbers[0].plain
    given = [images[0], *(spec.plain for spec in numbers), *images[1:]]
    return _prepared(launch, given, [y, *(channels,) * 4], bind, pairs=[(3, 1), (4, 2)])


def spatial_bn(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare SpatialBN of a part of a batch, or in test mode: X, scale, bias, running statistics, ... -> Y, ..."""
    return elementwise(op, ctx, *specs) if op.is_test else _normalize(op, *specs)


def fused_bn_relu(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare a SpatialBN of a part of a batch with the Relu after it; output 0 is the Relu's."""
    return _normalize(op, *specs, relu=True)


def fused_bn_sum(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare a SpatialBN of a part of a batch with the Sum after it, whose other summand is the last input."""
    return _normalize(op, *specs, add=True)


def fused_bn_sum_relu(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare a SpatialBN of a part of a batch with the Sum and the Relu after it."""
    return _normalize(op, *specs, add=True, relu=True)


def spatial_bn_gradient(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare SpatialBNGradient of a part of a batch: X, scale, dY, mean, inverse deviation, sums, ... -> dX, ..."""
    if op.is_test or op.num_batches < 2 or len(specs) < 7:
        return None
    x, scale, dy, *numbers = specs
    if not _serves(x, [dy], [scale, *numbers[:5]]) or any(spec.dtype.kind != "f" for spec in numbers[5:]):
        return None
    found, images = images_of(op, x), [as_stored(x, x), as_stored(x, dy)]
    dx = in_order(x, order_of(x), elements_of(x))
    count, weight = (spec.dtype.name if spec is not None else None for spec in (*numbers[4:6], None, None)[:2])
    launch = Launcher(gradient_kernel, found, {"x": images[0], "dy": images[1], "dx": dx}, count=count, weight=weight)
    parts = np.float64(op.num_batches)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        return launch.bind([inputs[0], inputs[2], outputs[0]], [*inputs, *outputs, parts])

    given = [images[0], scale.plain, images[1], *(spec.plain for spec in numbers)]
    pairs = [(2, 0)] if given[2] == dx else []
    return _prepared(launch, given, [dx, scale.plain, scale.plain], bind, pairs=pairs)


def _prepared(
    launch: Launcher,
    given: Sequence[TensorSpec],
    outs: Sequence[TensorSpec],
    bind: Callable[..., Call],
    scratch: int = 0,
    pairs: Sequence[tuple[int, int]] = (),
) -> Prepared:
    return Prepared(
        list(given), list(outs), bind, scratch=scratch, inplace=pairs, name=launch.name, extensions=CAPTURABLE
    )  # fmt: skip


CHANNELS: dict[str, Callable[..., Prepared | None]] = {
    "ChannelBackpropStats": channel_backprop_stats,
    "ChannelStats": channel_stats,
    "SpatialBN": spatial_bn,
    "SpatialBNGradient": spatial_bn_gradient,
}
"""Operators of batch normalization."""

_STATISTICS = "ReluGradient: y dy -> g; ChannelBackpropStats: x mean deviation g *more -> *sums"

CHANNEL_FUSIONS = (
    *(
        fusion
        for x in ("a b c d e f g", "a b c d e f g h")  # without and with the number of elements
        for fusion in (
            Fusion(f"SpatialBN: {x} -> z *own; Relu: z -> y", f"{x} -> y *own", fused_bn_relu, "bn_relu"),
            Fusion(f"SpatialBN: {x} -> z *own; Sum: {{z add}} -> y", f"{x} add -> y *own", fused_bn_sum, "bn_relu"),
            Fusion(
                f"SpatialBN+Sum: {x} add -> z *own; Relu: z -> y", f"{x} add -> y *own", fused_bn_sum_relu, "bn_relu"
            ),
        )
    ),
    Fusion(
        f"Sum: u v -> dy; {_STATISTICS}", "x mean deviation u *more y v -> g *sums",
        fused_relu_gradient_stats, "relu_gradient_stats", main=2, place=1,
    ),
    Fusion(
        _STATISTICS, "x mean deviation dy *more y -> g *sums", fused_relu_gradient_stats, "relu_gradient_stats", main=1
    ),
)  # fmt: skip
"""Fusions of a normalization over the parts of a batch, which has the sums of all parts as inputs."""
