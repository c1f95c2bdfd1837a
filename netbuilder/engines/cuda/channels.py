"""Batch normalization over parts of a batch: sums per channel, the normalization, and its gradient; one launch each.

Each reads its images once, as they are stored, in plain order or with channels last. A thread has some channels, for
which it goes through a part of the images. Sums are those of each block, which the last block of the channels adds in
the order of the blocks: so results do not change from run to run. The Relu, or the Sum and the Relu, after a
normalization are part of its kernel, and their gradients part of the sums for the gradient.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from netbuilder.engines.cuda.code import c_type, stored, value_of, with_prelude
from netbuilder.engines.cuda.elementwise import elementwise
from netbuilder.engines.cuda.gpu_layout import array_dtype, elements_of, in_order, order_of
from netbuilder.engines.cuda.kernel import THREADS, Kernel
from netbuilder.engines.fusion import Fusion
from netbuilder.engines.gpu import gpu
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.extensions import CAPTURABLE
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["CHANNELS", "CHANNEL_FUSIONS", "ChannelsVariant"]

_MOST_BLOCKS = 512
_MOST_LANES = 32
_MOST_BYTES = 16  # of one load
_STEPS = 4  # places that a thread has at least, where there are enough


@dataclass(frozen=True)
class ChannelsVariant:
    """What a kernel depends on besides extents.

    Args:
        last: images are stored with channels last.
        width: consecutive elements that a thread reads at once: of as many channels, or of one.
        lanes: neighboring threads with channels of their own.
        images: the arrays of the kernel with an element for each of X, and the types of their elements.
        weight, count: the types of the weight and of the number of elements; None: there is none.
        counts: the number of elements is an output.
        relu: a Relu, or its gradient, is computed, too.
    """

    last: bool
    width: int
    lanes: int
    images: tuple[tuple[str, str], ...]
    weight: str | None = None
    count: str | None = None
    counts: bool = False
    relu: bool = False

    @property
    def wide(self) -> str:
        """The type of statistics, in which elements are computed."""
        return "double" if dict(self.images)["x"] == "float64" else "float"

    @property
    def channels(self) -> int:
        """Channels of a block."""
        return self.lanes * self.width if self.last else 1

    def has(self, name: str) -> bool:
        return any(name == other for other, _ in self.images)


@dataclass(frozen=True)
class _Images:
    """The order of images in memory."""

    images: int
    channels: int
    pixels: int
    last: bool

    def width(self, itemsize: int) -> int:
        """Return how many consecutive elements a thread can read at once: as many as divide a row."""
        return math.gcd(self.channels if self.last else self.pixels, _MOST_BYTES // itemsize)

    def lanes(self, width: int) -> int:
        return min(_MOST_LANES, 1 << (self.channels // width - 1).bit_length()) if self.last else 1

    def tiles(self, variant: ChannelsVariant) -> int:
        """Return how many sets of channels are summed apart."""
        return -(-self.channels // variant.channels)

    def blocks(self, variant: ChannelsVariant) -> int:
        tiles, threads = self.tiles(variant), THREADS // variant.lanes
        places = self.images * self.pixels // (1 if self.last else variant.width)
        return tiles * max(1, min(-(-places // (threads * _STEPS)), _MOST_BLOCKS // tiles))

    @property
    def extents(self) -> list[Any]:
        return [np.int64(self.images), np.int32(self.channels), np.int64(self.pixels)]


def _images(op: Any, x: TensorSpec) -> _Images:
    order = order_of(x)
    if order is not None:
        return _Images(order.images, order.channels, order.pixels, True)
    if op.order == "NHWC":
        return _Images(x.shape[0], x.shape[-1], math.prod(x.shape[1:-1]), True)
    pixels = math.prod(x.shape[2:])
    return _Images(x.shape[0], x.shape[1], pixels, pixels == 1)


# Sources.


def _places(v: ChannelsVariant) -> list[str]:
    """Return the statements that find a thread's channels, ``first`` and further ones, and its places."""
    tiles = f"(channels + {v.channels - 1}) / {v.channels}"
    return [
        f"const int tiles = {tiles}, tile = blockIdx.x % tiles, part = blockIdx.x / tiles, parts = gridDim.x / tiles;",
        f"const int lane = threadIdx.x % {v.lanes}, group = threadIdx.x / {v.lanes};",
        f"const int first = tile * {v.channels} + {f'lane * {v.width}' if v.last else '0'};",
        "const bool inside = first < channels;",
        f"const i64 row = {'1' if v.last else f'pixels / {v.width}'};",
        f"const i64 places = images * {'pixels' if v.last else 'row'};",
    ]


