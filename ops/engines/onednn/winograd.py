"""Convolutions with windows of 3x3 and strides of 1 by Winograd's minimal filtering, as products of matrices.

Four times four results need 36 multiplications a channel in place of 144: with six points in each direction, images
(in tiles of 6x6) and windows are evaluated at 36 points, multiplied point by point, channels summed, and the results
interpolated. oneDNN 3.2 has no such kernel for float32; its products of matrices and its reorders are all that this
takes. A few images are worked on at a time, so that their tiles stay in the caches.

Sources: S. Winograd, Arithmetic Complexity of Computations, 1980; A. Lavin and S. Gray, Fast Algorithms for
Convolutional Neural Networks, 2015.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.engines.onednn import declarations as c
from netbuilder.ops.engines.onednn.arguments import Part, Place, Room, Scratch
from netbuilder.ops.engines.onednn.convolutions import Views
from netbuilder.ops.engines.onednn.layout import View
from netbuilder.ops.engines.onednn.primitive import Extra, PostOp, Primitive, Step
from netbuilder.ops.engines.onednn.winograd_matrices import AT, FLOAT, TILE, WINDOW, constant, ones, plain, strided
from netbuilder.ops.engines.onednn.winograd_tiles import Lie, Missing, Source, Tiles, over, zeroed
from netbuilder.ops.engines.onednn.winograd_weights import by_place, derived_weights

__all__ = ["FilterGradient", "Winograd", "data_gradient", "filter_gradient", "forward", "may_serve"]

Region = tuple[Primitive, int, int]
"""A copy between results in tiles and as they lie, and where the two begin, in bytes."""


@dataclass(frozen=True)
class Winograd:
    """A convolution, or the gradient of one's images.

    Args:
        view: the weights.
        flipped: whether windows are turned round, as for the gradient.
        read: brings images to the points.
        multiply, interpolate: the products with the windows, and of their results with the matrix of results.
        regions: of the results.
        products, results: where those of a part lie.
        target_bytes: of one part of the results, as they lie.
        scratch: bytes of scratch memory.
    """

    view: View
    flipped: bool
    read: Source
    multiply: Primitive
    interpolate: Primitive
    regions: Sequence[Region]
    products: Scratch
    results: Scratch
    target_bytes: int
    scratch: int

    def weights(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec in which weights are wanted."""
        return TensorSpec(spec.shape, spec.dtype, derived_weights(self.view, self.flipped))

    def steps(self, source: Place, target: Place, weights: Place, bias: Place | None = None) -> list[Step | Extra]:
        """Return the executions for a whole batch.

        Args:
            source, target: the images as they lie.
            weights: as ``weights`` wants them.
            bias: given if this was made for one.
        """
        last: dict[int, Place] = {c.SRC: constant("results"), c.WEIGHTS: self.products, c.DST: self.results}
        if bias is not None:
            last[c.BIAS] = bias
        steps: list[Step | Extra] = [self.read.before()]
        for part in range(self.read.tiles.parts):
            steps += self.read.steps(source, part)
            steps.append(Step(self.multiply, {c.SRC: self.read.points, c.WEIGHTS: weights, c.DST: self.products}))
            steps.append(Step(self.interpolate, last))
            for made, here, there in self.regions:
                inside, lies = _ends(self.results, here, target, self.target_bytes, part, there)
                steps.append(Step(made, {c.SRC: inside, c.DST: lies}))
        return steps


@dataclass(frozen=True)
class FilterGradient:
    """The gradient of a convolution's weights and, where it was asked for, of its bias.

    Args:
        view: the weights.
        read: brings images to the points.
        regions: of dY.
        evaluate: brings dY to the points.
        multiply: the sums over the images of the first part, and what adds those of a later one.
        total: likewise for the bias.
        finish: from the points to the windows.
        results, points, sums: where dY in tiles, dY at the points, and the sums lie.
        source_bytes: of one part of dY, as it lies.
        scratch: bytes of scratch memory.
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

    def weights(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec in which the gradient of the weights is written."""
        return TensorSpec(spec.shape, spec.dtype, by_place(self.view))

    def steps(self, x: Place, dy: Place, dw: Place, bias: Place | None = None) -> list[Step | Extra]:
        """Return the executions for a whole batch; ``bias``, its gradient, is given if this was made for one."""
        steps: list[Step | Extra] = [self.read.before(), zeroed(self.results)]
        for part in range(self.read.tiles.parts):
            later = min(part, 1)
            steps += self.read.steps(x, part)
            for made, here, there in self.regions:
                inside, lies = _ends(self.results, here, dy, self.source_bytes, part, there)
                steps.append(Step(made, {c.SRC: lies, c.DST: inside}))
            to_points: dict[int, Place] = {c.SRC: constant("results gradient"), c.WEIGHTS: self.results}
            steps.append(Step(self.evaluate, {**to_points, c.DST: self.points}))
            steps.append(
                Step(self.multiply[later], {c.SRC: self.read.points, c.WEIGHTS: self.points, c.DST: self.sums})
            )
            if self.total is not None and bias is not None:
                each = ones(self.read.tiles.count * TILE**2)
                steps.append(Step(self.total[later], {c.SRC: each, c.WEIGHTS: self.results, c.DST: bias}))
        return [*steps, Step(self.finish, {c.SRC: constant("window gradient"), c.WEIGHTS: self.sums, c.DST: dw})]


