"""Images in tiles, one chunk of a batch at a time, as minimal filtering reads and writes them (see ``winograd``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from netbuilder.engines.arrays import as_flat
from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn.arguments import MemoryRef, Part, Scratch, ScratchAllocator
from netbuilder.engines.onednn.blocked_layout import BlockedLayout, Desc, View, channel_block, layout_of
from netbuilder.engines.onednn.channels_last import channels_last_desc
from netbuilder.engines.onednn.convolutions import Views
from netbuilder.engines.onednn.primitive import Extra, PostOp, Primitive, Step
from netbuilder.engines.onednn.products import product
from netbuilder.engines.onednn.reorders import reorder_primitive
from netbuilder.engines.onednn.winograd_matrices import (
    AT,
    FLOAT,
    POINTS,
    TILE,
    constant,
    plain,
    strided,
)
from netbuilder.ops.core.contexts import Call
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["CHUNK_BYTES", "ImageStrides", "Missing", "Source", "Tiles", "by_tile", "reuse", "zeroed"]

CHUNK_BYTES = 5 << 19  # bytes of the tiles of images and results of a chunk, per thread


@dataclass(frozen=True)
class ImageStrides:
    """The layout of images: channels, the extent of a block of channels, and strides in elements.

    Args:
        channels: number of channels.
        block: number of channels in a block.
        image, group, row, column, inner: strides of images, blocks of channels, rows, columns, and within a block.
    """

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
    def of(spec: TensorSpec, view: View) -> ImageStrides | None:
        """Return the layout of a plain value, or one with channels in blocks or last; None for other layouts."""
        _, channels, height, width = view.dims
        layout = spec.layout
        if layout is None:
            n, ch, h, w = view.strides
            return ImageStrides(channels, channels, n, 0, h, w, ch)
        if not isinstance(layout, BlockedLayout) or layout.code != c.F32 or layout.view != view:
            return None
        if layout is layout_of(channels_last_desc(view, c.F32).handle, view):
            return ImageStrides(channels, channels, channels * height * width, 0, width * channels, channels, 1)
        block = channel_block(layout)
        if not block or channels % block:
            return None
        pixels = height * width
        return ImageStrides(channels, block, channels * pixels, pixels * block, width * block, block, 1)


@dataclass(frozen=True)
class Tiles:
    """The results of one chunk of a batch in tiles of 4x4; a tile's index is (row * columns + column) * images + image.

    Args:
        images: number of images in a chunk.
        parts: number of chunks.
        height, width: of the results.
        threads: number of threads.
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
        images = next(m for m in range(min(n, max(1, CHUNK_BYTES * threads // one)), 0, -1) if n % m == 0)
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
        """Return the copy between two layouts of values, given by their strides."""
        return self.reorder(strided(dims, _apart(dims, read)), strided(dims, _apart(dims, written)))

    def product(
        self, a: Desc, b: Desc, y: Desc, bias: Desc | None = None, post: Sequence[PostOp] = ()
    ) -> Primitive:  # fmt: skip
        return _needed(product(a, b, bias, y, tuple(post), threads=self.threads))

    def evaluated(self, values: int, channels: int) -> Primitive:
        """Return the product of (36, values) and tiles (count, values, channels): (36, count, channels)."""
        n = self.count
        return self.product(plain(1, 1, AT, values), plain(1, n, values, channels), by_tile(n, AT, channels))

    def edges(self) -> Iterator[tuple[tuple[int, int, int], tuple[int, int, int]]]:
        """Yield regions of equal tiles: first tile, number of tiles, and results per tile, down and across."""
        for down in _runs(self.height):
            for across in _runs(self.width):
                yield down, across

    def results(self, strides: ImageStrides) -> list[tuple[Desc, int, Desc, int]]:
        """Return for each region description and offset in bytes, in tiles (count, 4, 4, channels) and in images."""
        k, found = strides.channels, []
        tile = TILE * TILE * k
        column, row = self.images * tile, self.columns * self.images * tile
        for (t, nt, down), (s, ns, across) in self.edges():
            dims = (self.images, strides.groups, nt, down, ns, across, strides.block)
            tiles = (tile, strides.block, row, TILE * k, column, k, 1)
            image_strides = (
                strides.image,
                strides.group,
                TILE * strides.row,
                strides.row,
                TILE * strides.column,
                strides.column,
                strides.inner,
            )
            first = (t * row + s * column) * FLOAT
            start = TILE * (t * strides.row + s * strides.column) * FLOAT
            found.append((strided(dims, _apart(dims, tiles)), first, strided(dims, _apart(dims, image_strides)), start))
        return found


def _apart(dims: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Replace the strides of extents of 1, whose value does not matter, by ones that the library accepts."""
    least = max(s * n for n, s in zip(dims, strides) if n > 1)
    return [s if n > 1 else least for n, s in zip(dims, strides)]


def _runs(extent: int) -> list[tuple[int, int, int]]:
    """Return (first tile, number of tiles, results per tile) for the whole tiles of a side, and for a partial one."""
    whole, rest = divmod(extent, TILE)
    return ([(0, whole, TILE)] if whole else []) + ([(whole, 1, rest)] if rest else [])


class Missing(Exception):
    """The library lacks one of the primitives."""


def _needed(made: Primitive | None) -> Primitive:
    if made is None or made.slow:
        raise Missing
    return made


def reuse(memory: Scratch, *extents: int) -> Scratch:
    """Return the first part of scratch memory whose values are not needed any more, for other values."""
    return Scratch(memory.offset, int(np.prod(extents)) * FLOAT)


class Source:
    """Steps that copy a chunk of images into tiles of 6x6 and evaluate these at the 36 points.

    The memory of the tiles can be reused after that (``reusable``). It and that of the points are large enough for the
    same number of values with ``others`` channels.
    """

    def __init__(
        self,
        tiles: Tiles,
        strides: ImageStrides,
        image: tuple[int, ...],
        pads: tuple[int, ...],
        others: int,
        scratch_memory: ScratchAllocator,
    ) -> None:
        self.tiles, self.strides = tiles, strides
        ch, (height, width), (top, left) = strides.channels, image, pads[:2]
        m, t, s = tiles.images, tiles.rows, tiles.columns
        high, wide = TILE * t + 4, TILE * s + 4  # the library requires room for strides of two tiles
        row, col, one = wide * ch, ch, high * wide * ch
        self.padded = scratch_memory.allocate_words(m, high, wide, ch)
        first, inside = top * row + left * col, width * ch
        self.start = first * FLOAT
        last, end = first + (height - 1) * row + inside, (TILE * t + 2) * row
        # In elements: before the first pixel; from row to row, whose borders are adjacent; after the last pixel.
        self._borders = slice(first), (first + inside, height - 1, row, row - inside), slice(last, end)
        dims = (m, strides.groups, height, width, strides.block)
        image_strides = (strides.image, strides.group, strides.row, strides.column, strides.inner)
        self.fetch = tiles.copy(dims, image_strides, (one, strides.block, row, col, 1))
        most = scratch_memory.allocate_words(tiles.count, AT, max(ch, others))
        self.gathered, self.gather = reuse(most, tiles.count, AT, ch), []
        self.reusable = most
        tile = AT * ch
        for a in range(min(2, t)):
            for b in range(min(2, s)):
                some = (m, (t - a + 1) // 2, (s - b + 1) // 2, POINTS, POINTS, ch)
                read = (one, 2 * TILE * row, 2 * TILE * col, row, col, 1)
                written = (tile, 2 * s * m * tile, 2 * m * tile, POINTS * ch, ch, 1)
                made = tiles.copy(some, read, written)
                here, there = TILE * (a * row + b * col) * FLOAT, (a * s + b) * m * tile * FLOAT
                self.gather.append((made, here, there))
        self.points = scratch_memory.allocate_words(AT, tiles.count, max(ch, others))
        self.evaluate = tiles.evaluated(AT, ch)

    def before(self) -> Extra:
        """Return the step that zeroes the borders, as far as tiles reach; the rest is written for each chunk."""

        before, between, after = self._borders

        def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
            memory = as_flat(scratch[self.padded.offset : self.padded.offset + self.padded.nbytes], np.float32)
            images = memory.reshape(self.tiles.images, -1)
            start, rows, row, gap = between
            gaps = images[:, start : start + rows * row].reshape(len(images), rows, row)[:, :, :gap]
            parts = [part for part in (images[:, before], gaps, images[:, after]) if part.size]

            def call() -> None:
                for part in parts:
                    part.fill(0)

            return call

        return bind

    def steps(self, source: MemoryRef, part: int) -> list[Step | Extra]:
        size = self.tiles.images * self.strides.image * FLOAT
        inside = Part(self.padded, self.start, self.padded.nbytes - self.start)
        steps: list[Step | Extra] = [Step(self.fetch, {c.SRC: Part(source, part * size, size), c.DST: inside})]
        for made, here, there in self.gather:
            read = Part(self.padded, here, self.padded.nbytes - here)
            written = Part(self.gathered, there, self.gathered.nbytes - there)
            steps.append(Step(made, {c.SRC: read, c.DST: written}))
        operands: dict[int, MemoryRef | Part] = {c.SRC: constant("data"), c.WEIGHTS: self.gathered, c.DST: self.points}
        return [*steps, Step(self.evaluate, operands)]


def by_tile(count: int, values: int, channels: int) -> Desc:
    """Describe a stack of ``count`` matrices (values, channels) that are stored in the order values, count, channels.

    The library's fast matrix products support this order with a fourth dimension only.
    """
    size = count * channels
    return strided((1, count, values, channels), (size * values, channels, size, 1))


def zeroed(ref: Scratch) -> Extra:
    """Return the step that fills scratch memory with zeros."""

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        memory = as_flat(scratch[ref.offset : ref.offset + ref.nbytes], np.float32)
        return lambda: memory.fill(0)

    return bind