def _each(v: ChannelsVariant, reads: Sequence[str], body: Sequence[str], writes: Sequence[str] = ()) -> list[str]:
    """Return the loop of a thread over its places.

    Args:
        v: the variant.
        reads: arrays that are read, of which ``<name>_`` is an element.
        body: the statements for element ``j`` of a place; they set ``<name>_`` of what is written.
        writes: arrays that are written.
    """
    types = dict(v.images)
    at = "k * channels + first" if v.last else f"(k / row * channels + first) * pixels + k % row * {v.width}"
    groups = f"(i64){THREADS // v.lanes}"
    lines = [
        "if (inside)",
        f"for (i64 k = part * {groups} + group; k < places; k += parts * {groups}) {{",
        f"const i64 at = {at};",
        *(f"const Pack<{c_type(types[n])}> {n}_pack = *(const Pack<{c_type(types[n])}>*)({n} + at);" for n in reads),
        *(f"Pack<{c_type(types[name])}> {name}_out;" for name in writes),
        "#pragma unroll",
        f"for (int j = 0; j < {v.width}; j++) {{",
        *(f"const {v.wide} {name}_ = {value_of(f'{name}_pack.v[j]', types[name])};" for name in reads),
        *body,
        *(f"{name}_out.v[j] = {stored(f'{name}_', types[name])};" for name in writes),
        "}",
        *(f"*(Pack<{c_type(types[name])}>*)({name} + at) = {name}_out;" for name in writes),
        "}",
    ]
    return lines


def _source(v: ChannelsVariant, parameters: Sequence[str], lines: Sequence[str]) -> str:
    pack = f"template <typename T> struct alignas(sizeof(T) * {v.width}) Pack {{ T v[{v.width}]; }};"
    head = f'extern "C" __global__ void NAME({", ".join([*parameters, "i64 images", "int channels", "i64 pixels"])}) {{'
    return with_prelude("\n".join([pack, head, *_places(v), *lines, "}", ""]))


def _arrays(v: ChannelsVariant, *names: str, const: bool = True) -> list[str]:
    types = dict(v.images)
    return [f"{'const ' if const else ''}{c_type(types[name])}* {name}" for name in names if name in types]


def _numbers(v: ChannelsVariant, *names: str) -> list[str]:
    """Return the parameters for arrays of one number for each channel that are read."""
    return [f"const {v.wide}* {name}" for name in names]


def _one(name: str, storage: str | None) -> list[str]:
    return [] if storage is None else [f"const {c_type(storage)}* {name}"]


def _own(v: ChannelsVariant) -> str:
    """Return the index of an element's channel among those of the thread."""
    return "j" if v.last else "0"


def _sums(v: ChannelsVariant, finish: Sequence[str]) -> list[str]:
    """Return the statements that add ``one[j]`` and ``two[j]`` of all threads, before ``finish`` for channel ``c``."""
    groups, width = THREADS // v.lanes, v.width
    per_channel = width if v.last else 1
    whole = range(1, width) if not v.last else ()
    add = [f"own[{s * width}] += own[{s * width + j}];" for s in range(2) for j in whole]
    tree = [
        f"for (int apart = {groups // 2}; apart > 0; apart /= 2) {{",
        "__syncthreads();",
        f"if (group < apart) for (int j = 0; j < {2 * per_channel}; j++) "
        f"shared[j][threadIdx.x] += shared[j][threadIdx.x + apart * {v.lanes}];",
        "}",
    ]
    return [
        f"__shared__ double shared[{2 * per_channel}][{THREADS}];",
        "__shared__ bool is_last;",
        f"double own[{2 * width}];",
        f"for (int j = 0; j < {width}; j++) {{ own[j] = one[j]; own[{width} + j] = two[j]; }}",
        *add,
        f"for (int s = 0; s < 2; s++) for (int j = 0; j < {per_channel}; j++) "
        f"shared[s * {per_channel} + j][threadIdx.x] = own[s * {width} + j];",
        *tree,
        "volatile double* all = partial;",
        f"const i64 stride = 2 * (i64)tiles * {v.channels};",
        f"const i64 mine = 2 * (i64)(tile * {v.channels} + lane * {per_channel});",
        "if (group == 0)",
        f"for (int j = 0; j < {2 * per_channel}; j++) all[part * stride + mine + j] = shared[j][threadIdx.x];",
        "__syncthreads();",
        "if (threadIdx.x == 0) {",
        "__threadfence();  // of what the other threads have written, too",
        "is_last = atomicAdd(ended + tile, 1u) == parts - 1;",
        "}",
        "__syncthreads();",
        "if (!is_last) return;",
        "__threadfence();",
        f"for (int j = 0; j < {2 * per_channel}; j++) {{",
        "double total = 0;",
        f"for (int k = group; k < parts; k += {groups}) total += all[k * stride + mine + j];",
        "shared[j][threadIdx.x] = total;",
        "}",
        *tree,
        "if (threadIdx.x == 0) ended[tile] = 0;  // for the next launch",
        f"if (group == 0 && inside) for (int j = 0; j < {per_channel}; j++) {{",
        "const int c = first + j;",
        f"double sum_one = shared[j][threadIdx.x], sum_two = shared[{per_channel} + j][threadIdx.x];",
        *finish,
        "}",
    ]


