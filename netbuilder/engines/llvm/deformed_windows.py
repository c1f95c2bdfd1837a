"""DeformConv and its gradient as machine code: lanes have channels, of images that are stored pixel by pixel first.

A sample is then the sum of four vectors, with the weights of its pixels. Offsets are read, and weights computed, for
``LANES`` positions of windows at a time. Samples are the left factor of the product with the filters (see ``products``)
for some positions, which stay in the cache.

The gradient goes through parts of the batch, or of an image, whose samples fit in ``_PART``. Of each, first the
gradients of the samples are computed, then the samples with the gradients of offsets and masks, position by position,
and then, channel by channel, the gradient of X, whose pixels are shared by positions, and that of the filters. All sums
are in the order of the positions, whatever the number of threads.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.argument_rows import call_of_threads, one_row, shares
from netbuilder.engines.llvm.copies import Pair, copying
from netbuilder.engines.llvm.emitter import LANES, Emitter, vector
from netbuilder.engines.llvm.loops import Loops
from netbuilder.engines.llvm.panels import transposed
from netbuilder.engines.llvm.products import PRODUCT_WORDS, Panels, may_be_copied, product_row
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["DEFORMED_WINDOWS", "filter_panels"]

_F, _I, _L = np.dtype(np.float32), np.dtype(np.int32), np.dtype(np.int64)
_MOST = 1 << 24
"""Numbers of pixels from here on have no exact float32."""

_TABLE = 1 << 23
"""Bytes of images that are stored pixel by pixel at once, about; at least one is."""

_SAMPLES, _PART = 1 << 16, 1 << 21
"""Elements of the samples that a thread multiplies at once, and of those of a part of a gradient, about."""

_FEWEST = 48
"""Positions whose samples are multiplied at once, at least: the tiles of a product, see ``products``, are whole."""

_BRIEF, _OF_A_THREAD = 1 << 17, 1 << 16  # multiplications

_GEOMETRY = (
    "height", "width", "pixels", "channels", "high", "wide", "down", "across", "taps", "positions", "parts", "segment",
    "of_part", "of_group",
)  # fmt: skip
"""What all functions are given: the extents of images, of windows and distances of their elements; the number of
positions of windows in an image; the number of parts of the channels, which have offsets of their own, how many
channels share part and group, a segment, and how many segments a part has, and a group."""

_POINTERS = ("offset", "mask", "origins")
"""To what all functions are given: the inputs, and see ``_Code``."""


@dataclass(frozen=True)
class _Kind:
    """What the code depends on.

    Args:
        step: "samples", "moves" or "pixels", see the classes.
        zeros: whether the padding is with zeros.
        masked: whether there is a mask.
        more: whether, of "moves", the gradient of the mask is written, too.
    """

    step: str
    zeros: bool
    masked: bool
    more: bool = False


class _Along(NamedTuple):
    """One of the two pixels around positions along an axis: its place, its weight, and the weight's slope."""

    pixel: str
    weight: str
    slope: str


class _Corners(NamedTuple):
    """The places of variables with vectors for the four pixels around positions, and for their mask.

    ``by_y`` and ``by_x`` are slopes of the weights.
    """

    pixels: Sequence[str]
    weights: Sequence[str]
    by_y: Sequence[str]
    by_x: Sequence[str]
    mask: str


