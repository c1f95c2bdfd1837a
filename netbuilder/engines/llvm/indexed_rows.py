"""Rows that indices name, as machine code: gathered, assigned, or added in the order of the indices.

The indices are checked first. If one is wrong, nothing is written, and the plain kernel raises the error.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.argument_rows import call_of_threads, one_row, shares
from netbuilder.engines.llvm.checked_indices import BRIEF, OF_A_THREAD, CheckedIndices, checked_call
from netbuilder.engines.llvm.code import converted
from netbuilder.engines.llvm.copies import copying
from netbuilder.engines.llvm.emitter import Emitter, memory_type, register_type, vector
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["INDEXED_ROWS", "copied_as"]


@dataclass(frozen=True)
class _Kind:
    """What the code depends on.

    Args:
        how: "take": rows of the table are copied; "put": they are assigned; "add": rows are added to them.
        dtype: of the elements; for copies, integers of their size, of 4 bytes if a row has several of these.
        single: a row is one element.
        indices: the type of the indices.
        zero: all else in the table becomes 0.
        weight: the type of the number by which rows are multiplied before they are added; "": there is none.
        factor: the type of the number by which rows of the table are multiplied before, for each of their indices.
    """

    how: str
    dtype: str
    single: bool
    indices: str
    zero: bool = False
    weight: str = ""
    factor: str = ""


_POINTERS = ("table", "rows", "indices", "weight", "factor", "status")
_INTEGERS = (
    "extent", "lowest", "width", "count", "checked", "own", "outer_begin", "outer_end", "begin", "end", "low", "high",
)  # fmt: skip


class _Code(CheckedIndices):
    """Writes the function of a kind.

    The table is (outer, extent, width) elements, the rows are (outer, count, width). Its integers: those; ``own``, the
    indices of each of ``outer``, 0 if all have the same; how many are ``checked``; the lowest one that is allowed,
    negative if they may count from the end; and the parts that the function has of the outer axis, of the indices, and
    of the rows of the table.
    """

    def __init__(self, kind: _Kind) -> None:
        self._kind, self._dtype = kind, np.dtype(kind.dtype)
        self._entry, self._body = Emitter("e"), Emitter("v")

    def text(self) -> str:
        b, kind = self._body, self._kind
        self._arguments(_POINTERS, _INTEGERS)
        self._check_range("%indices", np.dtype(kind.indices), "%checked", "%lowest", "%extent")
        weight = self._number("weight") if kind.weight else ""
        of_table, of_rows = b.let("mul i64 %extent, %width"), b.let("mul i64 %count, %width")
        with self._for("%outer_begin", "%outer_end", 1) as outer:
            table = self._moved("%table", self._dtype, b.let(f"mul i64 {outer}, {of_table}"))
            rows = self._moved("%rows", self._dtype, b.let(f"mul i64 {outer}, {of_rows}"))
            indices = self._moved("%indices", np.dtype(kind.indices), b.let(f"mul i64 {outer}, %own"))
            if kind.zero:
                self._fill_zeros(table)
            if kind.factor:
                self._multiply(table, indices)
            if kind.how == "take" and kind.single:
                self._take_elements(table, rows, indices)
            else:
                self._go_through(table, rows, indices, weight)
        return self._function()

    def _go_through(self, table: str, rows: str, indices: str, weight: str) -> None:
        """Write what is done with each row."""
        b, kind = self._body, self._kind
        with self._for("%begin", "%end", 1) as i:
            if not kind.single:
                later = self._row(table, self._ahead(indices, np.dtype(kind.indices), i, "%end"))
                self._prefetch(later, b.let(f"mul i64 %width, {self._dtype.itemsize}"))
            index = self._index(indices, i)
            row = self._moved(rows, self._dtype, i if kind.single else b.let(f"mul i64 {i}, %width"))
            self._of_row(index, row, self._row(table, index), weight)

    def _take_elements(self, table: str, rows: str, indices: str) -> None:
        """Write that rows of one element are copied."""
        b, dtype = self._body, np.dtype(self._kind.indices)
        kind = memory_type(dtype)
        extent = b.splat("%extent" if kind == "i64" else b.let(f"trunc i64 %extent to {kind}"), kind)
        for i, mask in self._across(b.let("sub i64 %end, %begin")):
            at = b.let(f"add i64 %begin, {i}")
            index = self._vector(self._moved(indices, dtype, at), dtype, mask)
            negative = b.compare("slt", index, b.constant(0, kind), kind)
            index = b.select(negative, b.binary("add", index, extent, kind), index, kind)
            value = self._gathered(table, self._dtype, index, kind, mask)
            self._write(value, self._dtype, self._moved(rows, self._dtype, at), mask)

    def _of_row(self, index: str, row: str, of_table: str, weight: str) -> None:
        if self._kind.how == "take":
            self._copy(of_table, row)
            return
        with self._if(self._is_own(index)):
            if self._kind.how == "put":
                self._copy(row, of_table)
            else:
                self._add(of_table, row, weight)

    def _number(self, name: str) -> str:
        """Return a number, in the type of the rows, as a vector."""
        b, dtype = self._body, np.dtype(getattr(self._kind, name))
        value = b.let(f"load {memory_type(dtype)}, ptr %{name}, align {dtype.itemsize}")
        if dtype.char == "e":
            value = b.let(f"fpext half {value} to float")
        return converted(b, b.splat(value, register_type(dtype)), dtype, self._dtype)

    def _index(self, indices: str, i: str) -> str:
        b, index = self._body, self._integer(indices, np.dtype(self._kind.indices), i)
        if self._kind.how != "take":
            return index
        from_end = b.let(f"add i64 {index}, %extent")
        return b.let(f"select i1 {b.let(f'icmp slt i64 {index}, 0')}, i64 {from_end}, i64 {index}")

    def _is_own(self, index: str) -> str:
        """Return whether a row of the table is in the function's part."""
        b = self._body
        above, below = b.let(f"icmp sge i64 {index}, %low"), b.let(f"icmp slt i64 {index}, %high")
        return b.let(f"and i1 {above}, {below}")

    def _row(self, table: str, index: str) -> str:
        place = index if self._kind.single else self._body.let(f"mul i64 {index}, %width")
        return self._moved(table, self._dtype, place)

    def _fill_zeros(self, table: str) -> None:
        b = self._body
        b.declared.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
        rows = b.let(f"mul i64 {b.let('sub i64 %high, %low')}, %width")
        size = b.let(f"mul i64 {rows}, {self._dtype.itemsize}")
        b.add(f"call void @llvm.memset.p0.i64(ptr {self._row(table, '%low')}, i8 0, i64 {size}, i1 false)")

    def _copy(self, source: str, target: str) -> None:
        if self._kind.single:
            self._store(self._load(source), target)
            return
        for at, mask in self._across("%width"):
            value = self._vector(self._moved(source, self._dtype, at), self._dtype, mask)
            self._write(value, self._dtype, self._moved(target, self._dtype, at), mask)

    def _load(self, place: str) -> str:
        return self._body.let(f"load {memory_type(self._dtype)}, ptr {place}, align {self._dtype.itemsize}")

    def _store(self, value: str, place: str) -> None:
        self._body.add(f"store {memory_type(self._dtype)} {value}, ptr {place}, align {self._dtype.itemsize}")

    def _add(self, target: str, row: str, weight: str) -> None:
        b, kind, of_floats = self._body, memory_type(self._dtype), self._dtype.kind == "f"
        plus, times = ("fadd", "fmul") if of_floats else ("add", "mul")
        if self._kind.single:
            value = self._load(row)
            if weight:
                value = b.let(f"{times} {kind} {value}, {b.let(f'extractelement {vector(kind)} {weight}, i64 0')}")
            self._store(b.let(f"{plus} {kind} {self._load(target)}, {value}"), target)
            return
        for at, mask in self._across("%width"):
            value = self._vector(self._moved(row, self._dtype, at), self._dtype, mask)
            value = b.binary(times, value, weight, kind) if weight else value
            place = self._moved(target, self._dtype, at)
            total = b.binary(plus, self._vector(place, self._dtype, mask), value, kind)
            self._write(total, self._dtype, place, mask)

    def _multiply(self, table: str, indices: str) -> None:
        """Write the products of the table's rows with a factor other than 1, for each index."""
        b, kind = self._body, memory_type(self._dtype)
        factor = self._number("factor")
        first = b.let(f"extractelement {vector(kind)} {factor}, i64 0")
        with self._if(b.let(f"fcmp une {kind} {first}, 1.0")), self._for("%begin", "%end", 1) as i:
            index = self._index(indices, i)
            with self._if(self._is_own(index)):
                row = self._row(table, index)
                for at, mask in self._across("%width"):
                    place = self._moved(row, self._dtype, at)
                    found = b.binary("fmul", self._vector(place, self._dtype, mask), factor, kind)
                    self._write(found, self._dtype, place, mask)


