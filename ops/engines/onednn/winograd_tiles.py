"""Images in tiles, a part of a batch at a time, as minimal filtering takes and gives them (see winograd)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import Call
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.engines.arrays import as_flat
from netbuilder.ops.engines.onednn import declarations as c
from netbuilder.ops.engines.onednn.arguments import Part, Place, Room, Scratch
from netbuilder.ops.engines.onednn.channels_last import last_in
from netbuilder.ops.engines.onednn.convolutions import Views
from netbuilder.ops.engines.onednn.layout import BlockedLayout, Desc, View, channel_block, layout_of
from netbuilder.ops.engines.onednn.primitive import Extra, PostOp, Primitive, Step
from netbuilder.ops.engines.onednn.products import product
from netbuilder.ops.engines.onednn.reorders import reorder_primitive
from netbuilder.ops.engines.onednn.winograd_matrices import (
    AT,
    FLOAT,
    POINTS,
    TILE,
    constant,
    plain,
    strided,
)

__all__ = ["Lie", "Missing", "Source", "Tiles", "over", "zeroed"]

_ROOM = 5 << 19  # bytes of tiles, of images and of results, that are worked on at a time, for each thread


@dataclass(frozen=True)
class Lie:
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
    def of(spec: TensorSpec, view: View) -> Lie | None:
        """Return it for a value as it lies: plain, channels in blocks or last; None for other orders."""
        _, channels, height, width = view.dims
        layout = spec.layout
        if layout is None:
            n, ch, h, w = view.strides
            return Lie(channels, channels, n, 0, h, w, ch)
        if not isinstance(layout, BlockedLayout) or layout.code != c.F32 or layout.view != view:
            return None
        if layout is layout_of(last_in(view, c.F32).handle, view):
            return Lie(channels, channels, channels * height * width, 0, width * channels, channels, 1)
        block = channel_block(layout)
        if not block or channels % block:
            return None
        pixels = height * width
        return Lie(channels, block, channels * pixels, pixels * block, width * block, block, 1)


@dataclass(frozen=True)
class Tiles:
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
    def of(v: Views, height: int, width: int, threads: int) -> Tiles:
        o, i = v.weights.dims[:2]
        n = v.x.dims[0]
        one = -(-height // TILE) * -(-width // TILE) * AT * (i + o) * FLOAT
        images = next(m for m in range(min(n, max(1, _ROOM * threads // one)), 0, -1) if n % m == 0)
        return Tiles(images, n // images, height, width, threads)

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

    def copy(self, dims: Sequence[int], read: Sequence[int], written: Sequence[int]) -> Primitive:
        """Return the copy between two orders of values, given by their strides."""
        return self.reorder(strided(dims, _apart(dims, read)), strided(dims, _apart(dims, written)))

    def product(
        self, a: Desc, b: Desc, y: Desc, bias: Desc | None = None, post: Sequence[PostOp] = ()
    ) -> Primitive:  # fmt: skip
        return _needed(product(a, b, bias, y, tuple(post), threads=self.threads))

    def evaluated(self, values: int, channels: int) -> Primitive:
        """(36, values) times tiles (count, values, channels): their values at the points, (36, count, channels)."""
        n = self.count
        return self.product(
            plain(1, AT, values),
            plain(n, values, channels),
            strided((n, AT, channels), (channels, n * channels, 1)),
        )

    def edges(self) -> Iterator[tuple[tuple[int, int, int], tuple[int, int, int]]]:
        """Yield regions of tiles whose results all exist: first tile, tiles, and results a tile, down and across."""
        for down in _runs(self.height):
            for across in _runs(self.width):
                yield down, across

    def results(self, lie: Lie) -> list[tuple[Desc, int, Desc, int]]:
        """Return for each region the results in tiles (count, 4, 4, channels), and as they lie; offsets in bytes."""
        k, found = lie.channels, []
        tile = TILE * TILE * k
        column, row = self.images * tile, self.columns * self.images * tile
        for (t, nt, down), (s, ns, across) in self.edges():
            dims = (self.images, lie.groups, nt, down, ns, across, lie.block)
            tiles = (tile, lie.block, row, TILE * k, column, k, 1)
            lies = (lie.image, lie.group, TILE * lie.row, lie.row, TILE * lie.column, lie.column, lie.inner)
            first = (t * row + s * column) * FLOAT
            start = TILE * (t * lie.row + s * lie.column) * FLOAT
            found.append((strided(dims, _apart(dims, tiles)), first, strided(dims, _apart(dims, lies)), start))
        return found


def _apart(dims: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Return strides whose value does not matter, of extents 1, as the library accepts them."""
    least = max(s * n for n, s in zip(dims, strides) if n > 1)
    return [s if n > 1 else least for n, s in zip(dims, strides)]


