"""Convolutions with 3x3 filters and strides of 1 by Winograd's minimal filtering, with matrix products.

A tile of 4x4 results takes 36 multiplications per channel instead of 144: tiles of 6x6 of the images, and the filters,
are evaluated at 36 points (six in each direction), multiplied point by point, summed over channels, and the results
interpolated. oneDNN 3.2 has no such kernel for float32; its matrix products and reorders suffice. A few images are
processed at a time, so that their tiles stay in the caches.

Sources: S. Winograd, Arithmetic Complexity of Computations, 1980; A. Lavin and S. Gray, Fast Algorithms for
Convolutional Neural Networks, 2015.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn.arguments import MemoryRef, Part, Scratch, ScratchAllocator
from netbuilder.engines.onednn.blocked_layout import BlockedLayout, View, layout_of, row_major
from netbuilder.engines.onednn.convolutions import Views
from netbuilder.engines.onednn.primitive import Extra, PostOp, Primitive, Step
from netbuilder.engines.onednn.winograd_matrices import AT, FLOAT, TILE, WINDOW, constant, ones, plain, strided
from netbuilder.engines.onednn.winograd_tiles import ImageStrides, Missing, Source, Tiles, by_tile, reuse, zeroed
from netbuilder.engines.onednn.winograd_weights import by_window_position, derived_weights
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["FilterGradient", "Winograd", "data_gradient", "filter_gradient", "forward", "may_serve"]

Region = tuple[Primitive, int, int]
"""A copy between results in tiles and in the image's layout, and the offsets of the two in bytes."""


