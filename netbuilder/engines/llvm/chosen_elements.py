"""Elements and slices that several indices choose together, as machine code: GatherND, ScatterElements and their like.

Each index is checked before what it chooses is read or written. If one is wrong, the plain kernel raises the error.
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
from netbuilder.engines.llvm.emitter import Emitter, memory_type, vector
from netbuilder.engines.llvm.indexed_rows import copied_as
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["CHOSEN_ELEMENTS"]

_L = np.dtype(np.int64)
_TAKE, _CLEAR = "take", "clear"
_REDUCTIONS = {"add": "add", "max": "gt", "min": "lt"}


@dataclass(frozen=True)
class _Kind:
    """What the code depends on.

    Args:
        slices: whether slices are chosen, else elements.
        change: what is done with them: "take", a reduction of ScatterND, or "clear": they become 0.
        inputs: the names of its pointers to inputs: of those that are read, "x", "indices" and "updates".
        dtype: of the elements; those that are copied are integers of their size.
        single: whether a slice has one element.
        indices: their type.
    """

    slices: bool
    change: str
    inputs: tuple[str, ...]
    dtype: str
    single: bool
    indices: str


class _Code(CheckedIndices):
    """Base: writes the function of a kind.

    What takes elements does so for the rows of indices from ``begin`` to ``end``. What changes them copies its part of
    X, the elements or slices from ``begin`` to ``end``, or sets it to 0, and goes through all indices in order for
    those that are in it: each is changed by one thread.
    """

    _integers: tuple[str, ...]
    _wide: str  # elements of a slice

    def __init__(self, kind: _Kind) -> None:
        self._kind, self._dtype, self._of_indices = kind, np.dtype(kind.dtype), np.dtype(kind.indices)
        self._entry, self._body = Emitter("e"), Emitter("v")

    def text(self) -> str:
        takes = self._kind.change == _TAKE
        self._arguments((*self._kind.inputs, "y", "numbers", "status"), (*self._integers, "rows", "begin", "end"))
        if not takes:
            self._begin()
        with self._for("%begin" if takes else "0", "%end" if takes else "%rows", 1) as row:
            self._row(row)
        return self._function()

    def _row(self, row: str) -> None:
        raise NotImplementedError

    def _begin(self) -> None:
        """Write that the part of Y becomes that of X, or 0."""
        b, size = self._body, self._dtype.itemsize
        of_one = b.let(f"mul i64 {self._wide}, {size}")
        first = b.let(f"mul i64 %begin, {of_one}")
        nbytes = b.let(f"mul i64 {b.let('sub i64 %end, %begin')}, {of_one}")
        target = b.let(f"getelementptr i8, ptr %y, i64 {first}")
        if "x" in self._kind.inputs:
            b.declared.add("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
            source = b.let(f"getelementptr i8, ptr %x, i64 {first}")
            b.add(f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {nbytes}, i1 false)")
        else:
            b.declared.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
            b.add(f"call void @llvm.memset.p0.i64(ptr {target}, i8 0, i64 {nbytes}, i1 false)")

    def _counted(self, index: str, extent: str) -> str:
        """Return a coordinate that may count from the end; end the function if it is out of range."""
        b = self._body
        from_end = b.let(f"add i64 {index}, {extent}")
        found = b.let(f"select i1 {b.let(f'icmp slt i64 {index}, 0')}, i64 {from_end}, i64 {index}")
        self._end_if(b.let(f"icmp uge i64 {found}, {extent}"))
        return found

    def _at(self, name: str, number: str) -> str:
        """Return the address of an element or slice."""
        return self._moved(f"%{name}", self._dtype, self._body.let(f"mul i64 {number}, {self._wide}"))

    def _chosen(self, place: str, number: str) -> None:
        """Write what is done at a place, which the index with a number has chosen."""
        b = self._body
        if self._kind.change == _TAKE:
            self._change(self._at("x", place), self._at("y", number))
            return
        from_begin, to_end = b.let(f"icmp sge i64 {place}, %begin"), b.let(f"icmp slt i64 {place}, %end")
        with self._if(b.let(f"and i1 {from_begin}, {to_end}")):
            clears = self._kind.change == _CLEAR
            self._change("" if clears else self._at("updates", number), self._at("y", place))

    def _change(self, source: str, target: str) -> None:
        b, kind, align = self._body, memory_type(self._dtype), self._dtype.itemsize
        if self._kind.single:
            new = b.let(f"load {kind}, ptr {source}, align {align}") if source else "0"
            if self._kind.change in _REDUCTIONS:
                new = self._reduced(b.let(f"load {kind}, ptr {target}, align {align}"), new, kind, "i1")
            b.add(f"store {kind} {new}, ptr {target}, align {align}")
            return
        for at, mask in self._across(self._wide):
            to = self._moved(target, self._dtype, at)
            new = self._vector(self._moved(source, self._dtype, at), self._dtype, mask) if source else (
                b.constant(0, kind)
            )  # fmt: skip
            if self._kind.change in _REDUCTIONS:
                new = self._reduced(self._vector(to, self._dtype, mask), new, vector(kind), vector("i1"))
            self._write(new, self._dtype, to, mask)

    def _reduced(self, old: str, new: str, kind: str, of_conditions: str) -> str:
        """Return the sum, the maximum or the minimum; NaN if one of them is."""
        b, operation, floats = self._body, _REDUCTIONS[self._kind.change], self._dtype.kind == "f"
        if operation == "add":
            return b.let(f"{'fadd' if floats else 'add'} {kind} {old}, {new}")
        sign = {"f": "o", "i": "s", "u": "u"}[self._dtype.kind]
        kept = b.let(f"{'fcmp' if floats else 'icmp'} {sign}{operation} {kind} {old}, {new}")
        if floats:
            kept = b.let(f"or {of_conditions} {kept}, {b.let(f'fcmp uno {kind} {old}, {old}')}")
        return b.let(f"select {of_conditions} {kept}, {kind} {old}, {kind} {new}")


class _Slices(_Code):
    """Of GatherND and ScatterND: the tensor is (batches, *extents, width), the indices (batches, own, coordinates).

    ``numbers`` has the extents.
    """

    _integers = ("coordinates", "own", "width")
    _wide = "%width"

    def _row(self, row: str) -> None:
        b = self._body
        place = self._variable("i64", b.let(f"sdiv i64 {row}, %own"))
        first = b.let(f"mul i64 {row}, %coordinates")
        with self._for("0", "%coordinates", 1) as i:
            extent = self._integer("%numbers", _L, i)
            at = self._counted(self._integer("%indices", self._of_indices, b.let(f"add i64 {first}, {i}")), extent)
            before = b.let(f"mul i64 {self._get(place, 'i64')}, {extent}")
            self._set(place, "i64", b.let(f"add i64 {before}, {at}"))
        self._chosen(self._get(place, "i64"), row)


class _Elements(_Code):
    """Of GatherElements and ScatterElements: ``numbers`` has the place of each row's first element, at coordinate 0.

    An element's place is that, and its coordinate times ``stride``, and ``step`` times its number in the row.
    """

    _integers = ("extent", "stride", "step", "width")
    _wide = "1"

    def _row(self, row: str) -> None:
        b = self._body
        start, first = self._integer("%numbers", _L, row), b.let(f"mul i64 {row}, %width")
        with self._for("0", "%width", 1) as i:
            at = b.let(f"add i64 {first}, {i}")
            index = self._counted(self._integer("%indices", self._of_indices, at), "%extent")
            along = b.let(f"add i64 {start}, {b.let(f'mul i64 {i}, %step')}")
            self._chosen(b.let(f"add i64 {along}, {b.let(f'mul i64 {index}, %stride')}"), at)


@functools.lru_cache(64)
def _address(kind: _Kind) -> int | None:
    code = _Slices if kind.slices else _Elements
    return machine.address_of(code(kind).text()) if machine.available() else None


@dataclass(frozen=True, eq=False)
class _Chosen:
    """What is chosen from a tensor.

    Args:
        slices: whether these are slices.
        width: elements of one.
        numbers: int64; the function is given their address.
        rows: of the indices, see ``_Code``.
        places: elements or slices of the tensor.
        integers: see ``_Code``; the width is that with which elements are copied, see ``copied_as``.
    """

    slices: bool
    width: int
    numbers: Any
    rows: int
    places: int
    integers: Callable[[int], Sequence[int]]


def _slices(op: Any, x: TensorSpec, indices: TensorSpec) -> _Chosen:
    batch, count = op.batch_dims, indices.shape[-1]
    extents = np.array(x.shape[batch : batch + count], np.int64)
    own, rows = math.prod(indices.shape[batch:-1]), math.prod(indices.shape[:-1])
    width, places = math.prod(x.shape[batch + count :]), math.prod(x.shape[: batch + count])
    return _Chosen(True, width, extents, rows, places, lambda width: (count, own, width))


def _elements(op: Any, x: TensorSpec, indices: TensorSpec) -> _Chosen:
    axis = op.axis % x.ndim
    strides = [math.prod(x.shape[i + 1 :]) for i in range(x.ndim)]
    *outer, width = indices.shape
    starts = np.zeros(outer, np.int64)
    for i, extent in enumerate(outer):
        if i != axis:
            starts += (np.arange(extent) * strides[i]).reshape(-1, *(1,) * (len(outer) - 1 - i))
    integers = x.shape[axis], strides[axis], int(axis != x.ndim - 1), width
    return _Chosen(False, 1, starts, math.prod(outer), x.size, lambda _: integers)


def _prepared(
    op: Any, ctx: PlanContext, specs: Sequence[TensorSpec], inputs: Sequence[str], tensor: int, change: str
) -> Prepared | None:
    """Prepare an operator.

    Args:
        inputs: see ``_Kind``.
        tensor: which input has the shape from which is chosen.
    """
    plain = [spec.plain for spec in specs]
    x, indices = plain[tensor], plain[inputs.index("indices")]
    if x.dtype == STRING or change in _REDUCTIONS and (x.dtype.kind not in "fiu" or x.dtype == np.float16):
        return None
    chosen = (_slices if hasattr(op, "batch_dims") else _elements)(op, x, indices)
    dtype, single, width = copied_as(x, chosen.width)
    if change in _REDUCTIONS:
        dtype, single, width = x.dtype.name, chosen.width == 1, chosen.width
    address = _address(_Kind(chosen.slices, change, tuple(inputs), dtype, single, indices.dtype.name))
    if address is None or not (chosen.slices or single):
        return None
    (y,) = op.infer(*plain)
    divided = chosen.rows if change == _TAKE else chosen.places
    threads = max(1, min(ctx.threads, divided)) if y.nbytes >= OF_A_THREAD else 1

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        status = np.zeros(threads, np.int64)
        pointers = [each.ctypes.data for each in (*inputs, outputs[0], chosen.numbers)]
        integers = (*chosen.integers(width), chosen.rows)
        words = [
            np.array([address, *pointers, status.ctypes.data + 8 * thread, *integers, *share], np.int64)
            for thread, share in enumerate(shares(divided, threads))
        ]
        call = call_of_threads(ctx, words, (inputs, outputs, chosen.numbers, status), brief=y.nbytes < BRIEF)
        return checked_call(call, op, ctx, inputs, status)

    return Prepared(plain, [y], bind, name="llvm chosen elements")


def _gather(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    return _prepared(op, ctx, specs, ("x", "indices"), 0, _TAKE)


def _gather_gradient(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    return _prepared(op, ctx, specs, ("unread", "indices", "updates"), 0, "add")


def _scatter(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    return _prepared(op, ctx, specs, ("x", "indices", "updates"), 0, op.reduction)


def _scatter_gradient(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    return _prepared(op, ctx, specs, ("indices", "x"), 1, _CLEAR)


CHOSEN_ELEMENTS: Mapping[str, Callable[..., Prepared | None]] = {
    **dict.fromkeys(("GatherElements", "GatherND"), _gather),
    **dict.fromkeys(("GatherElementsGradient", "GatherNDGradient"), _gather_gradient),
    **dict.fromkeys(("ScatterElements", "ScatterND"), _scatter),
    **dict.fromkeys(("ScatterElementsGradient", "ScatterNDGradient"), _scatter_gradient),
}
"""By operator type."""