@functools.lru_cache(128)
def _address(kind: _Kind) -> int | None:
    return machine.address_of(_Code(kind).text()) if machine.available() else None


@dataclass(frozen=True)
class _Sizes:
    """The table is (outer, extent, width), the rows are (outer, count, width); see ``_Code``."""

    outer: int
    extent: int
    width: int
    count: int
    lowest: int = 0
    own: int = 0

    def parts(self, how: str, threads: int) -> Iterator[list[int]]:
        """Yield what each thread does: along the outer axis, the indices, and the table's rows."""
        if self.outer >= threads:
            for share in shares(self.outer, threads):
                yield [*share, 0, self.count, 0, self.extent]
        elif how == "take":
            for share in shares(self.count, threads):
                yield [0, self.outer, *share, 0, self.extent]
        else:  # each row is changed by one thread, in the order of the indices
            for share in shares(self.extent, threads):
                yield [0, self.outer, 0, self.count, *share]


Job = tuple[_Kind, Sequence[Any]]
"""A kind, and the table, the rows, the indices, the weight and the factor; None: there is none."""


def _bound(
    op: Any, ctx: PlanContext, sizes: _Sizes, jobs: Sequence[Job], inputs: Sequence[Any], copy: Any = None
) -> Call:
    """Return the call of some functions, one after another.

    Args:
        op: the operator.
        ctx: of the plan.
        sizes: of the table and the rows.
        jobs: what the functions do.
        inputs: what the plain kernel is given, for its error.
        copy: the table before it is changed; None: it is there already.
    """
    nbytes = sum(arrays[1].nbytes + (arrays[0].nbytes if kind.zero else 0) for kind, arrays in jobs)
    threads = ctx.threads if nbytes >= OF_A_THREAD else 1
    status = np.zeros(threads, np.int64)
    fixed = [sizes.extent, sizes.lowest, sizes.width, sizes.count, sizes.own * sizes.outer or sizes.count, sizes.own]
    of_threads: list[list[list[int]]] = [[] for _ in range(threads)]
    for kind, arrays in jobs:
        address, pointers = _address(kind), [0 if each is None else each.ctypes.data for each in arrays]
        assert address is not None
        for thread, part in enumerate(sizes.parts(kind.how, threads)):
            place = status.ctypes.data + 8 * thread
            of_threads[thread].append([address, *pointers, place, *fixed, *part])
    call = call_of_threads(ctx, [one_row(rows) for rows in of_threads], (jobs, status), brief=nbytes < BRIEF)
    found = checked_call(call, op, ctx, inputs, status)
    if copy is None or np.may_share_memory(copy, jobs[0][1][0]):
        return found
    before = copying(ctx, [(copy, jobs[0][1][0])])

    def run() -> None:
        before()
        found()

    return run