class _Code(Loops):
    """Base: what is read at positions of windows, as the plain kernel computes it.

    ``origins`` has the row and the column of each position's first element, (2, positions), int32.
    """

    pointers: tuple[str, ...]
    integers: tuple[str, ...]
    _slopes = False

    def __init__(self, kind: _Kind) -> None:
        self._kind, self._entry, self._body = kind, Emitter("e"), Emitter("v")

    def text(self) -> str:
        self._arguments((*_POINTERS, *self.pointers), (*_GEOMETRY, *self.integers))
        self._write_all()
        return self._function()

    def _write_all(self) -> None:
        raise NotImplementedError

    def _product(self, *factors: str) -> str:
        found = factors[0]
        for factor in factors[1:]:
            found = self._body.let(f"mul i64 {found}, {factor}")
        return found

    def _sum(self, *terms: str) -> str:
        found = terms[0]
        for term in terms[1:]:
            found = self._body.let(f"add i64 {found}, {term}")
        return found

    def _at(self, pointer: str, *factors: str) -> str:
        return self._moved(pointer, _F, self._product(*factors))

    @contextmanager
    def _elements(self) -> Iterator[tuple[str, str, str]]:
        """Write the loops over the elements of the window; the body is given row, column and number."""
        with self._for("0", "%high", 1) as i, self._for("0", "%wide", 1) as j:
            yield i, j, self._sum(self._product(i, "%wide"), j)

    def _corners(self, number: str, i: str, j: str, position: str, lanes: str) -> _Corners:
        """Return what is read at some positions.

        Args:
            number: of the element of the window, among those of all parts and images.
            i, j: its row and its column.
            position: the first position of the image.
            lanes: the mask of those that there are.
        """
        b, axes = self._body, []
        for axis, (index, distance, extent) in enumerate(((i, "%down", "%height"), (j, "%across", "%width"))):
            place = self._sum(self._product(str(axis), "%positions"), position)
            origin = self._vector(self._moved("%origins", _I, place), _I, lanes)
            start = b.binary("add", origin, self._integers_of(self._product(index, distance)), "i32")
            plane = self._sum(self._product(number, "2"), str(axis))
            place = self._sum(self._product(plane, "%positions"), position)
            moved = self._vector(self._moved("%offset", _F, place), _F, lanes)
            at = b.binary("fadd", b.convert("sitofp", start, "i32", "float"), moved)
            axes.append(self._along(at, extent))
        pixels, weights, by_y, by_x = (list[str]() for _ in range(4))
        for row, column in itertools.product(*axes):
            first = b.binary("mul", row.pixel, self._integers_of("%width"), "i32")
            pixels.append(self._variable(vector("i32"), b.binary("add", first, column.pixel, "i32")))
            weights.append(self._of_pixel(row.weight, column.weight))
            if self._slopes:
                by_y.append(self._of_pixel(row.slope, column.weight))
                by_x.append(self._of_pixel(row.weight, column.slope))
        mask = ""
        if self._kind.masked:
            place = self._sum(self._product(number, "%positions"), position)
            mask = self._variable(vector("float"), self._vector(self._moved("%mask", _F, place), _F, lanes))
        return _Corners(pixels, weights, by_y, by_x, mask)

    def _of_pixel(self, of_row: str, of_column: str) -> str:
        return self._variable(vector("float"), self._body.binary("fmul", of_row, of_column))

    def _integers_of(self, number: str) -> str:
        return self._body.splat(self._body.let(f"trunc i64 {number} to i32"), "i32")

    def _along(self, at: str, extent: str) -> list[_Along]:
        b, zero, one = self._body, self._body.constant(0), self._body.constant(1)
        extents, first_pixel = self._integers_of(extent), b.constant(0, "i32")
        last_pixel = b.binary("sub", extents, b.constant(1, "i32"), "i32")
        size = b.convert("sitofp", extents, "i32", "float")
        low, high = b.constant(-2), b.binary("fadd", size, one)
        inside = ""
        if not self._kind.zeros:
            inside = b.binary("and", b.compare("oge", at, zero), b.compare("olt", at, size), "i1")
            low, high = zero, b.binary("fsub", size, one)
        at = b.select(b.compare("olt", at, low), low, at)  # what is NaN stays so
        at = b.select(b.compare("ogt", at, high), high, at)
        start = b.call("floor", at)
        part = b.binary("fsub", at, start)
        start = b.select(b.compare("uno", start, start), b.constant(-2), start)  # like the plain kernel: not seen
        first = b.convert("fptosi", start, "float", "i32")
        found = []
        for step in range(2):
            pixel = b.binary("add", first, b.constant(step, "i32"), "i32")
            below, above = b.compare("slt", pixel, first_pixel, "i32"), b.compare("sgt", pixel, last_pixel, "i32")
            nearest = b.select(below, first_pixel, b.select(above, last_pixel, pixel, "i32"), "i32")
            outside = b.binary("or", below, above, "i1")
            seen = b.select(inside, one, zero) if inside else b.select(outside, zero, one)
            weight = part if step else b.binary("fsub", one, part)
            slope = seen if step else b.negate(seen)
            found.append(_Along(nearest, b.binary("fmul", seen, weight), slope))
        return found

    def _of_lane(self, places: Sequence[str], lane: str) -> list[str]:
        """Return vectors of the numbers that variables have in a lane."""
        b = self._body
        scalars = [b.let(f"load float, ptr {self._moved(place, _F, lane)}, align 4") for place in places]
        return [b.splat(scalar, "float") for scalar in scalars]

    def _pixels(self, image: str, corners: _Corners, lane: str, channel: str) -> list[str]:
        """Return where the channels of the four pixels begin, in an image whose pixels are (pixels, channels)."""
        pixels = [self._integer(place, _I, lane) for place in corners.pixels]
        return [self._moved(image, _F, self._sum(self._product(pixel, "%channels"), channel)) for pixel in pixels]

    def _weighted(self, weights: Sequence[str], values: Sequence[str]) -> str:
        total = self._body.binary("fmul", weights[0], values[0])
        for weight, value in zip(weights[1:], values[1:]):
            total = self._body.fma(weight, value, total)
        return total

    def _group_of(self, segment: str) -> tuple[str, str]:
        """Return the group of a segment, and its number in the group."""
        b = self._body
        return b.let(f"udiv i64 {segment}, %of_group"), b.let(f"urem i64 {segment}, %of_group")

    def _vectors(self) -> str:
        """Return how many vectors a segment has."""
        return self._body.let(f"udiv i64 {self._sum('%segment', str(LANES - 1))}, {LANES}")


