"""What kernels over the channels of images are made of: the loop of a thread over its places, sums, and the launch.

A thread has some channels, for which it goes through a part of the images, which it reads as they are stored, in plain
order or with channels last, 16 bytes at once where it can. Sums are those of each block, which the last block of the
channels adds in the order of the blocks: so results do not change from run to run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from netbuilder.engines.cuda.code import c_type, stored, value_of, with_prelude
from netbuilder.engines.cuda.gpu_layout import array_dtype, elements_of, in_order, order_of
from netbuilder.engines.cuda.kernel import THREADS, Kernel
from netbuilder.engines.gpu import gpu
from netbuilder.ops.core.contexts import Call
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "ChannelsVariant",
    "Images",
    "Launcher",
    "accumulators",
    "arrays",
    "as_stored",
    "each_place",
    "images_of",
    "memory_of_sums",
    "normalized",
    "normalized_again",
    "numbers_of",
    "of_channels",
    "one_number",
    "own_channel",
    "passes",
    "rectified",
    "source",
    "sums",
    "widest",
]

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
        limit: the largest result of a Relu that is computed, too, or whose gradient is; inf: there is a Relu without a
            limit; None: there is none.
    """

    last: bool
    width: int
    lanes: int
    images: tuple[tuple[str, str], ...]
    weight: str | None = None
    count: str | None = None
    counts: bool = False
    limit: float | None = None

    @property
    def relu(self) -> bool:
        return self.limit is not None

    @property
    def wide(self) -> str:
        """The type of statistics, in which elements are computed."""
        return "double" if dict(self.images)["x"] == "float64" else "float"

    @property
    def channels(self) -> int:
        """Channels of a block."""
        return self.lanes * self.width if self.last else 1

    @property
    def masked(self) -> bool:
        """Whether the kernel for sums notes where the Relu's result is positive, a byte for each read of a thread.

        So it is where several elements of Y are read at once, unless the gradient of the Relu is written.
        """
        return self.relu and self.has("y") and self.width > 1 and not self.has("dz")

    def has(self, name: str) -> bool:
        return any(name == other for other, _ in self.images)


@dataclass(frozen=True)
class Images:
    """The order of images in memory."""

    images: int
    channels: int
    pixels: int
    last: bool

    def width(self, itemsize: int) -> int:
        """Return how many consecutive elements a thread can read at once."""
        return widest(self.channels if self.last else self.pixels, itemsize)

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


