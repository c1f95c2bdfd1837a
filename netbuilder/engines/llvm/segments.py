"""Segments of rows, given by lengths, as machine code: sums, means, maxima, the gradients of these, and reversal.

Rows may be those of a table that indices name, and may have weights. Each sum is added in the order of its rows.
Lengths and indices are checked first. If one is wrong, nothing is written, and the plain kernel raises the error.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.argument_rows import call_of_threads, shares
from netbuilder.engines.llvm.checked_indices import BRIEF, OF_A_THREAD, CheckedIndices, checked_call
from netbuilder.engines.llvm.code import converted
from netbuilder.engines.llvm.emitter import LANES, Emitter, memory_type, register_type, vector
from netbuilder.engines.llvm.indexed_rows import copied_as
from netbuilder.engines.llvm.loops import Loops
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["SEGMENTS"]

_TOGETHER = 4
"""Vectors of a row that are summed at a time, where it has so many."""


@dataclass(frozen=True)
class _Kind:
    """What the code depends on.

    Args:
        how: "sum", "mean", "max"; of gradients "spread", "spread mean", "spread weighted", "spread max".
        dtype: of the rows.
        wide: in which they are summed.
        lengths: the type of the lengths.
        indices: that of the indices; "": there are none.
        weights: "": there are none; "row": one for each row; "position": one for each position in a segment.
        inner: whether the gradients of the weights are computed, the inner products of rows.
    """

    how: str
    dtype: str
    wide: str
    lengths: str
    indices: str = ""
    weights: str = ""
    inner: bool = False


_POINTERS = ("x", "indices", "lengths", "weights", "y", "dy", "values", "d_weights", "status")
_INTEGERS = ("extent", "total", "width", "segments", "positions", "begin", "end")


class _Code(CheckedIndices):
    """Writes the function of a kind.

    Its arguments: the addresses of the rows or the table, X, and of the other inputs; of the results Y or, of
    gradients, their inputs Y and dY and their results, the values and the gradient of the weights; the rows of X; how
    many rows the segments have; their width; how many segments and weights there are; the first segment and the end.
    """

    def __init__(self, kind: _Kind) -> None:
        self._kind, self._dtype, self._wide = kind, np.dtype(kind.dtype), np.dtype(kind.wide)
        self._lengths, self._real = np.dtype(kind.lengths), register_type(np.dtype(kind.wide))
        self._entry, self._body = Emitter("e"), Emitter("v")

    def text(self) -> str:
        b, kind = self._body, self._kind
        self._arguments(_POINTERS, _INTEGERS)
        if kind.indices:
            self._check_range("%indices", np.dtype(kind.indices), "%total", "0", "%extent")
        first = self._variable("i64", self._check_lengths())
        with self._for("%begin", "%end", 1) as segment:
            length, start = self._integer("%lengths", self._lengths, segment), self._get(first, "i64")
            after = b.let(f"add i64 {start}, {length}")
            if kind.how.startswith("spread"):
                self._spread(segment, start, after, length)
            else:
                self._reduce(segment, start, after, length)
            self._set(first, "i64", after)
        return self._function()

    def _check_lengths(self) -> str:
        """Write the test of the lengths; return the first row of the first segment."""
        b = self._body
        total, first, longest, wrong = (self._variable("i64", "0") for _ in range(4))
        with self._for("0", "%segments", 1) as segment:
            length, before = self._integer("%lengths", self._lengths, segment), self._get(total, "i64")
            self._set(longest, "i64", self._most(self._get(longest, "i64"), length))
            too_long = b.let(f"zext i1 {b.let(f'icmp ugt i64 {length}, %total')} to i64")  # negative ones, too
            self._set(wrong, "i64", b.let(f"or i64 {self._get(wrong, 'i64')}, {too_long}"))
            is_first = b.let(f"icmp eq i64 {segment}, %begin")
            self._set(first, "i64", b.let(f"select i1 {is_first}, i64 {before}, i64 {self._get(first, 'i64')}"))
            self._set(total, "i64", b.let(f"add i64 {before}, {length}"))
        fails = b.let(f"icmp ne i64 {self._get(wrong, 'i64')}, 0")
        others = [b.let(f"icmp ne i64 {self._get(total, 'i64')}, %total")]
        if self._kind.weights == "position":
            others.append(b.let(f"icmp sgt i64 {self._get(longest, 'i64')}, %positions"))
        for other in others:
            fails = b.let(f"or i1 {fails}, {other}")
        self._end_if(fails)
        return self._get(first, "i64")

    def _place(self, pointer: str, dtype: np.dtype[Any], row: str, column: str) -> str:
        b = self._body
        return self._moved(pointer, dtype, b.let(f"add i64 {b.let(f'mul i64 {row}, %width')}, {column}"))

    def _row(self, position: str) -> str:
        """Return which row of X is at a position."""
        return self._integer("%indices", np.dtype(self._kind.indices), position) if self._kind.indices else position

    def _read(self, pointer: str, dtype: np.dtype[Any], row: str, column: str, mask: str) -> str:
        """Return elements of a row, in the wide type."""
        b = self._body
        value = self._vector(self._place(pointer, dtype, row, column), dtype, mask)
        value = b.convert("fpext", value, "half", "float") if dtype.char == "e" else value
        return converted(b, value, dtype, self._wide)

    def _weight(self, position: str) -> str:
        b, kind = self._body, memory_type(self._wide)
        place = self._moved("%weights", self._wide, position)
        return b.splat(b.let(f"load {kind}, ptr {place}, align {self._wide.itemsize}"), self._real)

    def _of_length(self, length: str) -> str:
        """Return a length, at least 1, as a divisor."""
        b = self._body
        return b.splat(b.let(f"sitofp i64 {self._most(length, '1')} to {self._real}"), self._real)

    def _blocks(self) -> Iterator[tuple[str, str, int]]:
        """Write loops over a row's columns; yield the first column of several vectors, the mask, and their number."""
        b, many = self._body, _TOGETHER * LANES
        whole = b.let(f"udiv i64 %width, {many}")
        with self._for("0", b.let(f"mul i64 {whole}, {many}"), many) as at:
            yield at, "", _TOGETHER
        start = b.let(f"mul i64 {whole}, {many}")
        for at, mask in self._across(b.let(f"sub i64 %width, {start}")):
            yield b.let(f"add i64 {start}, {at}"), mask, 1

    def _reduce(self, segment: str, start: str, after: str, length: str) -> None:
        b, kind, whole = self._body, self._kind, vector(self._real)
        nothing = b.constant(-math.inf if kind.how == "max" else 0, self._real)
        for column, mask, count in self._blocks():
            places = [b.let(f"add i64 {column}, {LANES * k}") for k in range(count)]
            sums = [self._variable(whole, nothing) for _ in places]
            with self._for(start, after, 1) as position:
                if self._kind.indices:
                    later = self._ahead("%indices", np.dtype(kind.indices), position, "%total")
                    self._prefetch(self._place("%x", self._dtype, later, column), str(count * LANES * 4))
                row = self._row(position)
                weight = ""
                if kind.weights:
                    by_row = kind.weights == "row"
                    weight = self._weight(position if by_row else b.let(f"sub i64 {position}, {start}"))
                for place, total in zip(places, sums):
                    value = self._read("%x", self._dtype, row, place, mask)
                    value = b.binary("fmul", value, weight, self._real) if weight else value
                    self._set(total, whole, self._combined(self._get(total, whole), value))
            for place, total in zip(places, sums):
                found = self._get(total, whole)
                if kind.how == "mean":
                    found = b.binary("fdiv", found, self._of_length(length), self._real)
                if kind.how == "max":
                    empty = b.splat(b.let(f"icmp eq i64 {length}, 0"), "i1")
                    found = b.select(empty, b.constant(0, self._real), found, self._real)
                self._write(found, self._wide, self._place("%y", self._wide, segment, place), mask)

    def _combined(self, total: str, value: str) -> str:
        b = self._body
        if self._kind.how != "max":
            return b.binary("fadd", total, value, self._real)
        larger = b.select(b.compare("ogt", value, total, self._real), value, total, self._real)
        return b.select(b.compare("uno", value, value, self._real), value, larger, self._real)  # NaN stays

    def _spread(self, segment: str, start: str, after: str, length: str) -> None:
        if self._kind.inner:
            self._multiply(segment, start, after)
            return
        b, kind = self._body, self._kind
        for column, mask in self._across("%width"):
            dy = self._read("%dy", self._dtype, segment, column, mask)
            if kind.how == "spread mean":
                dy = b.binary("fdiv", dy, self._of_length(length), self._real)
            y = self._read("%y", self._dtype, segment, column, mask) if kind.how == "spread max" else ""
            with self._for(start, after, 1) as position:
                value = dy
                if kind.weights:
                    value = b.binary("fmul", dy, self._weight(position), self._real)
                if y:
                    same = b.compare("oeq", self._read("%x", self._dtype, position, column, mask), y, self._real)
                    value = b.select(same, dy, b.constant(0, self._real), self._real)
                self._write(value, self._dtype, self._place("%values", self._dtype, position, column), mask)

    def _multiply(self, segment: str, start: str, after: str) -> None:
        """Write the values, and the inner products of the rows of X and of their segment's row of dY."""
        b, real, whole = self._body, self._real, vector(self._real)
        with self._for(start, after, 1) as position:
            row, weight = self._row(position), self._weight(position)
            total = self._variable(whole, b.constant(0, real))
            for column, mask in self._across("%width"):
                dy = self._read("%dy", self._dtype, segment, column, mask)
                value = b.binary("fmul", dy, weight, real)
                self._write(value, self._dtype, self._place("%values", self._dtype, position, column), mask)
                product = b.binary("fmul", dy, self._read("%x", self._dtype, row, column, mask), real)
                self._set(total, whole, b.binary("fadd", self._get(total, whole), product, real))
            found = self._of_lanes(lambda x, y: b.binary("fadd", x, y, real), self._get(total, whole), real)
            first = b.let(f"extractelement {whole} {found}, i64 0")
            place = self._moved("%d_weights", self._dtype, position)
            b.add(f"store {real} {first}, ptr {place}, align {self._dtype.itemsize}")