class _Samples(_Code):
    """Writes the function that computes Y, chunk by chunk of the positions of an image.

    ``images`` are (n, pixels, channels). ``product`` is the row of arguments of a product, whose factors are the
    samples, (groups, chunk, k), and the filters; its result, (chunk, ``outputs``), is copied to Y for each group.
    """

    pointers = ("images", "filters", "bias", "y", "samples", "result", "product")
    integers = ("groups", "outputs", "panels", "k", "chunk", "chunks", "begin", "end")

    def _write_all(self) -> None:
        b = self._body
        with self._for("%begin", "%end", 1) as unit:
            image = b.let(f"udiv i64 {unit}, %chunks")
            first = self._product(b.let(f"urem i64 {unit}, %chunks"), "%chunk")
            rows = self._least(b.let(f"sub i64 %positions, {first}"), "%chunk")
            pixels = self._at("%images", image, "%pixels", "%channels")
            with self._for("0", rows, LANES) as block:
                left = self._least(b.let(f"sub i64 {rows}, {block}"), LANES)
                with self._for("0", "%parts", 1) as part, self._elements() as (i, j, tap):
                    number = self._sum(self._product(self._sum(self._product(image, "%parts"), part), "%taps"), tap)
                    corners = self._corners(number, i, j, self._sum(first, block), self._lanes(left))
                    with self._for("0", "%of_part", 1) as segment:
                        self._segment(pixels, self._sum(self._product(part, "%of_part"), segment), tap, block, left,
                                      corners)  # fmt: skip
            with self._for("0", "%groups", 1) as group:
                self._multiply(group, rows)
                place = self._product(self._sum(self._product(image, "%groups"), group), "%outputs", "%positions")
                self._copy_result(self._moved("%y", _F, self._sum(place, first)), rows)

    def _segment(self, image: str, segment: str, tap: str, block: str, left: str, corners: _Corners) -> None:
        group, inside = self._group_of(segment)
        channel = self._product(segment, "%segment")
        column = self._sum(self._product(tap, "%of_group", "%segment"), self._product(inside, "%segment"))
        row = self._sum(self._product(group, "%chunk"), block)
        target = self._moved("%samples", _F, self._sum(self._product(row, "%k"), column))
        with self._for("0", left, 1) as lane:
            pixels = self._pixels(image, corners, lane, channel)
            weights, factor = self._of_lane(corners.weights, lane), ""
            if corners.mask:
                (factor,) = self._of_lane([corners.mask], lane)
            place = self._at(target, lane, "%k")
            for at, mask in self._across("%segment"):
                values = [self._vector(self._moved(pixel, _F, at), _F, mask) for pixel in pixels]
                total = self._weighted(weights, values)
                total = self._body.binary("fmul", total, factor) if factor else total
                self._write(total, _F, self._moved(place, _F, at), mask)

    def _multiply(self, group: str, rows: str) -> None:
        b = self._body
        a = self._at("%samples", group, "%chunk", "%k")
        right = self._at("%filters", group, "%panels", "%k", str(LANES))
        bias = self._at("%bias", group, "%outputs")
        for name, kind, value in (("a", "ptr", a), ("b", "ptr", right), ("bias", "ptr", bias), ("m", "i64", rows)):
            b.add(f"store {kind} {value}, ptr {self._moved('%product', _L, PRODUCT_WORDS[name])}, align 8")
        b.add(f"call void {b.let('load ptr, ptr %product, align 8')}(ptr %product)")

    def _copy_result(self, target: str, rows: str) -> None:
        """Write the result of a group, transposed."""
        b = self._body
        with self._for("0", "%outputs", LANES) as column, self._for("0", rows, LANES) as row:
            there = self._lanes(b.let(f"sub i64 %outputs, {column}"))
            values = []
            for lane in range(LANES):
                number = self._least(self._sum(row, str(lane)), b.let(f"sub i64 {rows}, 1"))
                place = self._sum(self._product(number, "%outputs"), column)
                values.append(self._vector(self._moved("%result", _F, place), _F, there))
            mask = self._lanes(b.let(f"sub i64 {rows}, {row}"))
            for k, value in enumerate(transposed(b, values)):
                number = self._sum(column, str(k))
                is_there = b.splat(b.let(f"icmp slt i64 {number}, %outputs"), "i1")
                place = self._moved(target, _F, self._sum(self._product(number, "%positions"), row))
                self._write(value, _F, place, b.binary("and", mask, is_there, "i1"))


class _OfPart(_Code):
    """Base of what computes the gradient of a part: ``images`` of which ``count`` positions follow ``first``.

    For each element of the window and each segment, samples have whole vectors: ``columns`` in all for a group.
    Gradients of samples are (groups, rows, columns), samples (groups, columns / LANES, rows, LANES).
    """

    integers = ("images", "first", "count", "rows", "columns", "begin", "end")

    def _column(self, tap: str, inside: str, vectors: str) -> str:
        return self._product(self._sum(self._product(tap, "%of_group"), inside), vectors)

    def _number(self, image: str, part: str, tap: str) -> str:
        return self._sum(self._product(self._sum(self._product(image, "%parts"), part), "%taps"), tap)