def copied_as(x: TensorSpec, width: int) -> tuple[str, bool, int]:
    """Return the type as which rows of ``width`` elements are copied, whether they are one of it, or else how many."""
    nbytes = width * x.dtype.itemsize
    if nbytes in (1, 2, 4, 8):
        return f"i{nbytes}", True, 1
    size = 1 if nbytes % 4 else 4
    return f"i{size}", False, nbytes // size


def _around(x: TensorSpec, axis: int) -> tuple[int, int, int]:
    """Return the product of the extents before an axis, its extent, and the product of those after it."""
    return math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])


def _gather(op: Any, ctx: PlanContext, x: TensorSpec, indices: TensorSpec) -> Prepared | None:
    axis = op.indexed_axis(x.ndim)
    outer, extent, inner = _around(x, axis)
    dtype, single, width = copied_as(x, inner)
    own = math.prod(indices.shape[axis:]) if op.match_outer else 0
    sizes = _Sizes(outer, extent, width, own if op.match_outer else indices.size, op.lowest(axis, extent), own)
    return _taken(op, ctx, (x, indices), sizes, _Kind("take", dtype, single, indices.dtype.name))


def _gather_rows(op: Any, ctx: PlanContext, x: TensorSpec, indices: TensorSpec) -> Prepared | None:
    outer, extent, inner = _around(x, 0)
    dtype, single, width = copied_as(x, inner)
    sizes = _Sizes(outer, extent, width, indices.size)
    return _taken(op, ctx, (x, indices), sizes, _Kind("take", dtype, single, indices.dtype.name))


