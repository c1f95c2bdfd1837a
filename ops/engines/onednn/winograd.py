"""Convolutions with windows of 3x3 and strides of 1 by Winograd's minimal filtering, as products of matrices.

Four times four results need 36 multiplications a channel in place of 144: with six points in each direction, images
(in tiles of 6x6) and windows are evaluated at 36 points, multiplied point by point, channels summed, and the results
interpolated. oneDNN 3.2 has no such kernel for float32; its products of matrices and its reorders are all that this
takes. A few images are worked on at a time, so that their tiles stay in the caches.

The points are 0, 3/4, -3/4, 3/2, -3/2 and infinity: with them, results in float32 are a few units of 1e-6 of the
greatest one from exact ones (with 0, 1, -1, 2, -2 and infinity, four times as far).

Sources: S. Winograd, Arithmetic Complexity of Computations, 1980; A. Lavin and S. Gray, Fast Algorithms for
Convolutional Neural Networks, 2015; B. Barabasz et al., Error Analysis and Improving the Accuracy of Winograd
Convolution for Deep Neural Networks, 2018 (on the choice of points).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from netbuilder.ops.contexts import Call, PlanContext, Prepared
from netbuilder.ops.engines.arrays import as_flat
from netbuilder.ops.engines.onednn import declarations as c
from netbuilder.ops.engines.onednn.convolutions import Views
from netbuilder.ops.engines.onednn.layout import (
    BlockedLayout,
    DerivedLayout,
    Desc,
    View,
    channel_block,
    desc_of,
    layout_of,
    plain_in,
    row_major,
)
from netbuilder.ops.engines.onednn.library import dnnl
from netbuilder.ops.engines.onednn.primitive import (
    Extra,
    Held,
    In,
    Out,
    Part,
    Place,
    PostOp,
    Primitive,
    Scratch,
    Step,
    cached,
    compile_primitive,
    prepared,
)
from netbuilder.ops.engines.onednn.reorders import reorder_primitive
from netbuilder.ops.operator import TensorSpec

__all__ = ["Winograd", "data_gradient", "filter_gradient", "forward", "may_serve"]

TILE, WINDOW, POINTS = 4, 3, 6
_FINITE = (0.0, 0.75, -0.75, 1.5, -1.5)
_AT = POINTS * POINTS  # products of a tile and channel
_ROOM = 5 << 20  # bytes of tiles, of images and of results, that are worked on at a time
_FLOAT = 4  # bytes


@functools.cache
def matrices() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return B', G and A' of one direction: results are A' (G g * B' d) for a window g of 3 and data d of 6."""
    evaluate = [_evaluation(extent) for extent in (POINTS, WINDOW, TILE)]
    whole, window, tile = evaluate
    return np.linalg.inv(whole).T, window, tile.T


def _evaluation(extent: int) -> np.ndarray[Any, Any]:
    """Return the matrix that takes coefficients to values at the points; at infinity the value is the last one."""
    finite = np.vander(np.array(_FINITE), extent, increasing=True)
    return np.vstack([finite, np.eye(extent)[-1:]])


@functools.cache
def _constant(which: str) -> Held:
    """Return the memory of a matrix for both directions: rows by columns as the products want it."""
    b, g, a = matrices()
    flipped = g[:, ::-1]
    found = {
        "data": np.kron(b, b), "window": np.kron(g, g), "flipped": np.kron(flipped, flipped), "results": np.kron(a, a),
        "results gradient": np.kron(a, a).T, "window gradient": np.kron(g, g).T,
    }[which]  # fmt: skip
    held = Held(found.size * _FLOAT)
    as_flat(held.buffer, np.float32)[:] = found.astype(np.float32).reshape(-1)
    return held


@functools.cache
def _ones(n: int) -> Held:
    held = Held(n * _FLOAT)
    as_flat(held.buffer, np.float32)[:] = 1
    return held