class _Moves(_OfPart):
    """Writes the function that computes samples, and the gradients of offsets and of the mask, of blocks of positions.

    The gradients of samples are multiplied by the mask.
    """

    pointers = ("pixels_of_x", "d_samples", "samples", "d_offset", "d_mask")
    _slopes = True

    def _write_all(self) -> None:
        b = self._body
        sums = ("by_y", "by_x", *(["of_mask"] if self._kind.more else []))
        for name in sums:
            self._entry.lines.append(f"  %{name} = alloca [{LANES} x {vector('float')}], align 64")
        blocks = b.let(f"udiv i64 {self._sum('%count', str(LANES - 1))}, {LANES}")
        with self._for("%begin", "%end", 1) as unit:
            image = b.let(f"udiv i64 {unit}, {blocks}")
            block = self._product(b.let(f"urem i64 {unit}, {blocks}"), str(LANES))
            left = self._least(b.let(f"sub i64 %count, {block}"), LANES)
            lanes, position = self._lanes(left), self._sum("%first", block)
            row = self._sum(self._product(image, "%count"), block)
            pixels = self._at("%pixels_of_x", image, "%pixels", "%channels")
            with self._for("0", "%parts", 1) as part, self._elements() as (i, j, tap):
                number = self._number(image, part, tap)
                corners = self._corners(number, i, j, position, lanes)
                with self._for("0", str(LANES), 1) as lane:
                    for name in sums:
                        self._write(b.constant(0), _F, self._at(f"%{name}", lane, str(LANES)))
                with self._for("0", "%of_part", 1) as segment:
                    self._segment(pixels, self._sum(self._product(part, "%of_part"), segment), tap, row, left, corners)
                planes = [self._sum(self._product(number, "2"), axis) for axis in "01"]
                for name, plane in zip(sums, (*planes, number)):
                    target = "%d_mask" if name == "of_mask" else "%d_offset"
                    place = self._sum(self._product(plane, "%positions"), position)
                    self._write(self._total(f"%{name}"), _F, self._moved(target, _F, place), lanes)

    def _total(self, sums: str) -> str:
        """Return the sums of the vectors of all lanes."""
        rows = [self._vector(self._moved(sums, _F, lane * LANES), _F) for lane in range(LANES)]
        columns = transposed(self._body, rows)
        while len(columns) > 1:
            columns = [self._body.binary("fadd", x, y) for x, y in zip(columns[::2], columns[1::2])]
        return columns[0]

    def _segment(self, image: str, segment: str, tap: str, row: str, left: str, corners: _Corners) -> None:
        group, inside = self._group_of(segment)
        channel = self._product(segment, "%segment")
        column = self._column(tap, inside, self._vectors())
        of_group = self._product(group, "%rows", "%columns")
        with self._for("0", left, 1) as lane:
            pixels = self._pixels(image, corners, lane, channel)
            number = self._sum(row, lane)
            place = self._sum(of_group, self._product(number, "%columns"), self._product(column, str(LANES)))
            d_samples = self._moved("%d_samples", _F, place)
            place = self._sum(of_group, self._product(self._sum(self._product(column, "%rows"), number), str(LANES)))
            samples = self._moved("%samples", _F, place)
            all_weights = [self._of_lane(each, lane) for each in (corners.weights, corners.by_y, corners.by_x)]
            factor = self._of_lane([corners.mask], lane)[0] if corners.mask else ""
            for at, mask in self._across("%segment"):
                values = [self._vector(self._moved(pixel, _F, at), _F, mask) for pixel in pixels]
                self._vector_of(at, mask, values, all_weights, factor, d_samples, samples, lane)

    def _vector_of(
        self, at: str, mask: str, values: Sequence[str], all_weights: Sequence[Sequence[str]], factor: str,
        d_samples: str, samples: str, lane: str,
    ) -> None:  # fmt: skip
        b = self._body
        place = self._moved(d_samples, _F, at)
        sample, by_y, by_x = (self._weighted(weights, values) for weights in all_weights)
        d = self._vector(place, _F, mask)
        if self._kind.more:
            self._add("of_mask", lane, d, sample)
        if factor:
            d, sample = b.binary("fmul", d, factor), b.binary("fmul", sample, factor)
            self._write(d, _F, place, mask)
        self._add("by_y", lane, d, by_y)
        self._add("by_x", lane, d, by_x)
        self._write(sample, _F, self._at(samples, at, "%rows"))

    def _add(self, name: str, lane: str, x: str, y: str) -> None:
        """Add a product to the sums of a lane."""
        place = self._at(f"%{name}", lane, str(LANES))
        self._write(self._body.fma(x, y, self._vector(place, _F)), _F, place)


