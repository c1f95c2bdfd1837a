"""Convolutions of images with channels in blocks of eight, whose filters stay the same, such as those of a predictor.

Up to six positions of the result and two blocks of its channels, or twelve positions and one block, have their sums in
registers while the channels of X are multiplied one after another. Where the positions' windows begin is in a table,
so that they may be in several rows of a small image. Images with padding are copied first, with zeros around them.
Sums of more than some hundred products are added by parts, which rounds less. A thread has blocks of channels of the
result, or positions where these are few: a sum's order is the same for any number of threads.

Filters are stored in the order in which they are read (``filters``).
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
from netbuilder.engines.llvm.filters import BLOCK, FilterShape, filters
from netbuilder.engines.llvm.loops import Loops
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Window", "blocked_convolution"]

_POSITIONS = {2: 6, 1: 12}
"""The most positions whose sums are in registers, by the number of blocks of channels of the result."""

_MOST_POSITIONS = 1 << 14
"""Of all images together, for which there is a table."""

_CHUNK = 3 << 15
"""Bytes of X that all filters read before the next ones, about: they stay in the cache."""

_BRIEF, _OF_A_THREAD = 1 << 17, 1 << 18  # multiplications
_F = np.dtype(np.float32)
_V = f"<{BLOCK} x float>"

_POINTERS = ("images", "w", "bias", "add", "y", "units", "tiles", "windows", "taps", "copied")
_INTEGERS = (
    "unit", "units_end", "tile", "tiles_end", "together", "count", "channels", "deep", "x_block", "y_block", "outputs",
    "first_block", "blocks_end", "height", "width", "above", "left", "rows", "row",
)  # fmt: skip


@dataclass(frozen=True)
class _Form:
    """What the text of the function depends on.

    Args:
        bias, add, relu: what is computed besides the sums of products.
        padded: whether the images are copied with zeros around them.
        deep: whether the sums have parts.
    """

    bias: bool
    add: bool
    relu: bool
    padded: bool
    deep: bool


class _Code(Loops):
    """Writes the function.

    A row of ``units`` has a block of channels of Y, how many blocks, the first block of X, and where the filters begin.
    A row of ``tiles`` has a position and how many follow. A row of ``windows`` has where a position's window begins in
    X, and where its result is. ``taps`` has how far the window's elements are from its beginning.
    """

    def __init__(self, form: _Form) -> None:
        self._form, self._entry, self._body = form, Emitter("e"), Emitter("v")
        self._arguments(_POINTERS, _INTEGERS)

    def text(self) -> str:
        b = self._body
        self._x = "%images"
        if self._form.padded:
            self._x = "%copied"
            self._copy_images()
        with self._for("%tile", "%tiles_end", "%together") as first:
            end = self._least(b.let(f"add i64 {first}, %together"), "%tiles_end")
            with self._for("%unit", "%units_end", 1) as number:
                unit = self._moved("%units", np.dtype(np.int64), b.let(f"mul i64 {number}, 4"))
                block, blocks, source, place = (self._word(unit, i) for i in range(4))
                for several in _POSITIONS:
                    with self._if(b.let(f"icmp eq i64 {blocks}, {several}")):
                        self._of_unit(several, block, source, place, first, end)
        return self._function()

    def _word(self, row: str, index: int) -> str:
        return self._body.let(f"load i64, ptr {self._moved(row, np.dtype(np.int64), index)}, align 8")

    def _copy_images(self) -> None:
        """Copy the blocks of X that this call reads, with zeros above, below, to the left and right."""
        b = self._body
        line = b.let(f"mul i64 %row, {BLOCK}")
        size = b.let(f"mul i64 %rows, {line}")
        inside = b.let(f"mul i64 %width, {BLOCK}")
        start = b.let(f"mul i64 %left, {BLOCK}")
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
                    with self._for(begin, stop, BLOCK) as at:
                        self._store("zeroinitializer", self._moved(to, _F, at))
                read = self._moved(source, _F, b.let(f"mul i64 {line_of_x}, {inside}"))
                with self._for(start_here, end_here, BLOCK) as at:
                    place = self._moved(read, _F, b.let(f"sub i64 {at}, {start}"))
                    self._store(self._load(place), self._moved(to, _F, at))

    def _load(self, place: str) -> str:
        return self._body.let(f"load {_V}, ptr {place}, align 4")

    def _store(self, value: str, place: str) -> None:
        self._body.add(f"store {_V} {value}, ptr {place}, align 4")

    def _of_unit(self, blocks: int, block: str, source: str, place: str, first: str, end: str) -> None:
        """Write the results of some tiles in one or two blocks of channels."""
        b = self._body
        weights = self._moved("%w", _F, place)
        biases = [self._bias(b.let(f"add i64 {block}, {j}")) for j in range(blocks)] if self._form.bias else []
        x = self._moved(self._x, _F, b.let(f"mul i64 {source}, %x_block"))
        offset = b.let(f"mul i64 {block}, %y_block")
        with self._for(first, end, 1) as tile:
            row = self._moved("%tiles", np.dtype(np.int64), b.let(f"mul i64 {tile}, 2"))
            position, count = self._word(row, 0), self._word(row, 1)
            for several in range(1, _POSITIONS[blocks] + 1):
                with self._if(b.let(f"icmp eq i64 {count}, {several}")):
                    self._of_tile(blocks, several, position, x, weights, offset, biases)

    def _bias(self, block: str) -> str:
        """Return a block of the bias, with zeros for channels that are padding."""
        b = self._body
        channel = b.let(f"mul i64 {block}, {BLOCK}")
        left = b.let(f"trunc i64 {self._least(b.let(f'sub i64 %outputs, {channel}'), BLOCK)} to i32")
        kind = f"<{BLOCK} x i32>"
        one = b.let(f"insertelement {kind} poison, i32 {left}, i64 0")
        lefts = b.let(f"shufflevector {kind} {one}, {kind} poison, {kind} zeroinitializer")
        numbers = f"<{', '.join(f'i32 {k}' for k in range(BLOCK))}>"
        mask = b.let(f"icmp sgt {kind} {lefts}, {numbers}")
        b.declared.add(f"declare {_V} @llvm.masked.load.v{BLOCK}f32.p0(ptr, i32, <{BLOCK} x i1>, {_V})")
        given = f"ptr {self._moved('%bias', _F, channel)}, i32 4, <{BLOCK} x i1> {mask}, {_V} zeroinitializer"
        return b.let(f"call {_V} @llvm.masked.load.v{BLOCK}f32.p0({given})")

    def _of_tile(
        self, blocks: int, count: int, position: str, x: str, weights: str, offset: str, biases: Sequence[str]
    ) -> None:
        b = self._body
        numbers = [b.let(f"mul i64 {b.let(f'add i64 {position}, {i}')}, 2") for i in range(count)]
        rows = [self._moved("%windows", np.dtype(np.int64), number) for number in numbers]
        windows = [self._moved(x, _F, self._word(row, 0)) for row in rows]
        places = []  # by position and block
        for row in rows:
            first = b.let(f"add i64 {offset}, {self._word(row, 1)}")
            places += [b.let(f"add i64 {first}, {b.let(f'mul i64 %y_block, {j}')}") for j in range(blocks)]
        results = [self._moved("%y", _F, place) for place in places]
        starts = [biases[k % blocks] if biases else "zeroinitializer" for k in range(len(places))]
        if self._form.add:
            addends = [self._load(self._moved("%add", _F, place)) for place in places]
            starts = [b.let(f"fadd {_V} {start}, {addend}") for start, addend in zip(starts, addends)]
        if not self._form.deep:
            sums = self._sums(blocks, windows, self._variable("ptr", weights), "0", "%channels")
            for start, total, result in zip(starts, sums, results):
                self._finish(b.let(f"fadd {_V} {start}, {total}"), result)
            return
        for start, result in zip(starts, results):
            self._store(start, result)
        at = self._variable("ptr", weights)
        with self._for("0", "%channels", "%deep") as channel:
            stop = self._least(b.let(f"add i64 {channel}, %deep"), "%channels")
            for total, result in zip(self._sums(blocks, windows, at, channel, stop), results):
                self._store(b.let(f"fadd {_V} {self._load(result)}, {total}"), result)
        if self._form.relu:
            for result in results:
                self._finish(self._load(result), result)

    def _finish(self, value: str, place: str) -> None:
        b = self._body
        if self._form.relu:
            negative = b.let(f"fcmp olt {_V} {value}, zeroinitializer")  # not true for NaN
            value = b.let(f"select <{BLOCK} x i1> {negative}, {_V} zeroinitializer, {_V} {value}")
        self._store(value, place)

    def _sums(self, blocks: int, windows: Sequence[str], at: str, first: str, end: str) -> list[str]:
        """Return sums over blocks of channels of X and all elements of the window; ``at``: the place of the filters."""
        b = self._body
        sums = [self._variable(_V, "zeroinitializer") for _ in range(len(windows) * blocks)]
        begin, stop = (b.let(f"mul i64 {each}, %x_block") for each in (first, end))
        with self._for("0", "%count", 1) as tap:
            shift = b.let(f"load i64, ptr {self._moved('%taps', np.dtype(np.int64), tap)}, align 8")
            shifted = [self._moved(window, _F, shift) for window in windows]
            with self._for(begin, stop, "%x_block") as channel:
                columns = [self._moved(window, _F, channel) for window in shifted]
                row = self._get(at, "ptr")
                for k in range(BLOCK):
                    factors = [self._load(self._moved(row, _F, (k * blocks + j) * BLOCK)) for j in range(blocks)]
                    for i, column in enumerate(columns):
                        element = self._repeated(self._moved(column, _F, k))
                        for j, factor in enumerate(factors):
                            place = sums[i * blocks + j]
                            self._set(place, _V, self._fma(element, factor, self._get(place, _V)))
                self._set(at, "ptr", self._moved(row, _F, BLOCK * BLOCK * blocks))
        return [self._get(place, _V) for place in sums]

    def _repeated(self, place: str) -> str:
        b = self._body
        scalar = b.let(f"load float, ptr {place}, align 4")
        one = b.let(f"insertelement {_V} poison, float {scalar}, i64 0")
        return b.let(f"shufflevector {_V} {one}, {_V} poison, <{BLOCK} x i32> zeroinitializer")

    def _fma(self, x: str, y: str, z: str) -> str:
        self._body.declared.add(f"declare {_V} @llvm.fma.v{BLOCK}f32({_V}, {_V}, {_V})")
        return self._body.let(f"call {_V} @llvm.fma.v{BLOCK}f32({_V} {x}, {_V} {y}, {_V} {z})")


@functools.cache
def _text(form: _Form) -> str:
    return _Code(form).text()


@dataclass(frozen=True)
class Window:
    """The window of a convolution of images with two axes.

    Args:
        images: N, C, height and width of X.
        outputs: channels, height and width of Y.
        extents, strides, dilations, before: of the window along each axis; and the padding before the image.
        groups: of channels.
    """

    images: tuple[int, int, int, int]
    outputs: tuple[int, int, int]
    extents: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    before: tuple[int, int]
    groups: int

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
    def multiplications(self) -> int:
        n, c = self.images[:2]
        return n * math.prod(self.outputs) * c // self.groups * self.taps


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

    None: there is no code for it, or the filters may change.

    Args:
        ctx: of the plan.
        window: of the convolution.
        x, y: with channels in blocks of eight; channels that are padding are 0.
        w, b: of the filters, plain, and of the bias.
        add, relu: whether there is an addend A, and a Relu.
    """
    shape = FilterShape.of(window.images[1], window.outputs[0], window.groups, window.taps)
    positions = window.images[0] * math.prod(window.outputs[1:])
    if shape is None or not ctx.is_constant(1) or positions > _MOST_POSITIONS or machine.has_wide_registers():
        return None
    height, width = window.padded
    padded = (height, width) != window.images[2:]
    form = _Form(b is not None, add, relu, padded, shape.deep < shape.blocks_in)
    address = machine.address_of(_text(form))
    if address is None:
        return None
    layout = filters(shape)
    tables = _Tables(window, shape, height, width)
    image_blocks = -(-window.images[1] // BLOCK)
    copied = window.images[0] * image_blocks * height * width * BLOCK * _F.itemsize if padded else 0
    threads = max(1, min(ctx.threads, window.multiplications // _OF_A_THREAD))
    divided = tables.divided(threads)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        own = inputs[0].ctypes.data, inputs[1].ctypes.data
        bias = inputs[2].ctypes.data if b is not None else 0
        addend = inputs[-1].ctypes.data if add else 0
        common = [address, *own, bias, addend, outputs[0].ctypes.data, *tables.addresses]
        rows = []
        for number, (units, tiles, blocks) in enumerate(divided):
            memory = scratch.ctypes.data + number * copied if padded else 0
            extents = [shape.taps, shape.blocks_in, shape.deep, height * width * BLOCK, tables.y_block]
            image = [*window.images[2:], *window.before, height, width]
            rows.append(
                np.array(
                    [*common, memory, *units, *tiles, tables.together, *extents, window.outputs[0], *blocks, *image],
                    np.int64,
                )
            )
        return call_of_threads(ctx, rows, (inputs, outputs, scratch, tables), brief=window.multiplications < _BRIEF)

    specs = [x, w.with_layout(layout), *([b.plain] if b is not None else []), *([y] if add else [])]
    inplace = [(len(specs) - 1, 0)] if add else []
    return Prepared(specs, [y], bind, copied * len(divided), tuple(inplace), name="llvm convolution")


class _Tables:
    """The tables of a convolution; see ``_Code``."""

    def __init__(self, window: Window, shape: FilterShape, height: int, width: int) -> None:
        n, c = window.images[:2]
        outputs, rows, columns = window.outputs
        self.shape, self.y_block = shape, rows * columns * BLOCK
        places = (np.arange(rows) * window.strides[0] * width)[:, None] + np.arange(columns) * window.strides[1]
        images = np.arange(n)[:, None]
        blocks = -(-c // BLOCK), -(-outputs // BLOCK)
        begin = images * (blocks[0] * height * width) + places.reshape(-1)
        result = images * (blocks[1] * rows * columns) + np.arange(rows * columns)
        self._windows = np.stack([begin.reshape(-1), result.reshape(-1)], axis=1).astype(np.int64) * BLOCK
        taps = [
            (i * window.dilations[0] * width + j * window.dilations[1]) * BLOCK
            for i in range(window.extents[0])
            for j in range(window.extents[1])
        ]
        self._taps = np.array(taps, np.int64)
        self._units = np.array(shape.units, np.int64)
        self._tiles = np.array(_tiles(len(self._windows), _POSITIONS[shape.together]), np.int64)
        read = shape.blocks_in * _F.itemsize * BLOCK * _POSITIONS[shape.together] * window.strides[1]
        self.together = max(1, _CHUNK // read)
        self._images, self._blocks = n, blocks[0]

    @property
    def addresses(self) -> list[int]:
        return [each.ctypes.data for each in (self._units, self._tiles, self._windows, self._taps)]

    def divided(self, threads: int) -> list[tuple[tuple[int, int], tuple[int, int], tuple[int, int]]]:
        """Return units, tiles, and the blocks of X that are read, of each thread."""
        units, tiles = len(self._units), len(self._tiles)
        everything = 0, self._images * self._blocks
        if units % threads and units < 4 * threads:
            return [((0, units), share, everything) for share in shares(tiles, min(threads, tiles))]
        found = []
        for begin, end in shares(units, threads):
            of_groups = self._units[begin:end, 2]
            read = int(of_groups.min()), int(of_groups.max()) + self.shape.blocks_in
            found.append(((begin, end), (0, tiles), read if self._images == 1 else everything))
        return found


def _tiles(positions: int, most: int) -> list[tuple[int, int]]:
    """Return the first position, and how many there are, of tiles of nearly equal size.

    >>> _tiles(9, 6)
    [(0, 5), (5, 4)]
    """
    count = -(-positions // most)
    ends = [-(-positions * i // count) for i in range(count + 1)]
    return [(begin, end - begin) for begin, end in zip(ends, ends[1:])]