@dataclass(frozen=True)
class Winograd:
    """A convolution, or the gradient of one's images.

    Args:
        view: the weights.
        flipped: whether filters are rotated by 180 degrees, as for the gradient.
        order: of the evaluated filters; None: row-major.
        read: evaluates images at the points.
        multiply: the products with the evaluated filters.
        interpolate: the product of these with the interpolation matrix.
        regions: the copies of the results.
        products, results: the memory of both for one chunk.
        target_bytes: bytes of one chunk of the results, in the image's layout.
        scratch: bytes of scratch memory.
        direct_flops: floating-point operations of the convolution without minimal filtering.
    """

    view: View
    flipped: bool
    order: BlockedLayout | None
    read: Source
    multiply: Primitive
    interpolate: Primitive
    regions: Sequence[Region]
    products: Scratch
    results: Scratch
    target_bytes: int
    scratch: int
    direct_flops: int

    @property
    def saved_flops(self) -> int:
        """How many floating-point operations fewer than ``direct_flops`` the matrix products do."""
        each = (self.read.evaluate, self.multiply, self.interpolate)
        return self.direct_flops - self.read.tiles.parts * sum(made.flops for made in each)

    def weights(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec in which the weights are read."""
        return TensorSpec(spec.shape, spec.dtype, derived_weights(self.view, self.flipped, self.order))

    def steps(
        self, source: MemoryRef, target: MemoryRef, weights: MemoryRef, bias: MemoryRef | None = None
    ) -> list[Step | Extra]:
        """Return the executions for a whole batch.

        Args:
            source, target: the images.
            weights: in the layout that ``weights`` returns.
            bias: given if this was made for one.
        """
        last: dict[int, MemoryRef] = {c.SRC: constant("results"), c.WEIGHTS: self.products, c.DST: self.results}
        if bias is not None:
            last[c.BIAS] = bias
        steps: list[Step | Extra] = [self.read.before()]
        for part in range(self.read.tiles.parts):
            steps += self.read.steps(source, part)
            steps.append(Step(self.multiply, {c.SRC: self.read.points, c.WEIGHTS: weights, c.DST: self.products}))
            steps.append(Step(self.interpolate, last))
            for made, here, there in self.regions:
                tiles, images = _region_memory(self.results, here, target, self.target_bytes, part, there)
                steps.append(Step(made, {c.SRC: tiles, c.DST: images}))
        return steps


@dataclass(frozen=True)
class FilterGradient:
    """The gradient of a convolution's weights and, if requested, of its bias.

    Args:
        view: the weights.
        read: evaluates images at the points.
        regions: the copies of dY.
        evaluate: evaluates dY at the points.
        multiply: computes the sums over the images of the first chunk, and adds those of a later one.
        total: likewise for the bias.
        finish: computes the gradients of the filters from the sums at the points.
        results, points, sums: the memory of dY in tiles, of dY at the points, and of the sums.
        source_bytes: bytes of one chunk of dY, in the image's layout.
        scratch: bytes of scratch memory.
        direct_flops: floating-point operations of the gradient without minimal filtering.
    """

    view: View
    read: Source
    regions: Sequence[Region]
    evaluate: Primitive
    multiply: tuple[Primitive, Primitive]
    total: tuple[Primitive, Primitive] | None
    finish: Primitive
    results: Scratch
    points: Scratch
    sums: Scratch
    source_bytes: int
    scratch: int
    direct_flops: int

    @property
    def saved_flops(self) -> int:
        """How many floating-point operations fewer than ``direct_flops`` the matrix products do."""
        each = (self.read.evaluate, self.evaluate, self.multiply[0])
        return self.direct_flops - self.read.tiles.parts * sum(made.flops for made in each) - self.finish.flops

    def weights(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec in which the gradient of the weights is written."""
        return TensorSpec(spec.shape, spec.dtype, by_window_position(self.view))

    def steps(self, x: MemoryRef, dy: MemoryRef, dw: MemoryRef, bias: MemoryRef | None = None) -> list[Step | Extra]:
        """Return the executions for a whole batch; ``bias`` is the bias's gradient, if this was made for one."""
        steps: list[Step | Extra] = [self.read.before(), zeroed(self.results)]
        for part in range(self.read.tiles.parts):
            later = min(part, 1)
            steps += self.read.steps(x, part)
            for made, here, there in self.regions:
                tiles, images = _region_memory(self.results, here, dy, self.source_bytes, part, there)
                steps.append(Step(made, {c.SRC: images, c.DST: tiles}))
            to_points: dict[int, MemoryRef] = {c.SRC: constant("results gradient"), c.WEIGHTS: self.results}
            steps.append(Step(self.evaluate, {**to_points, c.DST: self.points}))
            steps.append(
                Step(self.multiply[later], {c.SRC: self.read.points, c.WEIGHTS: self.points, c.DST: self.sums})
            )
            if self.total is not None and bias is not None:
                each = ones(self.read.tiles.count * TILE**2)
                steps.append(Step(self.total[later], {c.SRC: each, c.WEIGHTS: self.results, c.DST: bias}))
        return [*steps, Step(self.finish, {c.SRC: constant("window gradient"), c.WEIGHTS: self.sums, c.DST: dw})]


def _region_memory(tiles: Scratch, here: int, images: MemoryRef, size: int, part: int, there: int) -> tuple[Part, Part]:
    """Return the memory from a region's begin on: in tiles, and in a chunk of images of ``size`` bytes."""
    return Part(tiles, here, tiles.nbytes - here), Part(images, part * size + there, size - there)


def may_serve(v: Views, code: int) -> bool:
    """Whether this module supports a convolution: 3x3, strides of 1, one group, channels in multiples of 16."""
    if v.kind != "convolution" or code != c.F32 or len(v.x.dims) != 4 or len(v.weights.dims) != 4:
        return False
    strides, gaps, *_ = (tuple(part) for part in v.window)
    o, i, *window = v.weights.dims
    plain = strides == (1, 1) and gaps == (0, 0) and window == [WINDOW, WINDOW]
    return plain and i % 16 == 0 and o % 16 == 0 and min(v.y.dims) > 0


def forward(
    v: Views, x: TensorSpec, y: TensorSpec, bias: bool, post: Sequence[PostOp], *, constant_weights: bool, threads: int
) -> Winograd | None:
    """Return the forward convolution; None if oneDNN lacks a primitive for it.

    Args:
        v: the views of the convolution, for which ``may_serve`` is true.
        x, y: the specs of the images.
        bias: whether there is a bias.
        post: fused operations; only a Relu is supported.
        constant_weights: whether filters are evaluated once, so that it does not matter how long it takes to store them
            in the order in which products read them fastest.
        threads: number of threads.
    """
    if any(op.kind != "product relu" for op in post):
        return None
    any_order = constant_weights
    return _images(v, (x, v.x), (y, v.y), tuple(v.window[2]), bias, post, threads, flipped=False, any_order=any_order)


def data_gradient(v: Views, dx: TensorSpec, dy: TensorSpec, *, threads: int) -> Winograd | None:
    """Return the gradient of the images; None as for ``forward``."""
    pads = tuple(WINDOW - 1 - pad for pad in v.window[2])
    if min(pads) < 0 or min(WINDOW - 1 - pad for pad in v.window[3]) < 0:
        return None
    return _images(v, (dy, v.y), (dx, v.x), pads, False, (), threads, flipped=True)


End = tuple[TensorSpec, View]


def _images(
    v: Views, source: End, target: End, pads: tuple[int, ...], bias: bool, post: Sequence[PostOp], threads: int,
    *, flipped: bool, any_order: bool = False,
) -> Winograd | None:  # fmt: skip
    read_strides, write_strides = ImageStrides.of(*source), ImageStrides.of(*target)
    if read_strides is None or write_strides is None:
        return None
    height, width = target[1].dims[2:]
    tiles, scratch_memory = Tiles.of(v, height, width, threads), ScratchAllocator()
    n, ch, k = tiles.count, read_strides.channels, write_strides.channels
    try:
        read = Source(tiles, read_strides, source[1].dims[2:], pads, k, scratch_memory)
        windows = strided((AT, ch, k), (ch * k, 1, ch)) if flipped else plain(AT, ch, k)
        read_windows = windows.any_order if any_order else windows
        multiply = tiles.product(plain(AT, n, ch), read_windows, plain(AT, n, k))
        interpolate = tiles.product(
            plain(1, 1, TILE**2, AT), by_tile(n, AT, k), plain(1, n, TILE**2, k),
            plain(1, 1, 1, k) if bias else None, post,
        )  # fmt: skip
        regions = [(tiles.reorder(a, b), here, there) for a, here, b, there in tiles.results(write_strides)]
    except Missing:
        return None
    products, results = reuse(read.reusable, AT, n, k), reuse(read.points, n, TILE**2, k)
    size = tiles.images * write_strides.image * FLOAT
    order = layout_of(multiply.argument(c.WEIGHTS), row_major((AT, ch, k))) if any_order else None
    return Winograd(
        v.weights, flipped, order, read, multiply, interpolate, regions, products, results, size, scratch_memory.nbytes,
        _direct_flops(v),
    )  # fmt: skip


def filter_gradient(v: Views, x: TensorSpec, dy: TensorSpec, bias: bool, *, threads: int) -> FilterGradient | None:
    """Return the gradient of the weights and, if ``bias``, that of the bias; None as for ``forward``.

    Args:
        v: the views of the convolution, for which ``may_serve`` is true.
        x, dy: the specs of the images.
        bias: whether the gradient of the bias is computed.
        threads: number of threads.
    """
    x_strides, dy_strides = ImageStrides.of(x, v.x), ImageStrides.of(dy, v.y)
    if x_strides is None or dy_strides is None:
        return None
    height, width = v.y.dims[2:]
    tiles, scratch_memory = Tiles.of(v, height, width, threads), ScratchAllocator()
    n, ch, k = tiles.count, x_strides.channels, dy_strides.channels
    each = strided((AT, ch, n), (n * ch, 1, ch)), plain(AT, n, k), plain(AT, ch, k)
    column = plain(1, n * TILE**2), plain(n * TILE**2, k), plain(1, k)
    more = (PostOp("sum"),)
    try:
        read = Source(tiles, x_strides, v.x.dims[2:], tuple(v.window[2]), k, scratch_memory)
        regions = [(tiles.reorder(b, a), here, there) for a, here, b, there in tiles.results(dy_strides)]
        evaluate = tiles.evaluated(TILE**2, k)
        multiply = tiles.product(*each), tiles.product(*each, post=more)
        total = (tiles.product(*column), tiles.product(*column, post=more)) if bias else None
        finish = tiles.product(plain(WINDOW**2, AT), plain(AT, ch * k), plain(WINDOW**2, ch * k))
    except Missing:
        return None
    results, points, sums = (
        scratch_memory.allocate_words(n, TILE**2, k),
        reuse(read.reusable, AT, n, k),
        scratch_memory.allocate_words(AT, ch, k),
    )
    size = tiles.images * dy_strides.image * FLOAT
    return FilterGradient(
        v.weights, read, regions, evaluate, multiply, total, finish, results, points, sums, size, scratch_memory.nbytes,
        _direct_flops(v),
    )  # fmt: skip


def _direct_flops(v: Views) -> int:
    """Return the operations of a convolution, which are those of either of its gradients."""
    n, _, *image = v.y.dims
    return 2 * n * math.prod(image) * math.prod(v.weights.dims)