class _Pixels(_OfPart):
    """Writes the function that adds to the gradient of X, for vectors of the channels of all segments."""

    pointers = ("d_samples", "dx")

    def _write_all(self) -> None:
        b, vectors = self._body, self._vectors()
        segments = b.let("udiv i64 %channels, %segment")
        with self._for("0", segments, 1) as segment:
            before = self._product(segment, vectors)
            low = self._most(b.let(f"sub i64 %begin, {before}"), 0)
            high = self._least(b.let(f"sub i64 %end, {before}"), vectors)
            with self._if(b.let(f"icmp slt i64 {low}, {high}")):
                self._segment(segment, low, high, vectors)

    def _segment(self, segment: str, low: str, high: str, vectors: str) -> None:
        b = self._body
        part = b.let(f"udiv i64 {segment}, %of_part")
        group, inside = self._group_of(segment)
        channel, of_group = self._product(segment, "%segment"), self._product(group, "%rows", "%columns")
        start = self._product(low, str(LANES))
        whole = self._most(self._product(self._least(high, b.let(f"udiv i64 %segment, {LANES}")), str(LANES)), start)
        end = self._least(self._product(high, str(LANES)), "%segment")
        with self._for("0", "%images", 1) as image, self._for("0", "%count", LANES) as block:
            left = self._least(b.let(f"sub i64 %count, {block}"), LANES)
            target = self._at("%dx", image, "%pixels", "%channels")
            with self._elements() as (i, j, tap):
                number, position = self._number(image, part, tap), self._sum("%first", block)
                corners = self._corners(number, i, j, position, self._lanes(left))
                column = self._product(self._column(tap, inside, vectors), str(LANES))
                row = self._sum(self._product(image, "%count"), block)
                with self._for("0", left, 1) as lane:
                    pixels, weights = self._pixels(target, corners, lane, channel), self._of_lane(corners.weights, lane)
                    place = self._sum(of_group, self._product(self._sum(row, lane), "%columns"), column)
                    source = self._moved("%d_samples", _F, place)
                    for first, last in ((start, whole), (whole, end)):
                        with self._for(first, last, LANES) as at:
                            mask = self._lanes(b.let(f"sub i64 %segment, {at}")) if last == end else ""
                            self._add_pixels(source, pixels, weights, at, mask)

    def _add_pixels(self, source: str, pixels: Sequence[str], weights: Sequence[str], at: str, mask: str) -> None:
        d = self._vector(self._moved(source, _F, at), _F, mask)
        for pixel, weight in zip(pixels, weights):  # which may be the same pixel
            place = self._moved(pixel, _F, at)
            self._write(self._body.fma(weight, d, self._vector(place, _F, mask)), _F, place, mask)


_CODES: Mapping[str, type[_Code]] = {"samples": _Samples, "moves": _Moves, "pixels": _Pixels}


@functools.lru_cache(32)
def _address(kind: _Kind) -> int | None:
    return machine.address_of(_CODES[kind.step](kind).text()) if machine.available() else None


class _FilterPanels(Panels):
    """The layout of filters in panels of ``LANES`` outputs, (groups, panels, taps, channels, LANES).

    Args:
        groups: of the channels.
        outputs, channels: of the result and of X, in a group.
        taps: elements of a window.
    """

    __slots__ = ("groups", "taps")

    def __init__(self, groups: int, outputs: int, channels: int, taps: int) -> None:
        super().__init__(outputs, channels * taps, True)
        self.groups, self.taps = groups, taps
        self.nbytes *= groups

    def __repr__(self) -> str:
        return f"<panels of {self.groups} groups of {self.rows}x{self.columns // self.taps}x{self.taps}>"

    def parts(self, matrix: Any, memory: Any) -> list[Pair]:
        by_output = matrix.reshape(self.groups, self.rows, -1, self.taps).transpose(0, 3, 2, 1)
        *shape, outputs = by_output.shape
        found, whole = memory.view(_F).reshape(self.groups, -1, *shape[1:], LANES), outputs // LANES
        inside = by_output[..., : whole * LANES].reshape(*shape, whole, LANES).transpose(0, 3, 1, 2, 4)
        pairs, last, rest = [(inside, found[:, :whole])], found[:, -1], outputs % LANES
        if rest:
            pairs += [(by_output[..., whole * LANES :], last[..., :rest]), _zeros(last[..., rest:])]
        return pairs


filter_panels = functools.lru_cache(1024)(_FilterPanels)


def _zeros(target: Any) -> Pair:
    return np.broadcast_to(np.zeros((), target.dtype), target.shape), target