def _runs(extent: int) -> list[tuple[int, int, int]]:
    """Return whole tiles along a side, and the last one if it is not whole: first, how many, results of each."""
    whole, rest = divmod(extent, TILE)
    return ([(0, whole, TILE)] if whole else []) + ([(whole, 1, rest)] if rest else [])


class Missing(Exception):
    """The library lacks one of the primitives."""


def _needed(made: Primitive | None) -> Primitive:
    if made is None or made.slow:
        raise Missing
    return made


def over(place: Scratch, *extents: int) -> Scratch:
    """Return the first part of a place that is free again, for other values."""
    return Scratch(place.offset, int(np.prod(extents)) * FLOAT)


class Source:
    """Steps that bring a part of images into tiles of 6x6 and to the 36 points.

    The tiles are free once they are at the points. Both places are large enough for as many values of ``others``
    channels.
    """

    def __init__(
        self, tiles: Tiles, lie: Lie, image: tuple[int, ...], pads: tuple[int, ...], others: int, room: Room
    ) -> None:
        self.tiles, self.lie = tiles, lie
        ch, (height, width), (top, left) = lie.channels, image, pads[:2]
        m, t, s = tiles.images, tiles.rows, tiles.columns
        high, wide = TILE * t + 4, TILE * s + 4  # as far as strides of two tiles reach, which the library checks
        row, col, one = wide * ch, ch, high * wide * ch
        self.padded = room.numbers(m, high, wide, ch)
        self.start = (top * row + left * col) * FLOAT
        dims = (m, lie.groups, height, width, lie.block)
        lies = (lie.image, lie.group, lie.row, lie.column, lie.inner)
        self.fetch = tiles.copy(dims, lies, (one, lie.block, row, col, 1))
        most = room.numbers(tiles.count, AT, max(ch, others))
        self.gathered, self.gather = over(most, tiles.count, AT, ch), []
        self.free = most
        tile = AT * ch
        for a in range(min(2, t)):
            for b in range(min(2, s)):
                some = (m, (t - a + 1) // 2, (s - b + 1) // 2, POINTS, POINTS, ch)
                read = (one, 2 * TILE * row, 2 * TILE * col, row, col, 1)
                written = (tile, 2 * s * m * tile, 2 * m * tile, POINTS * ch, ch, 1)
                made = tiles.copy(some, read, written)
                here, there = TILE * (a * row + b * col) * FLOAT, (a * s + b) * m * tile * FLOAT
                self.gather.append((made, here, there))
        self.points = room.numbers(AT, tiles.count, max(ch, others))
        self.evaluate = tiles.evaluated(AT, ch)

    def before(self) -> Extra:
        """What makes the borders zero: the rest is written for each part."""
        return zeroed(self.padded)

    def steps(self, source: Place, part: int) -> list[Step | Extra]:
        size = self.tiles.images * self.lie.image * FLOAT
        inside = Part(self.padded, self.start, self.padded.nbytes - self.start)
        steps: list[Step | Extra] = [Step(self.fetch, {c.SRC: Part(source, part * size, size), c.DST: inside})]
        for made, here, there in self.gather:
            read = Part(self.padded, here, self.padded.nbytes - here)
            written = Part(self.gathered, there, self.gathered.nbytes - there)
            steps.append(Step(made, {c.SRC: read, c.DST: written}))
        places: dict[int, Place | Part] = {c.SRC: constant("data"), c.WEIGHTS: self.gathered, c.DST: self.points}
        return [*steps, Step(self.evaluate, places)]


def zeroed(place: Scratch) -> Extra:
    """Return the step that fills scratch memory with zeroes."""

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        memory = as_flat(scratch[place.offset : place.offset + place.nbytes], np.float32)
        return lambda: memory.fill(0)

    return bind
