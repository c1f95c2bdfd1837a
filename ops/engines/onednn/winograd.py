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

from netbuilder.ops.engines.onednn import declarations as c
from netbuilder.ops.engines.onednn.convolutions import Views
from netbuilder.ops.engines.onednn.layout import View
from netbuilder.ops.engines.onednn.primitive import Extra, In, Out, Part, Place, PostOp, Step
from netbuilder.ops.engines.onednn.winograd_matrices import AT, FLOAT, TILE, WINDOW, constant, ones, plain, strided
from netbuilder.ops.engines.onednn.winograd_tiles import Lie, Missing, Room, Source, Tiles, over, zeroed
from netbuilder.ops.engines.onednn.winograd_weights import by_place, derived_weights
from netbuilder.ops.operator import TensorSpec

__all__ = ["Winograd", "data_gradient", "filter_gradient", "forward", "may_serve"]


@dataclass(frozen=True)
class Winograd:
    """How one convolution is computed: what it takes and gives, its steps and their scratch memory.

    Args:
        inputs, outputs: specs, as in ``Prepared``.
        steps: executions in order; ``Scratch`` places begin at 0.
        scratch: bytes.
    """

    weights: TensorSpec
    steps: Sequence[Step | Extra]
    scratch: int


def may_serve(v: Views, code: int) -> bool:
    """Whether this module computes a convolution: 3x3, strides of 1, one group, channels in whole blocks of 16."""
    if v.kind != "convolution" or code != c.F32 or len(v.x.dims) != 4 or len(v.weights.dims) != 4:
        return False
    strides, gaps, *_ = (tuple(part) for part in v.window)
    o, i, *window = v.weights.dims
    plain = strides == (1, 1) and gaps == (0, 0) and window == [WINDOW, WINDOW]
    return plain and i % 16 == 0 and o % 16 == 0 and min(v.y.dims) > 0


def forward(
    v: Views, x: TensorSpec, y: TensorSpec, bias: bool, post: Sequence[PostOp], w: TensorSpec, *, threads: int
) -> Winograd | None:
    """Return the forward convolution, X: input 0, weights 1, the bias 2, Y: output 0; None if it cannot be had.

    Args:
        v: the views of the convolution, of which ``may_serve`` is true.
        x, y: the images as they lie; w: the weights.
        bias: whether there is one.
        post: what is joined to the convolution; only a Relu can be.
    """
    if any(op.kind != "relu" for op in post):
        return None
    pads = tuple(v.window[2])
    return _images(v, (x, v.x, In(0)), (y, v.y, Out(0)), pads, w, In(2) if bias else None, post, threads, flipped=False)


def data_gradient(
    v: Views, dx: TensorSpec, dy: TensorSpec, w: TensorSpec, places: tuple[Place, Place, Place], *, threads: int
) -> Winograd | None:
    """Return the gradient of the images; None as for ``forward``.

    Args:
        places: of dY, the weights and dX.
    """
    pads = tuple(WINDOW - 1 - pad for pad in v.window[2])
    if min(pads) < 0 or min(WINDOW - 1 - pad for pad in v.window[3]) < 0:
        return None
    source, weights, target = places
    ends = (dy, v.y, source), (dx, v.x, target)
    return _images(v, *ends, pads, w, None, (), threads, flipped=True, weights=weights)


End = tuple[TensorSpec, View, Place]


def _images(
    v: Views, source: End, target: End, pads: tuple[int, ...], w: TensorSpec, bias: Place | None,
    post: Sequence[PostOp], threads: int, *, flipped: bool, weights: Place | None = None,
) -> Winograd | None:  # fmt: skip
    lies, wanted = (Lie.of(spec, view) for spec, view, _ in (source, target))
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
            plain(1, 1, k) if bias is not None else None, post,
        )  # fmt: skip
        regions = [(tiles.reorder(a, b), here, there) for a, here, b, there in tiles.results(wanted)]
    except Missing:
        return None
    products, results = over(read.free, AT, n, k), over(read.points, n, TILE**2, k)
    steps: list[Step | Extra] = [read.before()]
    size = tiles.images * wanted.image * FLOAT
    last: dict[int, Place] = {c.SRC: constant("results"), c.WEIGHTS: products, c.DST: results}
    if bias is not None:
        last[c.BIAS] = bias
    for part in range(tiles.parts):
        steps += read.steps(source[2], part)
        steps.append(Step(multiply, {c.SRC: read.points, c.WEIGHTS: weights or In(1), c.DST: products}))
        steps.append(Step(interpolate, last))
        for made, here, there in regions:
            read_at = Part(results, here, results.nbytes - here)
            steps.append(Step(made, {c.SRC: read_at, c.DST: Part(target[2], part * size + there, size - there)}))
    return Winograd(TensorSpec(w.shape, w.dtype, derived_weights(v.weights, flipped)), steps, room.nbytes)


def filter_gradient(
    v: Views, x: TensorSpec, dy: TensorSpec, w: TensorSpec, places: tuple[Place, Place, Place], bias: Place | None,
    *, threads: int,
) -> Winograd | None:  # fmt: skip
    """Return the gradient of the weights, and that of the bias if ``bias`` says where; None as for ``forward``.

    Args:
        v: the views of the convolution, of which ``may_serve`` is true.
        x, dy: the images as they lie.
        w: the weights. ``weights`` of the result is what the gradient is written as.
        places: of X, dY and the gradient of the weights.
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
        total = (tiles.product(*column), tiles.product(*column, post=more)) if bias is not None else None
        finish = tiles.product(plain(WINDOW**2, AT), plain(AT, ch * k), plain(WINDOW**2, ch * k))
    except Missing:
        return None
    results, points, sums = room.floats(n, TILE**2, k), over(read.free, AT, n, k), room.floats(AT, ch, k)
    steps: list[Step | Extra] = [read.before(), zeroed(results)]
    size = tiles.images * wanted.image * FLOAT
    for part in range(tiles.parts):
        steps += read.steps(places[0], part)
        for made, here, there in regions:
            written = Part(results, here, results.nbytes - here)
            steps.append(Step(made, {c.SRC: Part(places[1], part * size + there, size - there), c.DST: written}))
        steps.append(
            Step(evaluate, {c.SRC: constant("results gradient"), c.WEIGHTS: results, c.DST: points})
        )  # fmt: skip
        later = min(part, 1)
        steps.append(Step(multiply[later], {c.SRC: read.points, c.WEIGHTS: points, c.DST: sums}))
        if total is not None and bias is not None:
            steps.append(Step(total[later], {c.SRC: ones(n * TILE**2), c.WEIGHTS: results, c.DST: bias}))
    steps.append(Step(finish, {c.SRC: constant("window gradient"), c.WEIGHTS: sums, c.DST: places[2]}))
    return Winograd(TensorSpec(w.shape, w.dtype, by_place(v.weights)), steps, room.nbytes)