@dataclass(frozen=True, eq=False)
class _Windows:
    """The shapes of a deformed convolution.

    Args:
        x, filters, y: specs of X, of the filters, and of the result.
        integers: what all functions are given, by name, see ``_GEOMETRY``.
        origins: see ``_Code``.
        groups: of the channels.
    """

    x: TensorSpec
    filters: TensorSpec
    y: TensorSpec
    integers: Mapping[str, int]
    origins: Any
    groups: int

    @staticmethod
    def of(op: Any, x: TensorSpec, offset: TensorSpec, filters: TensorSpec) -> _Windows:
        geometry, shape = op.geometry(x, offset, filters)
        (_, channels, height, width), (high, wide) = x.shape, geometry.kernel
        axes = [np.arange(n) * s - a for n, s, a in zip(geometry.out, geometry.strides, geometry.begin)]
        origins = np.stack(np.meshgrid(*axes, indexing="ij")).astype(_I).reshape(2, -1)
        segment = math.gcd(channels // op.group, channels // op.deformable_group)
        numbers = [
            height, width, height * width, channels, high, wide, *geometry.dilations, high * wide, origins.shape[1],
            op.deformable_group, segment, channels // op.deformable_group // segment, channels // op.group // segment,
        ]  # fmt: skip
        return _Windows(x, filters, x.with_shape(shape), dict(zip(_GEOMETRY, numbers)), origins, op.group)

    @property
    def outputs(self) -> int:
        """Channels of the result in a group."""
        return self.y.shape[1] // self.groups

    @property
    def k(self) -> int:
        """Elements of a window in the channels of a group."""
        return math.prod(self.filters.shape[1:])

    @property
    def columns(self) -> int:
        """Elements in a group if each segment has whole vectors for each element of the window."""
        numbers = self.integers
        return numbers["taps"] * numbers["of_group"] * -(-numbers["segment"] // LANES) * LANES

    @property
    def positions(self) -> int:
        return self.origins.shape[1]

    def part(self) -> tuple[int, int]:
        """Return of how many images, and of how many positions, the gradient is computed at once."""
        most = max(LANES, _PART // (2 * self.groups * self.columns + 2 * self.y.shape[1]))
        if self.positions <= most:
            return min(self.images_at_once(), most // self.positions), self.positions
        return 1, -(-self.positions // -(-self.positions // most) // LANES) * LANES

    @property
    def cost(self) -> int:
        """About how many multiplications it takes."""
        return self.x.shape[0] * self.positions * self.k * (self.y.shape[1] + 8 * self.groups)

    def images_at_once(self) -> int:
        """Return how many images are stored pixel by pixel at once."""
        return max(1, min(self.x.shape[0], _TABLE // (self.x.nbytes // self.x.shape[0])))

    @property
    def panels(self) -> _FilterPanels:
        taps = self.integers["taps"]
        return filter_panels(self.groups, self.outputs, self.k // taps, taps)

    def by_columns(self, filters: Any, memory: Any, *, in_panels: bool) -> list[Pair]:
        """Return parts of filters, with their places in a matrix of ``columns``.

        Args:
            filters: as the operator has them.
            memory: of the matrix, (groups, outputs, columns), or of its panels, (groups, panels, outputs, LANES).
            in_panels: which of them it is.
        """
        numbers = self.integers
        taps, segments, segment = (numbers[name] for name in ("taps", "of_group", "segment"))
        whole = segment // LANES
        given = filters.reshape(self.groups, self.outputs, segments, segment, taps).transpose(0, 1, 4, 2, 3)
        if in_panels:
            target = memory.reshape(self.groups, taps, segments, -1, self.outputs, LANES).transpose(0, 4, 1, 2, 3, 5)
        else:
            target = memory.reshape(self.groups, self.outputs, taps, segments, -1, LANES)
        inside, rest = given[..., : whole * LANES], given[..., whole * LANES :]
        split = inside.reshape(*inside.shape[:4], whole, LANES)
        return [(split, target[..., :whole, :]), (rest, target[..., -1, : rest.shape[-1]])]

    def row(self, kind: _Kind, arrays: Mapping[str, Any], integers: Mapping[str, int]) -> Any:
        """Return the row of arguments of a function, of arrays (None: not read) and what else it is given."""
        code, numbers = _CODES[kind.step], {**self.integers, **integers}
        pointers = [{"origins": self.origins, **arrays}[name] for name in (*_POINTERS, *code.pointers)]
        places = [0 if each is None else each.ctypes.data for each in pointers]
        return np.array([_address(kind), *places, *(numbers[name] for name in (*_GEOMETRY, *code.integers))], np.int64)


class _Memory:
    """Parts of scratch memory, each of which begins at a multiple of 64 bytes.

    Args:
        sizes: of the parts, in elements of float32, by name.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = {name: -(-size // LANES) * LANES for name, size in sizes.items()}
        self.nbytes = sum(self._sizes.values()) * _F.itemsize

    def of(self, scratch: Any) -> dict[str, Any]:
        ends = np.cumsum([*self._sizes.values()])
        return dict(zip(self._sizes, np.split(scratch.view(_F), ends[:-1])))


def _threads(ctx: PlanContext, cost: int) -> int:
    return max(1, min(ctx.threads, cost // _OF_A_THREAD))


def _in_order(calls: Sequence[Call]) -> Call:
    def run() -> None:
        for call in calls:
            call()

    return run


def _kind(op: Any, step: str, *, more: bool = False) -> _Kind:
    return _Kind(step, op.padding_mode == "zeros", bool(op.masked) and step != "pixels", more)


def _served(op: Any, specs: Sequence[TensorSpec], *kinds: _Kind) -> _Windows | None:
    """Return the shapes; None: they, the types or the CPU are none for which there is code."""
    if any(spec.dtype != _F or not spec.size for spec in specs):
        return None
    windows = _Windows.of(op, *(spec.plain for spec in specs[:3]))
    served = windows.integers["pixels"] < _MOST and None not in map(_address, kinds)
    return windows if served else None


class _Forward:
    """How Y is computed, and in which memory.

    Args:
        op: the operator.
        ctx: of the plan.
        windows: the shapes.
    """

    def __init__(self, op: Any, ctx: PlanContext, windows: _Windows) -> None:
        self._op, self._ctx, self._windows = op, ctx, windows
        self._kind = _kind(op, "samples")
        self._at_once, k = windows.images_at_once(), windows.k
        most = max(_FEWEST, _SAMPLES // (windows.groups * k) // _FEWEST * _FEWEST)
        share = -(-self._at_once * windows.positions // ctx.threads)
        self._chunk = min(most, *(-(-count // LANES) * LANES for count in (windows.positions, share)))
        self._chunks = -(-windows.positions // self._chunk)
        self._threads = min(_threads(ctx, windows.cost), self._at_once * self._chunks)
        self.constant = may_be_copied(ctx, 2, windows.panels)
        sizes = {"images": self._at_once * math.prod(windows.x.shape[1:])}
        sizes["filters"] = 0 if self.constant else windows.panels.nbytes // _F.itemsize
        for thread in range(self._threads):
            sizes[f"samples{thread}"] = windows.groups * self._chunk * k
            sizes[f"result{thread}"] = self._chunk * windows.outputs
        self.memory = _Memory(sizes)

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        (x, offset, filters, *more), (y,) = inputs, outputs
        bias, mask = self._op.bias_and_mask(more)
        bias = np.zeros(y.shape[1], _F) if bias is None else bias
        own, calls = self.memory.of(scratch), list[Call]()
        if not self.constant:
            calls.append(copying(self._ctx, self._windows.panels.parts(filters, own["filters"])))
            filters = own["filters"]
        for start in range(0, len(x), self._at_once):
            part = slice(start, start + self._at_once)
            pixels = _pixel_by_pixel(x[part])
            images = _view(own["images"], pixels.shape)
            calls.append(copying(self._ctx, [(pixels, images)]))
            arrays = {"offset": offset[part], "mask": None if mask is None else mask[part], "images": images,
                      "filters": filters, "bias": bias, "y": y[part]}  # fmt: skip
            calls.append(self._of_images(len(images), arrays, own))
        return _in_order(calls)

    def _of_images(self, count: int, arrays: Mapping[str, Any], own: Mapping[str, Any]) -> Call:
        """Return the call that computes Y of some images."""
        windows, rows, products = self._windows, [], []
        sizes, panels = (self._chunk, windows.outputs, windows.k), -(-windows.outputs // LANES)
        numbers = {"groups": windows.groups, "outputs": windows.outputs, "panels": panels, "k": windows.k,
                   "chunk": self._chunk, "chunks": self._chunks}  # fmt: skip
        for thread, (begin, end) in enumerate(shares(count * self._chunks, self._threads)):
            samples, result = own[f"samples{thread}"], own[f"result{thread}"]
            products.append(_product((samples, arrays["filters"], result, arrays["bias"]), sizes, (0, panels)))
            given = {**arrays, "samples": samples, "result": result, "product": products[-1]}
            rows.append(windows.row(self._kind, given, {**numbers, "begin": begin, "end": end}))
        return call_of_threads(self._ctx, rows, (windows, arrays, own, products), brief=windows.cost < _BRIEF)


def _deform_conv(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare DeformConv: X, offset, filter, [bias], [mask] -> Y."""
    windows = _served(op, specs, _kind(op, "samples"))
    if windows is None:
        return None
    forward, expected = _Forward(op, ctx, windows), [spec.plain for spec in specs]
    if forward.constant:
        expected[2] = specs[2].with_layout(windows.panels)
    return Prepared(expected, [windows.y], forward.bind, scratch=forward.memory.nbytes, name="llvm deformed windows")


def _pixel_by_pixel(x: Any) -> Any:
    """Return a view of images as (n, pixels, channels)."""
    return x.reshape(*x.shape[:2], -1).swapaxes(1, 2)


def _view(memory: Any, shape: tuple[int, ...]) -> Any:
    """Return the first elements of a part of memory as an array."""
    return memory[: math.prod(shape)].reshape(shape)


def _product(
    buffers: Sequence[Any], sizes: tuple[int, int, int], panels: tuple[int, int], *, adds: bool = False
) -> Any:
    """Return the row of arguments of a product of A, B, to Y, with a bias if it is there; see ``product_row``."""
    a, b, y, *bias = (0 if each is None else each.ctypes.data for each in buffers)
    return np.array(product_row(a, b, y, sizes, panels, bias=bias[0] if bias else 0, adds=adds), np.int64)


def _outputs(op: Any) -> list[str]:
    """Return the names of what a gradient writes."""
    return ["d_offset", "d_filters", *([] if op.no_bias else ["d_bias"]), "dx", "d_mask"][: op.n_out]


def _kinds_of_gradient(op: Any) -> tuple[_Kind, _Kind]:
    return _kind(op, "moves", more="d_mask" in _outputs(op)), _kind(op, "pixels")


class _Gradient:
    """The calls that compute a gradient, in buffers.

    Args:
        op: the operator.
        ctx: of the plan.
        windows: the shapes.
        arrays: its inputs and outputs by name; those that are not written are missing.
        own: its memory.
        threads: that compute.
    """

    def __init__(
        self, op: Any, ctx: PlanContext, windows: _Windows, arrays: Mapping[str, Any], own: Mapping[str, Any],
        threads: int,
    ) -> None:  # fmt: skip
        self._ctx, self._windows, self._arrays, self._own, self._threads = ctx, windows, arrays, own, threads
        self._moves, self._pixels = _kinds_of_gradient(op)

    def calls(self) -> Iterator[Call]:
        windows, arrays, own = self._windows, self._arrays, self._own
        x, dx = arrays["x"], arrays.get("dx")
        filters = windows.by_columns(arrays["filters"], own["filters"], in_panels=True)
        yield copying(self._ctx, [*filters, _zeros(own["d_filters"])])
        images, first = windows.part()
        for start in range(0, len(x), images):
            part = slice(start, start + images)
            pixels = _pixel_by_pixel(x[part])
            table, d_table = (_view(own[name], pixels.shape) for name in ("images", "dx"))
            yield copying(self._ctx, [(pixels, table), *([] if dx is None else [_zeros(d_table)])])
            for begin in range(0, windows.positions, first):
                yield from self._of_part(part, table, d_table, begin, min(windows.positions - begin, first))
            if dx is not None:
                yield copying(self._ctx, [(d_table, _pixel_by_pixel(dx[part]))])
        found = windows.by_columns(arrays["d_filters"], own["d_filters"], in_panels=False)
        yield copying(self._ctx, [(source, target) for target, source in found])
        if "d_bias" in arrays:
            yield partial(np.add.reduce, arrays["dy"], (0, 2, 3), out=arrays["d_bias"])

    def _of_part(self, part: slice, table: Any, d_table: Any, first: int, count: int) -> Iterator[Call]:
        """Yield the calls for some positions of some images."""
        windows, own, groups = self._windows, self._own, self._windows.groups
        images, columns, outputs = len(table), windows.columns, windows.outputs
        rows = images * count
        dy = self._arrays["dy"].reshape(-1, groups, outputs, windows.positions)[part, ..., first : first + count]
        d_rows = _view(own["dy_rows"], (groups, images, count, outputs))
        d_outputs = _view(own["dy_outputs"], (groups, outputs, images, count))
        yield copying(self._ctx, [(dy.transpose(1, 0, 3, 2), d_rows), (dy.transpose(1, 2, 0, 3), d_outputs)])

        d_rows, d_outputs = d_rows.reshape(groups, rows, outputs), d_outputs.reshape(groups, outputs, rows)
        d_samples = _view(own["d_samples"], (groups, rows, columns))
        samples = _view(own["samples"], (groups, columns // LANES, rows, LANES))
        filters = _view(own["filters"], (groups, columns // LANES, outputs, LANES))
        d_filters = _view(own["d_filters"], (groups, outputs, columns))
        yield self._call(
            [
                _product(
                    (d_rows[g, a:z], filters[g], d_samples[g, a:z]), (z - a, columns, outputs), (0, columns // LANES)
                )
                for g in range(groups)
            ]
            for a, z in shares(rows, self._threads)
        )

        arrays = {"offset": self._arrays["offset"][part], "pixels_of_x": table, "samples": samples,
                  "d_offset": self._arrays["d_offset"][part], "d_samples": d_samples, "dx": d_table}  # fmt: skip
        arrays |= {name: self._arrays[name][part] if name in self._arrays else None for name in ("mask", "d_mask")}
        numbers = {"images": images, "first": first, "count": count, "rows": rows, "columns": columns}

        def row(kind: _Kind, bounds: tuple[int, int]) -> Any:
            return windows.row(kind, arrays, {**numbers, "begin": bounds[0], "end": bounds[1]})

        yield self._call([row(self._moves, each)] for each in shares(images * -(-count // LANES), self._threads))
        vectors = windows.x.shape[1] // windows.integers["segment"] * -(-windows.integers["segment"] // LANES)
        yield self._call(
            [
                *([row(self._pixels, of_x)] if "dx" in self._arrays else []),
                *(
                    _product((d_outputs[g], samples[g], d_filters[g]), (outputs, columns, rows), of_filters, adds=True)
                    for g in range(groups)
                ),
            ]
            for of_x, of_filters in zip(*(shares(n, self._threads) for n in (vectors, columns // LANES)))
        )

    def _call(self, rows: Iterable[Sequence[Any]]) -> Call:
        """Return the call of the functions of each thread, one after another."""
        jobs = [one_row(each) for each in rows]
        return call_of_threads(
            self._ctx, jobs, (self._windows, self._arrays, self._own), brief=self._windows.cost < _BRIEF
        )


def _deform_conv_gradient(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare DeformConvGradient: X, offset, filter, dY, [mask] -> d_offset, d_filter, [d_bias], dX, [d_mask]."""
    windows = _served(op, specs, *_kinds_of_gradient(op))
    if windows is None:
        return None
    plain = [spec.plain for spec in specs]
    images, count = windows.part()
    rows, size = images * count, images * math.prod(specs[0].shape[1:])
    by_row, by_filter = windows.groups * windows.columns, windows.y.shape[1] * windows.columns
    sizes = {"images": size, "dx": size, "filters": by_filter, "d_filters": by_filter}
    sizes |= dict.fromkeys(("dy_rows", "dy_outputs"), rows * windows.y.shape[1])
    sizes |= dict.fromkeys(("d_samples", "samples"), rows * by_row)
    memory = _Memory(sizes)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        arrays = dict(zip(("x", "offset", "filters", "dy", "mask"), inputs)) | dict(zip(_outputs(op), outputs))
        gradient = _Gradient(op, ctx, windows, arrays, memory.of(scratch), _threads(ctx, 3 * windows.cost))
        return _in_order([*gradient.calls()])

    return Prepared(plain, list(op.infer(*plain)), bind, scratch=memory.nbytes, name="llvm deformed windows gradient")


DEFORMED_WINDOWS: Mapping[str, Callable[..., Prepared | None]] = {
    "DeformConv": _deform_conv,
    "DeformConvGradient": _deform_conv_gradient,
}
"""By operator type."""