def _taken(op: Any, ctx: PlanContext, specs: Sequence[TensorSpec], sizes: _Sizes, kind: _Kind) -> Prepared | None:
    plain = [spec.plain for spec in specs]
    narrow = kind.single and np.dtype(kind.indices).itemsize < 8 and sizes.extent >= 1 << 31
    if plain[0].dtype == STRING or narrow or _address(kind) is None:
        return None

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        return _bound(op, ctx, sizes, [(kind, (inputs[0], outputs[0], inputs[1], None, None))], inputs)

    return Prepared(plain, op.infer(*plain), bind, name="llvm rows")


def _resize_nearest(op: Any, ctx: PlanContext, x: TensorSpec, *scales: TensorSpec) -> Prepared | None:
    """Prepare ResizeNearest: its pixels are rows that are always the same."""
    plain, axes = x.plain, slice(op.first_axis(), op.first_axis() + len(op.scales))
    extent = math.prod(x.shape[axes])
    if scales or not 0 < extent < 1 << 31:
        return None
    (y,) = op.infer(plain)
    places = op.pixels(x.shape)
    dtype, single, width = copied_as(x, math.prod(x.shape[axes.stop :]))
    sizes = _Sizes(math.prod(x.shape[: axes.start]), extent, width, places.size)
    kind = _Kind("take", dtype, single, places.dtype.name)
    if _address(kind) is None:
        return None

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        return _bound(op, ctx, sizes, [(kind, (inputs[0], outputs[0], places, None, None))], inputs)

    return Prepared([plain], [y], bind, name="llvm rows")


