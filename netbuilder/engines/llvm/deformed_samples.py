"""The functions that DeformConv and its gradient consist of: samples, and the gradients of what they are made of.

Lanes have channels, of images that are stored pixel by pixel. A sample is the sum of four vectors, with the weights of
its pixels. Offsets are read, and weights computed, for ``LANES`` positions of windows at a time.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.emitter import LANES, Emitter, vector
from netbuilder.engines.llvm.loops import Loops
from netbuilder.engines.llvm.panels import transposed
from netbuilder.engines.llvm.products import PRODUCT_WORDS
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["GEOMETRY", "Kind", "address_of", "row_of"]

_F, _I, _L = np.dtype(np.float32), np.dtype(np.int32), np.dtype(np.int64)

GEOMETRY = (
    "height", "width", "pixels", "channels", "high", "wide", "down", "across", "taps", "positions", "parts", "segment",
    "of_part", "of_group",
)  # fmt: skip
"""What all functions are given: the extents of images, of windows and distances of their elements; the number of
positions of windows in an image; the number of parts of the channels, which have offsets of their own, how many
channels share part and group, a segment, and how many segments a part has, and a group."""

_POINTERS = ("offset", "mask", "origins")
"""To what all functions are given: the inputs, and see ``_Code``."""


@dataclass(frozen=True)
class Kind:
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

    def __init__(self, kind: Kind) -> None:
        self._kind, self._entry, self._body = kind, Emitter("e"), Emitter("v")

    def text(self) -> str:
        self._arguments((*_POINTERS, *self.pointers), (*GEOMETRY, *self.integers))
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
def address_of(kind: Kind) -> int | None:
    """Return the address of the function of a kind; None without llvmlite."""
    return machine.address_of(_CODES[kind.step](kind).text()) if machine.available() else None


def row_of(kind: Kind, arrays: Mapping[str, Any], integers: Mapping[str, int]) -> Any:
    """Return the row of arguments of a function, of arrays and integers by name; None: an array is not read."""
    code = _CODES[kind.step]
    places = [0 if (each := arrays[name]) is None else each.ctypes.data for name in (*_POINTERS, *code.pointers)]
    return np.array([address_of(kind), *places, *(integers[name] for name in (*GEOMETRY, *code.integers))], np.int64)