@cached
def _product(a: Desc, b: Desc, bias: Desc | None, y: Desc, post: tuple[PostOp, ...]) -> Primitive:
    null = dnnl().ffi.NULL
    return compile_primitive("matmul", a.handle, b.handle, null if bias is None else bias.handle, y.handle, post=post)


def _plain(*dims: int) -> Desc:
    return plain_in(row_major(dims), c.F32)


def _strided(dims: Sequence[int], strides: Sequence[int]) -> Desc:
    return plain_in(View(tuple(dims), tuple(strides)), c.F32)


@dataclass(frozen=True)
class _Lie:
    """Where the elements of images lie: strides of images, blocks of channels, rows, columns and within a block."""

    channels: int
    block: int
    image: int
    group: int
    row: int
    column: int
    inner: int

    @property
    def groups(self) -> int:
        return self.channels // self.block

    @staticmethod
    def of(spec: TensorSpec, view: View) -> _Lie | None:
        """Return it for a value as it lies; None for other orders than plain ones and channels in blocks."""
        _, channels, height, width = view.dims
        layout = spec.layout
        if layout is None:
            n, ch, h, w = view.strides
            return _Lie(channels, channels, n, 0, h, w, ch)
        if not isinstance(layout, BlockedLayout) or layout.code != c.F32 or layout.view != view:
            return None
        block = channel_block(layout)
        if not block or channels % block:
            return None
        pixels = height * width
        return _Lie(channels, block, channels * pixels, pixels * block, width * block, block, 1)


class DerivedWeights(DerivedLayout):
    """Windows evaluated at the 36 points, (36, I, O); equal ones are one object.

    Args:
        view: the weights, O, I, 3, 3.
        flipped: turned round, for the gradient of images.
    """

    __slots__ = ("flipped", "view")

    def __init__(self, view: View, flipped: bool) -> None:
        self.view, self.flipped = view, flipped
        super().__init__(
            view.dims[0] * view.dims[1] * _AT * _FLOAT,
            f"windows at 36 points{', turned round' if flipped else ''}, of {'x'.join(map(str, view.dims))}",
        )

    def copy(self, ctx: PlanContext, source: TensorSpec, target: TensorSpec) -> Prepared:
        n = self.view.dims[0] * self.view.dims[1]
        product = _product(_plain(_AT, WINDOW**2), _plain(WINDOW**2, n), None, _plain(_AT, n), (), threads=ctx.threads)
        steps, read, nbytes = [], In(0), 0
        if source.layout is not _by_place(self.view):
            wanted = plain_in(_places_outermost(self.view), c.F32)
            made = reorder_primitive(desc_of(source, self.view), wanted, threads=ctx.threads)
            nbytes = source.plain.nbytes
            read = Scratch(0, nbytes)
            steps.append(_step(made, {c.SRC: In(0), c.DST: read}))
        matrix = _constant("flipped" if self.flipped else "window")
        steps.append(_step(product, {c.SRC: matrix, c.WEIGHTS: read, c.DST: Out(0)}))
        return prepared([source], [target], steps, scratch=nbytes)


@functools.lru_cache(1024)
def _derived(view: View, flipped: bool) -> DerivedWeights:
    return DerivedWeights(view, flipped)


def _places_outermost(view: View) -> View:
    """Return weights O, I, 3, 3 in the order 3, 3, I, O."""
    o, i = view.dims[:2]
    return View(view.dims, (1, o, WINDOW * i * o, i * o))


def _by_place(view: View) -> BlockedLayout | None:
    """Return the layout of weights in that order."""
    return layout_of(plain_in(_places_outermost(view), c.F32).handle, view)


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


