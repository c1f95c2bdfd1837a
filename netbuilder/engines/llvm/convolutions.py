"""Convolutions of images with channels in blocks, whose filters are in blocks of channels, too.

Some positions of the result, in one or two blocks of its channels, have their sums in registers while the channels of X
are multiplied one after another. Where the positions' windows begin is in a table, so that they may be in several rows
of a small image. Images with padding are copied first, with zeros around them. Sums of more than some hundred products
are added by parts, which rounds less. A thread has blocks of channels of the result, or positions where these are few:
a sum's order is the same for any number of threads.

Groups of few channels, which divide a block, are computed a block at a time: the factors of a lane are those of its
group, which are brought there by a permutation.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.argument_rows import call_of_threads, shares
from netbuilder.engines.llvm.emitter import Emitter
from netbuilder.engines.llvm.loops import Loops
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Window", "blocked_convolution"]

_TILES = {8: (6, 4, 2), 16: (12, 4)}
"""How many positions may have their sums in registers at the same time, by channels of a block."""

_DEEP = 512
"""About how many products are added in registers before their sum is added to the others."""

_CHUNK = 3 << 15
"""Bytes of X that all filters read before the next ones, about: they stay in the cache."""

_AHEAD = 1 << 9
"""Elements of the filters that are on their way from memory while others are multiplied."""

_BRIEF, _OF_A_THREAD = 1 << 17, 1 << 16  # multiplications
_ZEROS, _MINUS_INFINITY = np.zeros(16, np.float32), "0xFFF0000000000000"
_F, _L = np.dtype(np.float32), np.dtype(np.int64)

_POINTERS = ("images", "w", "bias", "add", "y", "units", "tiles", "windows", "taps", "copied")
_INTEGERS = (
    "unit", "units_end", "tile", "tiles_end", "together", "count", "channels", "deep", "x_block", "y_block", "w_block",
    "outputs", "biases", "addend", "relu", "first_block", "blocks_end", "height", "width", "above", "left", "rows",
    "row",
)  # fmt: skip


class _Code(Loops):
    """Writes the function.

    A row of ``units`` has a block of channels of Y, how many blocks, and the first block of X. A row of ``tiles`` has a
    row of ``windows``, and how many follow; these have where a position's window begins in X, and where its result is.
    ``taps`` has how far the window's elements are from its beginning. ``bias`` has ``biases`` elements, ``add`` is read
    at the places of Y times ``addend``: both are 0 where there is none.

    Args:
        block: channels of a block.
        factors: how many channels of X each channel of Y reads in a block: all, or those of its group.
    """

    def __init__(self, block: int, factors: int) -> None:
        self._block, self._factors, self._kind = block, factors, f"<{block} x float>"
        self._entry, self._body = Emitter("e"), Emitter("v")
        self._arguments(_POINTERS, _INTEGERS)

    def text(self) -> str:
        b = self._body
        self._copy_images()
        self._x = b.let(f"select i1 {b.let('icmp slt i64 %first_block, %blocks_end')}, ptr %copied, ptr %images")
        least = b.let(f"select i1 {b.let('icmp ne i64 %relu, 0')}, float 0.0, float {_MINUS_INFINITY}")
        self._least_result = self._splat(least, "float")
        with self._for("%tile", "%tiles_end", "%together") as first:
            end = self._least(b.let(f"add i64 {first}, %together"), "%tiles_end")
            with self._for("%unit", "%units_end", 1) as number:
                unit = self._moved("%units", _L, b.let(f"mul i64 {number}, 3"))
                block, blocks, source = (self._integer(unit, _L, str(i)) for i in range(3))
                for several in (2, 1) if self._factors == self._block else (1,):
                    with self._if(b.let(f"icmp eq i64 {blocks}, {several}")):
                        self._of_unit(several, block, source, first, end)
        return self._function()

    def _copy_images(self) -> None:
        """Copy the blocks of X that this call reads, if any, with zeros above, below, to the left and right."""
        b = self._body
        line = b.let(f"mul i64 %row, {self._block}")
        size = b.let(f"mul i64 %rows, {line}")
        inside = b.let(f"mul i64 %width, {self._block}")
        start = b.let(f"mul i64 %left, {self._block}")
        end = b.let(f"add i64 {start}, {inside}")
        with self._for("%first_block", "%blocks_end", 1) as block:
            target = self._moved("%copied", _F, b.let(f"mul i64 {block}, {size}"))
            source = self._moved("%images", _F, b.let(f"mul i64 {block}, {b.let(f'mul i64 %height, {inside}')}"))
            with self._for("0", "%rows", 1) as row:
                to = self._moved(target, _F, b.let(f"mul i64 {row}, {line}"))
                line_of_x = b.let(f"sub i64 {row}, %above")
                is_inside = b.let(f"icmp ult i64 {line_of_x}, %height")
                start_here = b.let(f"select i1 {is_inside}, i64 {start}, i64 {line}")
                end_here = b.let(f"select i1 {is_inside}, i64 {end}, i64 {line}")
                for begin, stop in (("0", start_here), (end_here, line)):
                    with self._for(begin, stop, self._block) as at:
                        self._store("zeroinitializer", self._moved(to, _F, at))
                read = self._moved(source, _F, b.let(f"mul i64 {line_of_x}, {inside}"))
                with self._for(start_here, end_here, self._block) as at:
                    place = self._moved(read, _F, b.let(f"sub i64 {at}, {start}"))
                    self._store(self._load(place), self._moved(to, _F, at))

    def _of_unit(self, blocks: int, block: str, source: str, first: str, end: str) -> None:
        """Write the results of some tiles in one or two blocks of channels."""
        b = self._body
        weights = self._moved("%w", _F, b.let(f"mul i64 {block}, %w_block"))
        numbers = [b.let(f"add i64 {block}, {j}") for j in range(blocks)]
        biases = [self._bias(number) for number in numbers]
        inside = [self._inside(number, "%outputs") for number in numbers]
        x = self._moved(self._x, _F, b.let(f"mul i64 {source}, %x_block"))
        offset = b.let(f"mul i64 {block}, %y_block")
        with self._for(first, end, 1) as tile:
            row = self._moved("%tiles", _L, b.let(f"mul i64 {tile}, 2"))
            position, count = self._integer(row, _L, "0"), self._integer(row, _L, "1")
            for several in _TILES[self._block]:
                with self._if(b.let(f"icmp eq i64 {count}, {several}")):
                    self._of_tile(several, position, x, weights, offset, biases, inside)

    def _inside(self, block: str, channels: str) -> str:
        """Return which lanes of a block have one of so many channels."""
        b, size = self._body, self._block
        first = b.let(f"mul i64 {block}, {size}")
        left = b.let(f"trunc i64 {self._least(b.let(f'sub i64 {channels}, {first}'), size)} to i32")
        numbers = f"<{', '.join(f'i32 {k}' for k in range(size))}>"
        return b.let(f"icmp sgt <{size} x i32> {self._splat(left, 'i32')}, {numbers}")

    def _bias(self, block: str) -> str:
        """Return a block of the bias, with zeros for channels that are padding."""
        b, size, kind = self._body, self._block, self._kind
        place = self._moved("%bias", _F, b.let(f"mul i64 {block}, {size}"))
        b.declared.add(f"declare {kind} @llvm.masked.load.v{size}f32.p0(ptr, i32, <{size} x i1>, {kind})")
        given = f"ptr {place}, i32 4, <{size} x i1> {self._inside(block, '%biases')}, {kind} zeroinitializer"
        return b.let(f"call {kind} @llvm.masked.load.v{size}f32.p0({given})")

    def _of_tile(
        self,
        count: int,
        position: str,
        x: str,
        weights: str,
        offset: str,
        biases: Sequence[str],
        inside: Sequence[str],
    ) -> None:
        """Write the results of some positions, which may be the same: all is read before it is written.

        Channels that are padding become 0, also where X is not finite.
        """
        b, blocks = self._body, len(biases)
        numbers = [b.let(f"mul i64 {b.let(f'add i64 {position}, {i}')}, 2") for i in range(count)]
        rows = [self._moved("%windows", _L, number) for number in numbers]
        windows = [self._moved(x, _F, self._integer(row, _L)) for row in rows]
        places = []  # by position and block
        for row in rows:
            first = b.let(f"add i64 {offset}, {self._integer(row, _L, '1')}")
            places += [b.let(f"add i64 {first}, {b.let(f'mul i64 %y_block, {j}')}") for j in range(blocks)]
        addends = [self._load(self._moved("%add", _F, b.let(f"mul i64 {place}, %addend"))) for place in places]
        results = [self._moved("%y", _F, place) for place in places]
        for k, (addend, result) in enumerate(zip(addends, results)):
            self._store(b.let(f"fadd {self._kind} {biases[k % blocks]}, {addend}"), result)
        at = self._variable("ptr", weights)
        with self._for("0", "%channels", "%deep") as channel:
            stop = self._least(b.let(f"add i64 {channel}, %deep"), "%channels")
            sums = self._sums(blocks, windows, at, channel, stop)
            starts = [self._load(result) for result in results]
            is_last = b.let(f"icmp eq i64 {stop}, %channels")
            lowest = ", ".join([f"float {_MINUS_INFINITY}"] * self._block)
            least = b.let(f"select i1 {is_last}, {self._kind} {self._least_result}, {self._kind} <{lowest}>")
            truth = f"<{self._block} x i1>"
            for k, (start, total, result) in enumerate(zip(starts, sums, results)):
                value = b.let(f"fadd {self._kind} {start}, {total}")
                is_less = b.let(f"fcmp olt {self._kind} {value}, {least}")  # not true for NaN
                value = b.let(f"select {truth} {is_less}, {self._kind} {least}, {self._kind} {value}")
                chosen = f"{truth} {inside[k % blocks]}, {self._kind} {value}, {self._kind} zeroinitializer"
                value = b.let(f"select {chosen}")
                self._store(value, result)

    def _sums(self, blocks: int, windows: Sequence[str], at: str, first: str, end: str) -> list[str]:
        """Return sums over blocks of channels of X and all elements of the window; ``at``: the place of the filters."""
        b, kind = self._body, self._kind
        sums = [self._variable(kind, "zeroinitializer") for _ in range(len(windows) * blocks)]
        with self._for(first, end, 1) as channel:
            block = b.let(f"mul i64 {channel}, %x_block")
            with self._for("0", "%count", 1) as tap:
                shift = b.let(f"add i64 {block}, {self._integer('%taps', _L, tap)}")
                row = self._get(at, "ptr")
                columns = [self._moved(window, _F, shift) for window in windows]
                if self._factors == self._block:
                    with self._for("0", str(self._factors), 1) as k:
                        self._products(blocks, [self._moved(column, _F, k) for column in columns], row, k, sums)
                else:
                    for j in range(self._factors):
                        self._products(blocks, columns, row, str(j), sums)
                self._set(at, "ptr", self._moved(row, _F, self._block * self._factors))
        return [self._get(place, kind) for place in sums]

    def _products(self, blocks: int, columns: Sequence[str], row: str, number: str, sums: Sequence[str]) -> None:
        """Add the products with one channel of X, or with one of each group."""
        b, kind, size = self._body, self._kind, self._block
        own = self._moved(row, _F, b.let(f"mul i64 {number}, {size}"))
        rows = [own, *([self._moved(own, _F, "%w_block")] if blocks == 2 else [])]
        factors = [self._load(each) for each in rows]
        for each in rows:
            self._fetched_ahead(self._moved(each, _F, _AHEAD))
        for i, column in enumerate(columns):
            if self._factors == size:
                element = self._splat(b.let(f"load float, ptr {column}, align 4"), "float")
            else:
                element = self._of_groups(self._load(column), int(number))
            for j, factor in enumerate(factors):
                place = sums[i * blocks + j]
                b.declared.add(f"declare {kind} @llvm.fma.v{size}f32({kind}, {kind}, {kind})")
                given = f"{kind} {element}, {kind} {factor}, {kind} {self._get(place, kind)}"
                self._set(place, kind, b.let(f"call {kind} @llvm.fma.v{size}f32({given})"))

    def _of_groups(self, x: str, index: int) -> str:
        """Return in each lane the element of its group that has a number in the group."""
        lanes = ", ".join(f"i32 {lane // self._factors * self._factors + index}" for lane in range(self._block))
        kind = self._kind
        return self._body.let(f"shufflevector {kind} {x}, {kind} poison, <{self._block} x i32> <{lanes}>")

    def _splat(self, scalar: str, element: str) -> str:
        b, kind = self._body, f"<{self._block} x {element}>"
        one = b.let(f"insertelement {kind} poison, {element} {scalar}, i64 0")
        return b.let(f"shufflevector {kind} {one}, {kind} poison, <{self._block} x i32> zeroinitializer")

    def _load(self, place: str) -> str:
        return self._body.let(f"load {self._kind}, ptr {place}, align 4")

    def _store(self, value: str, place: str) -> None:
        self._body.add(f"store {self._kind} {value}, ptr {place}, align 4")


@functools.cache
def _text(block: int, factors: int) -> str:
    return _Code(block, factors).text()


@dataclass(frozen=True)
class Window:
    """The window of a convolution of images with two axes.

    Args:
        images: N, C, height and width of X.
        outputs: channels, height and width of Y.
        extents, strides, dilations, before: of the window along each axis; and the padding before the image.
        groups: of channels.
        block: channels of a block.
    """

    images: tuple[int, int, int, int]
    outputs: tuple[int, int, int]
    extents: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    before: tuple[int, int]
    groups: int
    block: int

    @property
    def padded(self) -> tuple[int, int]:
        """Height and width of X with all zeros around it that are read."""
        reached = (
            (out - 1) * stride + (extent - 1) * dilation + 1
            for out, stride, extent, dilation in zip(self.outputs[1:], self.strides, self.extents, self.dilations)
        )
        height, width = (max(a, b + c) for a, b, c in zip(reached, self.images[2:], self.before))
        return height, width

    @property
    def taps(self) -> int:
        return math.prod(self.extents)

    @property
    def positions(self) -> int:
        return self.images[0] * math.prod(self.outputs[1:])

    @property
    def multiplications(self) -> int:
        return self.positions * self.outputs[0] * self.images[1] // self.groups * self.taps

    @property
    def factors(self) -> int:
        """How many channels of X each channel of Y reads in a block: all, or those of its group; 0: there is no code.

        A group has whole blocks of channels of X and Y, or as many of both, which divide a block.
        """
        read, written = self.images[1] // self.groups, self.outputs[0] // self.groups
        if self.groups == 1:
            return self.block if read >= self.block else 0
        if read % self.block == 0 and written % self.block == 0:
            return self.block
        return read if read == written and self.block % read == 0 else 0

    @property
    def blocks(self) -> int:
        """Blocks of X that are read for each block of Y."""
        return 1 if self.factors < self.block else -(-self.images[1] // self.groups // self.block)

    @property
    def deep(self) -> int:
        """Blocks of X whose products are added in registers."""
        most = max(1, _DEEP // (self.block * self.taps))
        return -(-self.blocks // -(-self.blocks // most))

    @property
    def units(self) -> list[tuple[int, int, int]]:
        """See ``_Code``."""
        if self.factors < self.block:
            return [(block, 1, block) for block in range(-(-self.outputs[0] // self.block))]
        written = -(-self.outputs[0] // self.groups // self.block)
        return [
            (group * written + block, min(2, written - block), group * self.blocks)
            for group in range(self.groups)
            for block in range(0, written, 2)
        ]


def blocked_convolution(
    ctx: PlanContext,
    window: Window,
    x: TensorSpec,
    w: TensorSpec,
    b: TensorSpec | None,
    y: TensorSpec,
    *,
    add: bool = False,
    relu: bool = False,
) -> Prepared | None:
    """Prepare Y = relu(conv(X, W) + b + A); the inputs are X, W, [b], [A], and A may share its memory with Y.

    None: there is no llvmlite.

    Args:
        ctx: of the plan.
        window: of the convolution, which has ``factors``.
        x, y: with channels in blocks; channels that are padding are 0.
        w: of filters in blocks of their first axis, the innermost. Their second axis is in blocks, too, before the
            elements of the window, or not divided, where groups have few channels.
        b: of the bias.
        add, relu: whether there is an addend A, and a Relu.
    """
    address = machine.address_of(_text(window.block, window.factors))
    if address is None:
        return None
    tables = _tables(window)
    height, width = window.padded
    is_padded = (height, width) != window.images[2:]
    size = window.block * height * width
    copied = tables.image_blocks * size * _F.itemsize if is_padded else 0
    threads = max(1, min(ctx.threads, window.multiplications // _OF_A_THREAD))
    divided = tables.divided(threads)
    of_filters = window.blocks * window.taps * window.block * window.factors

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        pointers = inputs[0].ctypes.data, inputs[1].ctypes.data
        bias = inputs[2].ctypes.data if b is not None else 0
        addend = inputs[-1].ctypes.data if add else _ZEROS.ctypes.data
        common = [address, *pointers, bias, addend, outputs[0].ctypes.data, *tables.addresses]
        extents = [window.taps, window.blocks, window.deep, size, tables.y_block, of_filters]
        extents += [window.outputs[0], window.outputs[0] if b is not None else 0, int(add), int(relu)]
        image = [*window.images[2:], *window.before, height, width]
        rows = []
        for number, (units, tiles, blocks) in enumerate(divided):
            memory = scratch.ctypes.data + number * copied if is_padded else 0
            own = [memory, *units, *tiles, tables.together]
            rows.append(np.array([*common, *own, *extents, *(blocks if is_padded else (0, 0)), *image], np.int64))
        return call_of_threads(ctx, rows, (inputs, outputs, scratch, tables), brief=window.multiplications < _BRIEF)

    specs = [x, w, *([b.plain] if b is not None else []), *([y] if add else [])]
    inplace = [(len(specs) - 1, 0)] if add else []
    return Prepared(specs, [y], bind, copied * len(divided), tuple(inplace), name="llvm convolution")


class _Tables:
    """The tables of a convolution; see ``_Code``."""

    def __init__(self, window: Window) -> None:
        n, c = window.images[:2]
        outputs, rows, columns = window.outputs
        height, width = window.padded
        block = window.block
        self.y_block, self._window = rows * columns * block, window
        self.image_blocks = n * -(-c // block)
        places = (np.arange(rows) * window.strides[0] * width)[:, None] + np.arange(columns) * window.strides[1]
        images = np.arange(n)[:, None]
        begin = images * (-(-c // block) * height * width) + places.reshape(-1)
        result = images * (-(-outputs // block) * rows * columns) + np.arange(rows * columns)
        windows = np.stack([begin.reshape(-1), result.reshape(-1)], axis=1).astype(np.int64) * block
        tiles = _tiles(len(windows), _TILES[block])
        repeated = sum(tiles[-1]) - len(windows)
        self._windows = np.concatenate([windows, *[windows[-1:]] * repeated])
        taps = [
            (i * window.dilations[0] * width + j * window.dilations[1]) * block
            for i in range(window.extents[0])
            for j in range(window.extents[1])
        ]
        self._taps, self._units, self._tiles = np.array(taps, _L), np.array(window.units, _L), np.array(tiles, _L)
        read = window.blocks * _F.itemsize * block * _TILES[block][0] * window.strides[1]
        self.together = max(1, _CHUNK // read)

    @property
    def addresses(self) -> list[int]:
        return [each.ctypes.data for each in (self._units, self._tiles, self._windows, self._taps)]

    def divided(self, threads: int) -> list[tuple[tuple[int, int], tuple[int, int], tuple[int, int]]]:
        """Return units, tiles, and the blocks of X that are read, of each thread."""
        units, tiles = len(self._units), len(self._tiles)
        everything = 0, self.image_blocks
        of_units, of_tiles = (-(-count // threads) / count for count in (units, tiles))  # the largest share
        if of_tiles < of_units and units < 4 * threads:
            return [((0, units), share, everything) for share in shares(tiles, min(threads, tiles))]
        found = []
        for begin, end in shares(units, min(threads, units)):
            of_groups = self._units[begin:end, 2]
            read = int(of_groups.min()), int(of_groups.max()) + self._window.blocks
            found.append(((begin, end), (0, tiles), read if self._window.images[0] == 1 else everything))
        return found


_tables = functools.lru_cache(256)(_Tables)


def _tiles(positions: int, sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first position and the size of each tile; the last one may reach beyond the last position.

    >>> _tiles(15, (6, 4, 2))
    [(0, 6), (6, 6), (12, 4)]
    """
    starts = range(0, positions, sizes[0])
    left = positions - starts[-1]
    last = min(size for size in sizes if size >= left)
    return [(start, sizes[0]) for start in starts[:-1]] + [(starts[-1], last)]