def _ends(tiles: Scratch, here: int, images: Place, size: int, part: int, there: int) -> tuple[Part, Part]:
    """Return where a region of results begins in tiles, and in a part of images of ``size`` bytes."""
    return Part(tiles, here, tiles.nbytes - here), Part(images, part * size + there, size - there)


def may_serve(v: Views, code: int) -> bool:
    """Whether this module computes a convolution: 3x3, strides of 1, one group, channels in whole blocks of 16."""
    if v.kind != "convolution" or code != c.F32 or len(v.x.dims) != 4 or len(v.weights.dims) != 4:
        return False
    strides, gaps, *_ = (tuple(part) for part in v.window)
    o, i, *window = v.weights.dims
    plain = strides == (1, 1) and gaps == (0, 0) and window == [WINDOW, WINDOW]
    return plain and i % 16 == 0 and o % 16 == 0 and min(v.y.dims) > 0


def forward(
    v: Views, x: TensorSpec, y: TensorSpec, bias: bool, post: Sequence[PostOp], *, threads: int
) -> Winograd | None:
    """Return the forward convolution; None if it cannot be had.

    Args:
        v: the views of the convolution, of which ``may_serve`` is true.
        x, y: the images as they lie.
        bias: whether there is one.
        post: what is joined to the convolution; only a Relu can be.
    """
    if any(op.kind != "relu" for op in post):
        return None
    return _images(v, (x, v.x), (y, v.y), tuple(v.window[2]), bias, post, threads, flipped=False)


def data_gradient(v: Views, dx: TensorSpec, dy: TensorSpec, *, threads: int) -> Winograd | None:
    """Return the gradient of the images; None as for ``forward``."""
    pads = tuple(WINDOW - 1 - pad for pad in v.window[2])
    if min(pads) < 0 or min(WINDOW - 1 - pad for pad in v.window[3]) < 0:
        return None
    return _images(v, (dy, v.y), (dx, v.x), pads, False, (), threads, flipped=True)


End = tuple[TensorSpec, View]


def _images(
    v: Views, source: End, target: End, pads: tuple[int, ...], bias: bool, post: Sequence[PostOp], threads: int,
    *, flipped: bool,
) -> Winograd | None:  # fmt: skip
    lies, wanted = Lie.of(*source), Lie.of(*target)
    if lies is None or wanted is None:
        return None
    height, width = target[1].dims[2:]
    tiles, room = Tiles.of(v, height, width, threads), Room()
    n, ch, k = tiles.count, lies.channels, wanted.channels
    try:
        read = Source(tiles, lies, source[1].dims[2:], pads, k, room)
        windows = strided((AT, ch, k), (ch * k, 1, ch)) if flipped else plain(AT, ch, k)
        multiply = tiles.product(plain(AT, n, ch), windows, plain(AT, n, k))
        interpolate = tiles.product(
            plain(1, TILE**2, AT), strided((n, AT, k), (k, n * k, 1)), plain(n, TILE**2, k),
            plain(1, 1, k) if bias else None, post,
        )  # fmt: skip
        regions = [(tiles.reorder(a, b), here, there) for a, here, b, there in tiles.results(wanted)]
    except Missing:
        return None
    products, results = over(read.free, AT, n, k), over(read.points, n, TILE**2, k)
    size = tiles.images * wanted.image * FLOAT
    return Winograd(v.weights, flipped, read, multiply, interpolate, regions, products, results, size, room.nbytes)


def filter_gradient(v: Views, x: TensorSpec, dy: TensorSpec, bias: bool, *, threads: int) -> FilterGradient | None:
    """Return the gradient of the weights and, if ``bias``, that of the bias; None as for ``forward``.

    Args:
        v: the views of the convolution, of which ``may_serve`` is true.
        x, dy: the images as they lie.
    """
    lies, wanted = Lie.of(x, v.x), Lie.of(dy, v.y)
    if lies is None or wanted is None:
        return None
    height, width = v.y.dims[2:]
    tiles, room = Tiles.of(v, height, width, threads), Room()
    n, ch, k = tiles.count, lies.channels, wanted.channels
    each = strided((AT, ch, n), (n * ch, 1, ch)), plain(AT, n, k), plain(AT, ch, k)
    column = plain(1, n * TILE**2), plain(n * TILE**2, k), plain(1, k)
    more = (PostOp("sum"),)
    try:
        read = Source(tiles, lies, v.x.dims[2:], tuple(v.window[2]), k, room)
        regions = [(tiles.reorder(b, a), here, there) for a, here, b, there in tiles.results(wanted)]
        evaluate = tiles.evaluated(TILE**2, k)
        multiply = tiles.product(*each), tiles.product(*each, post=more)
        total = (tiles.product(*column), tiles.product(*column, post=more)) if bias else None
        finish = tiles.product(plain(WINDOW**2, AT), plain(AT, ch * k), plain(WINDOW**2, ch * k))
    except Missing:
        return None
    results, points, sums = room.numbers(n, TILE**2, k), over(read.free, AT, n, k), room.numbers(AT, ch, k)
    size = tiles.images * wanted.image * FLOAT
    return FilterGradient(
        v.weights, read, regions, evaluate, multiply, total, finish, results, points, sums, size, room.nbytes
    )