@dataclass(frozen=True)
class _Tiles:
    """The results of a part of a batch in tiles of 4x4; a tile's number is (row * columns + column) * images + image.

    Args:
        images: in a part; ``parts`` of them are the batch.
        height, width: of results.
    """

    images: int
    parts: int
    height: int
    width: int
    threads: int

    @staticmethod
    def of(v: Views, height: int, width: int, threads: int) -> _Tiles:
        o, i = v.weights.dims[:2]
        n = v.x.dims[0]
        one = -(-height // TILE) * -(-width // TILE) * _AT * (i + o) * _FLOAT
        images = next(m for m in range(min(n, max(1, _ROOM // one)), 0, -1) if n % m == 0)
        return _Tiles(images, n // images, height, width, threads)

    @property
    def rows(self) -> int:
        return -(-self.height // TILE)

    @property
    def columns(self) -> int:
        return -(-self.width // TILE)

    @property
    def count(self) -> int:
        return self.rows * self.columns * self.images

    def reorder(self, source: Desc, target: Desc) -> Primitive:
        return _needed(reorder_primitive(source, target, threads=self.threads))

    def product(
        self, a: Desc, b: Desc, y: Desc, bias: Desc | None = None, post: Sequence[PostOp] = ()
    ) -> Primitive:  # fmt: skip
        return _needed(_product(a, b, bias, y, tuple(post), threads=self.threads))

    def evaluated(self, values: int, channels: int) -> Primitive:
        """(36, values) times tiles (count, values, channels): their values at the points, (36, count, channels)."""
        n = self.count
        return self.product(
            _plain(1, _AT, values),
            _plain(n, values, channels),
            _strided((n, _AT, channels), (channels, n * channels, 1)),
        )

    def edges(self) -> Iterator[tuple[tuple[int, int, int], tuple[int, int, int]]]:
        """Yield regions of tiles whose results all exist: first tile, tiles, and results a tile, down and across."""
        for down in _runs(self.height):
            for across in _runs(self.width):
                yield down, across

    def results(self, lie: _Lie) -> list[tuple[Desc, int, Desc, int]]:
        """Return for each region the results in tiles (count, 4, 4, channels), and as they lie; offsets in bytes."""
        k, found = lie.channels, []
        tile = TILE * TILE * k
        column, row = self.images * tile, self.columns * self.images * tile
        for (t, nt, down), (s, ns, across) in self.edges():
            dims = (self.images, lie.groups, nt, down, ns, across, lie.block)
            tiles = (tile, lie.block, row, TILE * k, column, k, 1)
            lies = (lie.image, lie.group, TILE * lie.row, lie.row, TILE * lie.column, lie.column, lie.inner)
            first = (t * row + s * column) * _FLOAT
            start = TILE * (t * lie.row + s * lie.column) * _FLOAT
            found.append((_strided(dims, _apart(dims, tiles)), first, _strided(dims, _apart(dims, lies)), start))
        return found


def _apart(dims: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Return strides whose value does not matter, of extents 1, as the library accepts them."""
    least = max(s * n for n, s in zip(dims, strides) if n > 1)
    return [s if n > 1 else least for n, s in zip(dims, strides)]


def _runs(extent: int) -> list[tuple[int, int, int]]:
    """Return whole tiles along a side, and the last one if it is not whole: first, how many, results of each."""
    whole, rest = divmod(extent, TILE)
    return ([(0, whole, TILE)] if whole else []) + ([(whole, 1, rest)] if rest else [])


class _Missing(Exception):
    """The library lacks one of the primitives."""


def _needed(made: Primitive | None) -> Primitive:
    if made is None or made.slow:
        raise _Missing
    return made


def _step(made: Primitive | None, places: dict[int, Any]) -> Step:
    if made is None:
        raise RuntimeError("oneDNN lacks a product or reorder that it had when the convolution was made ready")
    return Step(made, places)


class _Room:
    """Hands out scratch memory."""

    def __init__(self) -> None:
        self.nbytes = 0

    def floats(self, *extents: int) -> Scratch:
        n = int(np.prod(extents)) * _FLOAT
        place = Scratch(self.nbytes, n)
        self.nbytes += -(-n // 64) * 64
        return place


def _over(place: Scratch, *extents: int) -> Scratch:
    """Return the first part of a place that is free again, for other values."""
    return Scratch(place.offset, int(np.prod(extents)) * _FLOAT)


class _Source:
    """Steps that bring a part of images into tiles of 6x6 and to the 36 points.

    The tiles are free once they are at the points. Both places are large enough for as many values of ``others``
    channels.
    """

    def __init__(
        self, tiles: _Tiles, lie: _Lie, image: tuple[int, ...], pads: tuple[int, ...], others: int, room: _Room
    ) -> None:
        self.tiles, self.lie = tiles, lie
        ch, (height, width), (top, left) = lie.channels, image, pads[:2]
        m, t, s = tiles.images, tiles.rows, tiles.columns
        high, wide = TILE * t + 4, TILE * s + 4  # as far as strides of two tiles reach, which the library checks
        row, col, one = wide * ch, ch, high * wide * ch
        self.padded = room.floats(m, high, wide, ch)
        self.start = (top * row + left * col) * _FLOAT
        dims = (m, lie.groups, height, width, lie.block)
        lies = (lie.image, lie.group, lie.row, lie.column, lie.inner)
        self.fetch = tiles.reorder(
            _strided(dims, _apart(dims, lies)), _strided(dims, _apart(dims, (one, lie.block, row, col, 1)))
        )
        most = room.floats(tiles.count, _AT, max(ch, others))
        self.gathered, self.gather = _over(most, tiles.count, _AT, ch), []
        self.free = most
        tile = _AT * ch
        for a in range(min(2, t)):
            for b in range(min(2, s)):
                dims = (m, (t - a + 1) // 2, (s - b + 1) // 2, POINTS, POINTS, ch)
                read = (one, 2 * TILE * row, 2 * TILE * col, row, col, 1)
                written = (tile, 2 * s * m * tile, 2 * m * tile, POINTS * ch, ch, 1)
                made = tiles.reorder(_strided(dims, _apart(dims, read)), _strided(dims, _apart(dims, written)))
                here, there = TILE * (a * row + b * col) * _FLOAT, (a * s + b) * m * tile * _FLOAT
                self.gather.append((made, here, there))
        self.points = room.floats(_AT, tiles.count, max(ch, others))
        self.evaluate = tiles.evaluated(_AT, ch)

    def before(self) -> Extra:
        """What makes the borders zero: the rest is written for each part."""
        return _zeroed(self.padded)

    def steps(self, source: Place, part: int) -> list[Step | Extra]:
        size = self.tiles.images * self.lie.image * _FLOAT
        inside = Part(self.padded, self.start, self.padded.nbytes - self.start)
        steps: list[Step | Extra] = [Step(self.fetch, {c.SRC: Part(source, part * size, size), c.DST: inside})]
        for made, here, there in self.gather:
            read = Part(self.padded, here, self.padded.nbytes - here)
            written = Part(self.gathered, there, self.gathered.nbytes - there)
            steps.append(Step(made, {c.SRC: read, c.DST: written}))
        places = {c.SRC: _constant("data"), c.WEIGHTS: self.gathered, c.DST: self.points}
        return [*steps, Step(self.evaluate, places)]


def _zeroed(place: Scratch) -> Extra:
    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        memory = as_flat(scratch[place.offset : place.offset + place.nbytes], np.float32)
        return lambda: memory.fill(0)

    return bind


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
    lies, wanted = (_Lie.of(spec, view) for spec, view, _ in (source, target))
    if lies is None or wanted is None:
        return None
    height, width = target[1].dims[2:]
    tiles, room = _Tiles.of(v, height, width, threads), _Room()
    n, ch, k = tiles.count, lies.channels, wanted.channels
    try:
        read = _Source(tiles, lies, source[1].dims[2:], pads, k, room)
        windows = _strided((_AT, ch, k), (ch * k, 1, ch)) if flipped else _plain(_AT, ch, k)
        multiply = tiles.product(_plain(_AT, n, ch), windows, _plain(_AT, n, k))
        interpolate = tiles.product(
            _plain(1, TILE**2, _AT), _strided((n, _AT, k), (k, n * k, 1)), _plain(n, TILE**2, k),
            _plain(1, 1, k) if bias is not None else None, post,
        )  # fmt: skip
        regions = [(tiles.reorder(a, b), here, there) for a, here, b, there in tiles.results(wanted)]
    except _Missing:
        return None
    products, results = _over(read.free, _AT, n, k), _over(read.points, n, TILE**2, k)
    steps: list[Step | Extra] = [read.before()]
    size = tiles.images * wanted.image * _FLOAT
    last = {c.SRC: _constant("results"), c.WEIGHTS: products, c.DST: results}
    if bias is not None:
        last[c.BIAS] = bias
    for part in range(tiles.parts):
        steps += read.steps(source[2], part)
        steps.append(Step(multiply, {c.SRC: read.points, c.WEIGHTS: weights or In(1), c.DST: products}))
        steps.append(Step(interpolate, last))
        for made, here, there in regions:
            read_at = Part(results, here, results.nbytes - here)
            steps.append(Step(made, {c.SRC: read_at, c.DST: Part(target[2], part * size + there, size - there)}))
    return Winograd(TensorSpec(w.shape, w.dtype, _derived(v.weights, flipped)), steps, room.nbytes)


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
    lies, wanted = _Lie.of(x, v.x), _Lie.of(dy, v.y)
    if lies is None or wanted is None:
        return None
    height, width = v.y.dims[2:]
    tiles, room = _Tiles.of(v, height, width, threads), _Room()
    n, ch, k = tiles.count, lies.channels, wanted.channels
    each = _strided((_AT, ch, n), (n * ch, 1, ch)), _plain(_AT, n, k), _plain(_AT, ch, k)
    column = _plain(1, n * TILE**2), _plain(n * TILE**2, k), _plain(1, k)
    more = (PostOp("sum"),)
    try:
        read = _Source(tiles, lies, v.x.dims[2:], tuple(v.window[2]), k, room)
        regions = [(tiles.reorder(b, a), here, there) for a, here, b, there in tiles.results(wanted)]
        evaluate = tiles.evaluated(TILE**2, k)
        multiply = tiles.product(*each), tiles.product(*each, post=more)
        total = (tiles.product(*column), tiles.product(*column, post=more)) if bias is not None else None
        finish = tiles.product(_plain(WINDOW**2, _AT), _plain(_AT, ch * k), _plain(WINDOW**2, ch * k))
    except _Missing:
        return None
    results, points, sums = room.floats(n, TILE**2, k), _over(read.free, _AT, n, k), room.floats(_AT, ch, k)
    steps: list[Step | Extra] = [read.before(), _zeroed(results)]
    size = tiles.images * wanted.image * _FLOAT
    for part in range(tiles.parts):
        steps += read.steps(places[0], part)
        for made, here, there in regions:
            written = Part(results, here, results.nbytes - here)
            steps.append(Step(made, {c.SRC: Part(places[1], part * size + there, size - there), c.DST: written}))
        steps.append(
            Step(evaluate, {c.SRC: _constant("results gradient"), c.WEIGHTS: results, c.DST: points})
        )  # fmt: skip
        later = min(part, 1)
        steps.append(Step(multiply[later], {c.SRC: read.points, c.WEIGHTS: points, c.DST: sums}))
        if total is not None and bias is not None:
            steps.append(Step(total[later], {c.SRC: _ones(n * TILE**2), c.WEIGHTS: results, c.DST: bias}))
    steps.append(Step(finish, {c.SRC: _constant("window gradient"), c.WEIGHTS: sums, c.DST: places[2]}))
    return Winograd(TensorSpec(w.shape, w.dtype, _by_place(v.weights)), steps, room.nbytes)