@functools.lru_cache(128)
def _address(kind: _Kind) -> int | None:
    return machine.address_of(_Code(kind).text()) if machine.available() else None


_NAMES = {"X": "x", "Y": "y", "dY": "dy", "indices": "indices", "lengths": "lengths", "weights": "weights"}
_OUTPUTS = {"Y": "y", "values": "values", "dX": "values", "dweights": "d_weights"}


def _segments(how: str) -> Callable[..., Prepared | None]:
    """Return what prepares an operator; its inputs and outputs have the names of ``_NAMES`` and ``_OUTPUTS``."""

    def make(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
        plain = [spec.plain for spec in specs]
        names = [_NAMES[name] for name in type(op).inputs]
        given, outs = dict(zip(names, plain)), list(op.infer(*plain))
        outputs = [_OUTPUTS[name.rstrip("?")] for name in type(op).outputs][: len(outs)]
        kind = _kind(how, op, given, outs[0], inner="d_weights" in outputs)
        address = None if kind is None else _address(kind)
        if kind is None or address is None:
            return None
        used = _used(kind)
        width = math.prod(outs[0].shape[1:])
        segments = given["lengths"].size
        # the rows that the segments have: those of the operand that has one for each of them
        rows = given["indices"] if "indices" in given else outs[0] if how.startswith("spread") else given["x"]
        table = given["x"].shape[0] if "x" in given and "indices" in given else 0
        weights = given["weights"].size if "weights" in given else 0
        nbytes = max(rows.shape[0] * width, outs[0].size) * outs[0].dtype.itemsize
        threads = max(1, min(ctx.threads, segments)) if nbytes >= OF_A_THREAD else 1

        def bind(inputs: Sequence[Any], results: Sequence[Any], scratch: Any) -> Call:
            buffers = {**dict(zip(names, inputs)), **dict(zip(outputs, results))}
            pointers = [buffers[name].ctypes.data if name in used else 0 for name in _POINTERS[:-1]]
            status = np.zeros(threads, np.int64)
            words = [
                np.array(
                    [address, *pointers, status.ctypes.data + 8 * thread,
                     table, rows.shape[0], width, segments, weights, *share], np.int64,
                )
                for thread, share in enumerate(shares(segments, threads))
            ]  # fmt: skip
            shapes = [np.broadcast_to(np.zeros((), spec.dtype), spec.shape) for spec in plain]  # of what is not read
            whole = [shape if each is None else each for each, shape in zip(inputs, shapes)]
            call = call_of_threads(ctx, words, (buffers, status), brief=nbytes < BRIEF)
            return checked_call(call, op, ctx, whole, status)

        expected = [spec if name in used else None for name, spec in zip(names, plain)]
        return Prepared(expected, outs, bind, name="llvm segments")

    return make


def _kind(how: str, op: Any, given: Mapping[str, TensorSpec], out: TensorSpec, *, inner: bool) -> _Kind | None:
    """Return the kind of an operator; None: there is no code for its types."""
    dtype = given["dy" if how.startswith("spread") else "x"].dtype
    wide = out.dtype
    if wide.char not in "fd" or dtype.char not in "efd" or (dtype.char == "e" and not machine.has_halves()):
        return None
    reads_table = "x" in given and (not how.startswith("spread") or inner)
    indices = given["indices"].dtype.name if "indices" in given and reads_table else ""
    weights = "" if "weights" not in given else "position" if getattr(op, "by_position", False) else "row"
    return _Kind(how, dtype.name, wide.name, given["lengths"].dtype.name, indices, weights, inner)


def _used(kind: _Kind) -> set[str]:
    """Return the arguments that the code reads or writes."""
    found = {"lengths", *(["indices"] if kind.indices else []), *(["weights"] if kind.weights else [])}
    if not kind.how.startswith("spread"):
        return {*found, "x", "y"}
    found |= {"dy", "values", *(["x", "y"] if kind.how == "spread max" else [])}
    return {*found, "x", "d_weights"} if kind.inner else found


_sum, _mean, _maximum = _segments("sum"), _segments("mean"), _segments("max")
_spread, _spread_mean = _segments("spread"), _segments("spread mean")


class _ReversingCode(Loops):
    """Writes the function that reverses each sample's first steps.

    Its arguments: the addresses of X and of the result, (steps, samples, width), and of the lengths; the extents; the
    first step and the end.
    """

    def __init__(self, dtype: str, lengths: str) -> None:
        self._dtype, self._lengths = np.dtype(dtype), np.dtype(lengths)
        self._entry, self._body = Emitter("e"), Emitter("v")

    def text(self) -> str:
        b = self._body
        self._arguments(("x", "y", "lengths"), ("steps", "samples", "width", "begin", "end"))
        most = b.let("sub i64 %steps, 1")
        with self._for("%begin", "%end", 1) as step, self._for("0", "%samples", 1) as sample:
            length = self._integer("%lengths", self._lengths, sample)
            turned = b.let(f"sub i64 {b.let(f'sub i64 {length}, 1')}, {step}")
            ended = b.let(f"icmp slt i64 {turned}, 0")
            source = self._least(b.let(f"select i1 {ended}, i64 {step}, i64 {turned}"), most)
            rows = [b.let(f"add i64 {b.let(f'mul i64 {at}, %samples')}, {sample}") for at in (source, step)]
            starts = [b.let(f"mul i64 {row}, %width") for row in rows]
            for at, mask in self._across("%width"):
                places = [b.let(f"add i64 {start}, {at}") for start in starts]
                value = self._vector(self._moved("%x", self._dtype, places[0]), self._dtype, mask)
                self._write(value, self._dtype, self._moved("%y", self._dtype, places[1]), mask)
        return self._function()


def _reversed(op: Any, ctx: PlanContext, x: TensorSpec, lengths: TensorSpec) -> Prepared | None:
    steps, samples = x.shape[:2]
    width = math.prod(x.shape[2:])
    if x.dtype == STRING or not machine.available():
        return None
    dtype, _, width = copied_as(x, width)
    address = machine.address_of(_ReversingCode(dtype, lengths.dtype.name).text())
    if address is None:
        return None
    threads = max(1, min(ctx.threads, steps)) if x.nbytes >= OF_A_THREAD else 1

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        buffers = [inputs[0], outputs[0], inputs[1]]
        fixed = [address, *(each.ctypes.data for each in buffers), steps, samples, width]
        words = [np.array([*fixed, *share], np.int64) for share in shares(steps, threads)]
        return call_of_threads(ctx, words, buffers, brief=x.nbytes < BRIEF)

    return Prepared([x.plain, lengths.plain], [x.plain], bind, name="llvm rows")


SEGMENTS: Mapping[str, Callable[..., Prepared | None]] = {
    "LengthsIndicesInGradientMeanGradient": _spread_mean,
    "LengthsIndicesInGradientSumGradient": _spread,
    "LengthsMax": _maximum,
    "LengthsMaxWithMainInputAndForwardOutputGradient": _segments("spread max"),
    "LengthsMean": _mean,
    "LengthsSum": _sum,
    "LengthsWeightedSum": _sum,
    "LengthsWeightedSumGradient": _spread,
    "LengthsWeightedSumWithMainInputGradient": _spread,
    "ReversePackedSegs": _reversed,
    "SparseLengthsIndicesInGradientMeanGradient": _spread_mean,
    "SparseLengthsIndicesInGradientSumGradient": _spread,
    "SparseLengthsIndicesInGradientWeightedSumGradient": _spread,
    "SparseLengthsIndicesInGradientWeightedSumWithMainInputGradient": _spread,
    "SparseLengthsMax": _maximum,
    "SparseLengthsMean": _mean,
    "SparseLengthsPositionalWeightedSum": _sum,
    "SparseLengthsSum": _sum,
    "SparseLengthsWeightedSum": _sum,
}
"""By operator type."""