def _scatter_assign(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    x, indices, _ = plain = [spec.plain for spec in specs]
    outer, extent, inner = _around(x, op.axis % x.ndim)
    dtype, single, width = copied_as(x, inner)
    kind = _Kind("put", dtype, single, indices.dtype.name)
    if x.dtype == STRING or _address(kind) is None:
        return None
    sizes = _Sizes(outer, extent, width, indices.size)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        job = kind, (outputs[0], inputs[2], inputs[1], None, None)
        return _bound(op, ctx, sizes, [job], inputs, inputs[0])

    return Prepared(plain, op.infer(*plain), bind, inplace=((0, 0),), name="llvm rows")


def _scatter_weighted_sum(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    x, factor, indices, *pairs = plain = [spec.plain for spec in specs]
    outer, extent, width = _around(x, 0)
    kinds = [
        _Kind("add", x.dtype.name, width == 1, indices.dtype.name, weight=weight.dtype.name) for weight in pairs[1::2]
    ]
    kinds[0] = replace(kinds[0], factor=factor.dtype.name)
    if x.dtype.char not in "fd" or any(_address(kind) is None for kind in kinds):
        return None
    sizes = _Sizes(outer, extent, width, indices.size)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        _, w0, where, *others = inputs
        jobs = [
            (kind, (outputs[0], rows, where, weight, w0))
            for kind, rows, weight in zip(kinds, others[::2], others[1::2])
        ]
        return _bound(op, ctx, sizes, jobs, inputs, inputs[0])

    return Prepared(plain, op.infer(*plain), bind, inplace=((0, 0),), name="llvm rows added")


def _added(
    op: Any, ctx: PlanContext, specs: Sequence[TensorSpec], sizes: _Sizes, rows: int, indices: int
) -> Prepared | None:
    """Prepare the sum of rows that indices name, in a table that is 0 elsewhere.

    Args:
        op, ctx, specs: the operator, and the specs of its inputs.
        sizes: of the table and the rows.
        rows, indices: which inputs they are.
    """
    dtype = specs[rows].dtype
    kind = _Kind("add", dtype.name, sizes.width == 1, specs[indices].dtype.name, zero=True)
    if dtype.kind not in "fiu" or dtype.char == "e" or _address(kind) is None:
        return None
    plain = [spec.plain for spec in specs]
    outs = op.infer(*plain)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        shapes = [np.broadcast_to(np.zeros((), spec.dtype), spec.shape) for spec in plain]  # of what is not read
        given = [shape if each is None else each for each, shape in zip(inputs, shapes)]
        return _bound(op, ctx, sizes, [(kind, (outputs[0], inputs[rows], inputs[indices], None, None))], given)

    expected = [spec if i in (rows, indices) else None for i, spec in enumerate(plain)]
    return Prepared(expected, outs, bind, name="llvm rows added")


def _sparse_to_dense(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    if op.dynamic:
        return None
    indices, (y,) = specs[0], op.infer(*(spec.plain for spec in specs))
    return _added(op, ctx, specs, _Sizes(1, y.shape[0], math.prod(y.shape[1:]), indices.size), 1, 0)


def _unsorted_segment_sum(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    if op.dynamic:
        return None
    (y,) = op.infer(*(spec.plain for spec in specs))
    return _added(op, ctx, specs, _Sizes(1, y.shape[0], math.prod(y.shape[1:]), specs[1].size), 0, 1)


def _gather_gradient(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    x, indices, _ = specs
    axis = op.indexed_axis(x.ndim)
    own = math.prod(indices.shape[axis:]) if op.match_outer else 0
    outer, extent, width = _around(x, axis)
    return _added(op, ctx, specs, _Sizes(outer, extent, width, own if op.match_outer else indices.size, 0, own), 2, 1)


INDEXED_ROWS: Mapping[str, Callable[..., Prepared | None]] = {
    "BatchGather": _gather,
    "BatchGatherGradient": _gather_gradient,
    "Gather": _gather,
    "ResizeNearest": _resize_nearest,
    "ResizeNearest3D": _resize_nearest,
    "ScatterAssign": _scatter_assign,
    "ScatterWeightedSum": _scatter_weighted_sum,
    "SortedSegmentSumGradient": _gather_rows,
    "SparseToDense": _sparse_to_dense,
    "UnsortedSegmentSum": _unsorted_segment_sum,
    "UnsortedSegmentSumGradient": _gather_rows,
}
"""By operator type."""
