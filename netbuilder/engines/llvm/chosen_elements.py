"""GatherND and GatherElements as machine code: each index is checked before what it chooses is read.

If one is wrong, the plain kernel raises the error.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.argument_rows import call_of_threads, shares
from netbuilder.engines.llvm.checked_indices import BRIEF, OF_A_THREAD, CheckedIndices, checked_call
from netbuilder.engines.llvm.emitter import Emitter, memory_type
from netbuilder.engines.llvm.indexed_rows import copied_as
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["CHOSEN_ELEMENTS"]

_L = np.dtype(np.int64)


@dataclass(frozen=True)
class _Kind:
    """What the code depends on: whether it is for slices, the elements, whether a slice has one, and the indices.

    Elements are integers of their size.
    """

    slices: bool
    dtype: str
    single: bool
    indices: str


class _Code(CheckedIndices):
    """Base: writes the function of a kind."""

    _pointers: tuple[str, ...]
    _integers: tuple[str, ...]

    def __init__(self, kind: _Kind) -> None:
        self._kind, self._dtype, self._of_indices = kind, np.dtype(kind.dtype), np.dtype(kind.indices)
        self._entry, self._body = Emitter("e"), Emitter("v")

    def text(self) -> str:
        self._arguments(self._pointers, self._integers)
        with self._for("%begin", "%end", 1) as row:
            self._row(row)
        return self._function()

    def _row(self, row: str) -> None:
        raise NotImplementedError

    def _counted(self, index: str, extent: str) -> str:
        """Return a coordinate that may count from the end; end the function if it is out of range."""
        b = self._body
        from_end = b.let(f"add i64 {index}, {extent}")
        found = b.let(f"select i1 {b.let(f'icmp slt i64 {index}, 0')}, i64 {from_end}, i64 {index}")
        self._end_if(b.let(f"icmp uge i64 {found}, {extent}"))
        return found

    def _copy_one(self, source: str, target: str) -> None:
        b, kind, align = self._body, memory_type(self._dtype), self._dtype.itemsize
        b.add(f"store {kind} {b.let(f'load {kind}, ptr {source}, align {align}')}, ptr {target}, align {align}")


class _Slices(_Code):
    """Of GatherND: X is (batches, *extents, width), the indices are (batches, own, coordinates)."""

    _pointers = ("x", "indices", "y", "extents", "status")
    _integers = ("coordinates", "own", "width", "begin", "end")

    def _row(self, row: str) -> None:
        b = self._body
        place = self._variable("i64", b.let(f"sdiv i64 {row}, %own"))
        first = b.let(f"mul i64 {row}, %coordinates")
        with self._for("0", "%coordinates", 1) as i:
            extent = self._integer("%extents", _L, i)
            at = self._counted(self._integer("%indices", self._of_indices, b.let(f"add i64 {first}, {i}")), extent)
            before = b.let(f"mul i64 {self._get(place, 'i64')}, {extent}")
            self._set(place, "i64", b.let(f"add i64 {before}, {at}"))
        source = self._moved("%x", self._dtype, b.let(f"mul i64 {self._get(place, 'i64')}, %width"))
        target = self._moved("%y", self._dtype, b.let(f"mul i64 {row}, %width"))
        if self._kind.single:
            self._copy_one(source, target)
            return
        for at, mask in self._across("%width"):
            value = self._vector(self._moved(source, self._dtype, at), self._dtype, mask)
            self._write(value, self._dtype, self._moved(target, self._dtype, at), mask)


class _Elements(_Code):
    """Of GatherElements: ``starts`` has the place in X of each row's first element, at coordinate 0 of the axis.

    An element's place is that, and its coordinate times ``stride``, and ``step`` times its number in the row.
    """

    _pointers = ("x", "indices", "y", "starts", "status")
    _integers = ("extent", "stride", "step", "width", "begin", "end")

    def _row(self, row: str) -> None:
        b = self._body
        start, first = self._integer("%starts", _L, row), b.let(f"mul i64 {row}, %width")
        with self._for("0", "%width", 1) as i:
            at = b.let(f"add i64 {first}, {i}")
            index = self._counted(self._integer("%indices", self._of_indices, at), "%extent")
            along = b.let(f"add i64 {start}, {b.let(f'mul i64 {i}, %step')}")
            place = b.let(f"add i64 {along}, {b.let(f'mul i64 {index}, %stride')}")
            self._copy_one(self._moved("%x", self._dtype, place), self._moved("%y", self._dtype, at))


@functools.lru_cache(64)
def _address(kind: _Kind) -> int | None:
    code = _Slices if kind.slices else _Elements
    return machine.address_of(code(kind).text()) if machine.available() else None


@dataclass(frozen=True, eq=False)
class _Job:
    """What a function is given.

    Args:
        slices: whether slices are chosen.
        width: elements that are copied together, see ``copied_as``.
        numbers: int64; it is given their address.
        rows: how many there are.
        integers: those before the first row and the end.
    """

    slices: bool
    width: int
    numbers: Any
    rows: int
    integers: Callable[[int], Sequence[int]]


def _prepared(op: Any, ctx: PlanContext, specs: Sequence[TensorSpec], job: _Job) -> Prepared | None:
    x, indices = plain = [spec.plain for spec in specs]
    if x.dtype == STRING:
        return None
    dtype, single, width = copied_as(x, job.width)
    address = _address(_Kind(job.slices, dtype, single, indices.dtype.name))
    if address is None or not (job.slices or single):
        return None
    (y,) = op.infer(*plain)
    threads = max(1, min(ctx.threads, job.rows)) if y.nbytes >= OF_A_THREAD else 1

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        status = np.zeros(threads, np.int64)
        pointers = [each.ctypes.data for each in (*inputs, outputs[0], job.numbers)]
        words = [
            np.array([address, *pointers, status.ctypes.data + 8 * thread, *job.integers(width), *share], np.int64)
            for thread, share in enumerate(shares(job.rows, threads))
        ]
        call = call_of_threads(ctx, words, (inputs, outputs, job.numbers, status), brief=y.nbytes < BRIEF)
        return checked_call(call, op, ctx, inputs, status)

    return Prepared(plain, [y], bind, name="llvm chosen elements")


def _gather_nd(op: Any, ctx: PlanContext, x: TensorSpec, indices: TensorSpec) -> Prepared | None:
    batch, count = op.batch_dims, indices.shape[-1]
    extents = np.array(x.shape[batch : batch + count], np.int64)
    own, rows = math.prod(indices.shape[batch:-1]), math.prod(indices.shape[:-1])
    job = _Job(True, math.prod(x.shape[batch + count :]), extents, rows, lambda width: (count, own, width))
    return _prepared(op, ctx, (x, indices), job)


def _gather_elements(op: Any, ctx: PlanContext, x: TensorSpec, indices: TensorSpec) -> Prepared | None:
    axis = op.axis % x.ndim
    strides = [math.prod(x.shape[i + 1 :]) for i in range(x.ndim)]
    *outer, width = indices.shape
    starts = np.zeros(outer, np.int64)
    for i, extent in enumerate(outer):
        if i != axis:
            starts += (np.arange(extent) * strides[i]).reshape(-1, *(1,) * (len(outer) - 1 - i))
    integers = x.shape[axis], strides[axis], int(axis != x.ndim - 1), width
    return _prepared(op, ctx, (x, indices), _Job(False, 1, starts, math.prod(outer), lambda _: integers))


CHOSEN_ELEMENTS: Mapping[str, Callable[..., Prepared | None]] = {
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
}
"""By operator type."""