def _memory() -> list[str]:
    return ["double* partial", "unsigned* ended"]


def _accumulators(v: ChannelsVariant) -> str:
    return f"{v.wide} one[{v.width}] = {{}}, two[{v.width}] = {{}};"


@functools.cache
def _stats_kernel(v: ChannelsVariant) -> Kernel:
    zero = "if (*weight == 0) { sum_one = 0; sum_two = 0; }" if v.weight is not None else ""
    number = "(double)images * pixels" if v.weight is None else "(*weight == 0 ? 0.0 : (double)images * pixels)"
    lines = [
        _accumulators(v),
        *_each(v, ["x"], ["one[j] += x_;", "two[j] += x_ * x_;"]),
        *_sums(v, [
            zero,
            f"sum[c] = ({v.wide})sum_one;",
            f"sumsq[c] = ({v.wide})sum_two;",
            f"if (c == 0) *number = ({v.wide})({number});" if v.counts else "",
        ]),
    ]  # fmt: skip
    parameters = [*_arrays(v, "x"), *_one("weight", v.weight), f"{v.wide}* sum", f"{v.wide}* sumsq"]
    parameters += [f"{v.wide}* number"] if v.counts else []
    return Kernel("channel_stats", _source(v, [*parameters, *_memory()], lines))


@functools.cache
def _backprop_stats_kernel(v: ChannelsVariant) -> Kernel:
    dz, body = "dy_", []
    if v.relu:
        total, storage = ("dy_ + addend_" if v.has("addend") else "dy_"), dict(v.images)["dz"]
        rounded = value_of(stored(f"(({total}) * ({v.wide})(y_ > 0))", storage), storage)  # as readers see it
        dz, body = "dz_", [f"const {v.wide} dz_ = {rounded};"]
    mean = f"means[{_own(v)}]"
    lines = [
        _accumulators(v),
        f"{v.wide} means[{v.width if v.last else 1}] = {{}};",
        f"if (inside) for (int j = 0; j < {v.width if v.last else 1}; j++) means[j] = mean[first + j];",
        *_each(
            v,
            [name for name in ("x", "dy", "y", "addend") if v.has(name)],
            [*body, f"one[j] += {dz} * (x_ - {mean});", f"two[j] += {dz};"],
            ["dz"] if v.relu else [],
        ),
        *_sums(v, [f"dscale[c] = ({v.wide})(sum_one * inverse[c]);", f"dbias[c] = ({v.wide})sum_two;"]),
    ]
    parameters = [*_arrays(v, "x"), *_numbers(v, "mean", "inverse"), *_arrays(v, "dy", "y", "addend")]
    parameters += [*_arrays(v, "dz", const=False), f"{v.wide}* dscale", f"{v.wide}* dbias", *_memory()]
    title = "channel_backprop_stats"
    return Kernel(f"relu_{title}" if v.relu else title, _source(v, parameters, lines))