def widest(count: int, itemsize: int) -> int:
    """Return how many elements at once a thread can read of rows of ``count``: as many as divide it."""
    return math.gcd(count, _MOST_BYTES // itemsize)


def images_of(op: Any, x: TensorSpec) -> Images:
    """Return the order of the images of an operator."""
    order = order_of(x)
    if order is not None:
        return Images(order.images, order.channels, order.pixels, True)
    if op.order == "NHWC":
        return Images(x.shape[0], x.shape[-1], math.prod(x.shape[1:-1]), True)
    pixels = math.prod(x.shape[2:])
    return Images(x.shape[0], x.shape[1], pixels, pixels == 1)


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


def each_place(
    v: ChannelsVariant, reads: Sequence[str], body: Sequence[str], writes: Sequence[str] = (), *,
    before: str = "", after: str = "",
) -> list[str]:  # fmt: skip
    """Return the loop of a thread over its places.

    Args:
        v: the variant.
        reads: arrays that are read, of which ``<name>_`` is an element.
        body: the statements for element ``j`` of a place; they set ``<name>_`` of what is written.
        writes: arrays that are written.
        before, after: statements around those of all elements of a place, whose first one has the index ``at``.
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
        before,
        "#pragma unroll",
        f"for (int j = 0; j < {v.width}; j++) {{",
        *(f"const {v.wide} {name}_ = {value_of(f'{name}_pack.v[j]', types[name])};" for name in reads),
        *body,
        *(f"{name}_out.v[j] = {stored(f'{name}_', types[name])};" for name in writes),
        "}",
        after,
        *(f"*(Pack<{c_type(types[name])}>*)({name} + at) = {name}_out;" for name in writes),
        "}",
    ]
    return lines


def source(v: ChannelsVariant, parameters: Sequence[str], lines: Sequence[str]) -> str:
    """Return a kernel's source, given its parameters before the extents, and its statements."""
    pack = f"template <typename T> struct alignas(sizeof(T) * {v.width}) Pack {{ T v[{v.width}]; }};"
    head = f'extern "C" __global__ void NAME({", ".join([*parameters, "i64 images", "int channels", "i64 pixels"])}) {{'
    return with_prelude("\n".join([pack, head, *_places(v), *lines, "}", ""]))


def arrays(v: ChannelsVariant, *names: str, const: bool = True) -> list[str]:
    """Return the parameters for those of some images that the variant has."""
    types = dict(v.images)
    return [f"{'const ' if const else ''}{c_type(types[name])}* {name}" for name in names if name in types]


def numbers_of(v: ChannelsVariant, *names: str) -> list[str]:
    """Return the parameters for arrays of one number for each channel that are read."""
    return [f"const {v.wide}* {name}" for name in names]


def one_number(name: str, storage: str | None) -> list[str]:
    """Return the parameter for an array of one number; [] if it has no type."""
    return [] if storage is None else [f"const {c_type(storage)}* {name}"]


def own_channel(v: ChannelsVariant) -> str:
    """Return the index of an element's channel among those of the thread."""
    return "j" if v.last else "0"


def rectified(v: ChannelsVariant, name: str) -> list[str]:
    """Return the statements for the Relu of a variable; [] without one. What is not a number stays so."""
    limit = f"({v.wide}){v.limit!r}"
    lower = [f"{name} = ({name} > 0 || {name} != {name}) ? {name} : 0;"] if v.relu else []
    return [*lower, *([f"{name} = {name} > {limit} ? {limit} : {name};"] if v.relu and v.limit != math.inf else [])]


def passes(v: ChannelsVariant) -> str:
    """Return whether the gradient of the Relu passes on that of its result ``y_``, which is below the stored limit."""
    storage = dict(v.images)["x"]
    limit = value_of(stored(f"({v.wide}){v.limit!r}", storage), storage)
    return "y_ > 0" if v.limit == math.inf else f"(y_ > 0 && y_ < {limit})"


def normalized(v: ChannelsVariant) -> str:
    """Return the normalized ``x_``, from ``average``, ``factor`` and ``offset`` of a thread's channels.

    Products are rounded before they are added (``kernel.OPTIONS``), so this has the same bits in all kernels.
    """
    own = own_channel(v)
    return f"(x_ - average[{own}]) * factor[{own}] + offset[{own}]"


def normalized_again(v: ChannelsVariant) -> list[str]:
    """Return the statements for ``y_``, the Relu's result as a kernel has stored it, in the type of X."""
    storage = dict(v.images)["x"]
    again = [f"{v.wide} again_ = {normalized(v)};", *rectified(v, "again_")]
    return [*again, f"const {v.wide} y_ = {value_of(stored('again_', storage), storage)};"]


def sums(v: ChannelsVariant, finish: Sequence[str]) -> list[str]:
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


def memory_of_sums() -> list[str]:
    """Return the parameters for the memory of sums, which follow all others but the extents."""
    return ["double* partial", "unsigned* ended"]


def accumulators(v: ChannelsVariant) -> str:
    """Return the statement for a thread's two sums of each of its elements."""
    return f"{v.wide} one[{v.width}] = {{}}, two[{v.width}] = {{}};"


def of_channels(v: ChannelsVariant, names: Sequence[str], statements: Sequence[str]) -> list[str]:
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


class Launcher:
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
        found: Images,
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
    def masked(self) -> bool:
        """Whether the kernel for images at aligned addresses uses a mask (see ``ChannelsVariant``)."""
        return self._wide.masked

    @property
    def width(self) -> int:
        """Consecutive elements that a thread reads at once at aligned addresses."""
        return self._wide.width

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


def as_stored(x: TensorSpec, spec: TensorSpec) -> TensorSpec:
    """Return a spec of images in the order of X, with the elements that they have."""
    return in_order(spec, order_of(x), elements_of(spec))