def _of_channels(v: ChannelsVariant, names: Sequence[str], statements: Sequence[str]) -> list[str]:
    """Return the statements by which a block computes numbers of its channels, and each thread gets those of its own.

    Args:
        v: the variant.
        names: of the numbers; ``<name>[j]`` are a thread's.
        statements: set ``all_<name>[slot]`` for channel ``c``.
    """
    own = v.width if v.last else 1
    return [
        *(f"__shared__ {v.wide} all_{name}[{v.channels}];" for name in names),
        f"if (threadIdx.x < {v.channels}) {{",
        f"const int slot = threadIdx.x, c = tile * {v.channels} + slot;",
        "if (c < channels) {",
        *statements,
        "}}",
        "__syncthreads();",
        *(f"{v.wide} {name}[{own}];" for name in names),
        f"if (inside) for (int j = 0; j < {own}; j++) {{",
        *(f"{name}[j] = all_{name}[{f'lane * {v.width} + j' if v.last else '0'}];" for name in names),
        "}",
    ]


@functools.cache
def _normalize_kernel(v: ChannelsVariant) -> Kernel:
    root = "sqrt" if v.wide == "double" else "sqrtf"
    given = "(double)images * pixels * num_batches" if v.count is None else "(double)*count"
    channels = _of_channels(v, ["factor", "offset"], [  # in float64, because the variance is a difference
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
    own = _own(v)
    body = [f"{v.wide} y_ = x_ * factor[{own}] + offset[{own}]{' + addend_' if v.has('addend') else ''};"]
    body += ["y_ = (y_ > 0 || y_ != y_) ? y_ : 0;"] if v.relu else []
    lines = [*channels, *_each(v, [name for name in ("x", "addend") if v.has(name)], body, ["y"])]
    parameters = [*_arrays(v, "x"), *_numbers(v, "scale", "bias"), f"const {v.wide}* mean", f"const {v.wide}* variance"]
    parameters += [*_numbers(v, "sums", "sumsq"), *_one("count", v.count), *_arrays(v, "addend")]
    parameters += _arrays(v, "y", const=False)
    parameters += [f"{v.wide}* {name}" for name in ("new_mean", "new_variance", "saved_mean", "saved_inverse")]
    parameters += ["double epsilon", "double momentum", "double num_batches"]
    return Kernel("normalize_part", _source(v, parameters, lines))


@functools.cache
def _gradient_kernel(v: ChannelsVariant) -> Kernel:
    given = "(double)images * pixels * num_batches" if v.count is None else "(*count > 1 ? (double)*count : 1.0)"
    names = ["average", "inv", "factor", "of_bias", "of_scale"]
    channels = _of_channels(v, names, [
        f"const {v.wide} total = ({v.wide})({given});",
        "all_average[slot] = mean[c];",
        "all_inv[slot] = inverse[c];",
        "all_factor[slot] = scale[c] * inverse[c];",
        "all_of_bias[slot] = dbias_sum[c] / total;",
        "all_of_scale[slot] = dscale_sum[c] / total;",
        "if (part == 0) {",
        f"dscale[c] = dscale_sum[c] / ({v.wide})num_batches;",
        f"dbias[c] = dbias_sum[c] / ({v.wide})num_batches;",
        "}",
    ])  # fmt: skip
    own = _own(v)
    body = [
        f"const {v.wide} normal = (x_ - average[{own}]) * inv[{own}];",
        f"{v.wide} dx_ = factor[{own}] * (dy_ - of_bias[{own}] - normal * of_scale[{own}]);",
        "if (*weight == 0) dx_ = 0;" if v.weight is not None else "",
    ]
    lines = [*channels, *_each(v, ["x", "dy"], body, ["dx"])]
    parameters = [*_arrays(v, "x"), *_numbers(v, "scale"), *_arrays(v, "dy"), *_numbers(v, "mean", "inverse")]
    parameters += [*_numbers(v, "dscale_sum", "dbias_sum"), *_one("count", v.count), *_one("weight", v.weight)]
    parameters += [*_arrays(v, "dx", const=False), f"{v.wide}* dscale", f"{v.wide}* dbias", "double num_batches"]
    return Kernel("normalize_part_gradient", _source(v, parameters, lines))


# Prepared kernels.


def _serves(x: TensorSpec, images: Sequence[TensorSpec], numbers: Sequence[TensorSpec]) -> bool:
    """Whether all images are like X, floating-point and not empty, and all numbers of the type of statistics."""
    if x.dtype not in (np.float16, np.float32, np.float64) or x.size == 0:
        return False
    wide = np.float64 if x.dtype == np.float64 else np.float32
    return all((spec.shape, spec.dtype) == (x.shape, x.dtype) for spec in images) and all(
        spec.dtype == wide for spec in numbers
    )


class _Launcher:
    """What launches a kernel over images.

    Args:
        make: returns the kernel of a variant.
        found: the order of the images.
        named: the images by the names of the kernel's parameters.
        options: of the variant.
    """

    def __init__(
        self,
        make: Callable[[ChannelsVariant], Kernel],
        found: _Images,
        named: Mapping[str, TensorSpec],
        **options: Any,
    ) -> None:
        self._make, self._found = make, found
        self._images = tuple((name, elements_of(spec)) for name, spec in named.items())
        widest = max(array_dtype(elements).itemsize for _, elements in self._images)
        self._wide, self._narrow = (
            ChannelsVariant(found.last, width, found.lanes(width), self._images, **options)
            for width in (found.width(widest), 1)
        )
        self.name = f"cuda {make(self._wide).name}"

    @property
    def sums(self) -> int:
        """Bytes for the sums of all blocks."""
        return 16 * max(self._found.blocks(each) * each.channels for each in (self._wide, self._narrow))

    def bind(self, images: Sequence[Any], arguments: Sequence[Any], sums: Any = None) -> Call:
        """Return the call of the kernel.

        Args:
            images: the arrays of the images.
            arguments: all that comes before the extents, but memory for sums.
            sums: that memory.
        """
        sizes = [array_dtype(elements).itemsize for _, elements in self._images]
        aligned = all(array.data.ptr % (self._wide.width * size) == 0 for array, size in zip(images, sizes))
        chosen = self._wide if aligned else self._narrow
        memory = []
        if sums is not None:
            with gpu(images[0].device.id) as here:  # each launch leaves zeros
                memory = [sums, here.xp.zeros(self._found.tiles(chosen), np.uint32)]
        return partial(self._make(chosen), self._found.blocks(chosen), (*arguments, *memory, *self._found.extents))


def _as(x: TensorSpec, spec: TensorSpec) -> TensorSpec:
    """Return a spec of images in the order of X, with the elements that they have."""
    return in_order(spec, order_of(x), elements_of(spec))


def channel_stats(op: Any, ctx: PlanContext, x: TensorSpec, *weight: TensorSpec) -> Prepared | None:
    """Prepare ChannelStats: X, [weight] -> sum, sumsq, [count]."""
    if not _serves(x, (), ()) or any(spec.dtype.kind != "f" for spec in weight):
        return None
    found, given = _images(op, x), _as(x, x)
    kind = weight[0].dtype.name if weight else None
    launch = _Launcher(_stats_kernel, found, {"x": given}, weight=kind, counts=op.n_out > 2)

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
    found, images = _images(op, x), [_as(x, spec) for spec in (x, dy, *others)]
    named = dict(zip(("x", "dy", "y", "addend"), images))
    if others:
        named["dz"] = in_order(dy, order_of(x), elements_of(x))
    launch = _Launcher(_backprop_stats_kernel, found, named, relu=bool(others))

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
    found, images = _images(op, x), [_as(x, spec) for spec in (x, *addend)]
    y, count = in_order(x, order_of(x), elements_of(x)), numbers[6].dtype.name if len(numbers) > 6 else None
    launch = _Launcher(_normalize_kernel, found, dict(zip(("x", "addend"), images)) | {"y": y}, count=count, relu=relu)
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
    found, images = _images(op, x), [_as(x, x), _as(x, dy)]
    dx = in_order(x, order_of(x), elements_of(x))
    count, weight = (spec.dtype.name if spec is not None else None for spec in (*numbers[4:6], None, None)[:2])
    launch = _Launcher(_gradient_kernel, found, {"x": images[0], "dy": images[1], "dx": dx}, count=count, weight=weight)
    parts = np.float64(op.num_batches)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        return launch.bind([inputs[0], inputs[2], outputs[0]], [*inputs, *outputs, parts])

    given = [images[0], scale.plain, images[1], *(spec.plain for spec in numbers)]
    pairs = [(2, 0)] if given[2] == dx else []
    return _prepared(launch, given, [dx, scale.plain, scale.plain], bind, pairs=pairs)


def _prepared(
    launch: _Launcher,
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
