"""SumRepeatedRows as machine code: the indices are sorted by their bytes, with their positions; then rows are added.

The indices are checked first. If one is wrong, nothing is written, and the plain kernel raises the error.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.argument_rows import call_of_threads
from netbuilder.engines.llvm.checked_indices import BRIEF, CheckedIndices, checked_call
from netbuilder.engines.llvm.emitter import Emitter, memory_type
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.indexing import no_row
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["sum_repeated_rows"]

_L = np.dtype(np.int64)
_DIGITS = 256
_POINTERS = ("indices", "values", "rows", "sums", "keys", "places", "other_keys", "other_places", "status")


class _Code(CheckedIndices):
    """Writes the function.

    Its arguments: the addresses of the inputs, the outputs, and of four int64 for each index: keys and places before
    and after each pass of the sort; the rows of the table, the indices, the width, and the passes, one for each byte of
    the highest index.
    """

    def __init__(self, dtype: np.dtype[Any], indices: np.dtype[Any]) -> None:
        self._dtype, self._indices = dtype, indices
        self._entry, self._body = Emitter("e"), Emitter("v")

    def text(self) -> str:
        b = self._body
        self._arguments(_POINTERS, ("extent", "count", "width", "passes"))
        self._entry.lines.append(f"  %starts = alloca [{_DIGITS} x i64], align 64")
        self._check_range("%indices", self._indices, "%count", "0", "%extent")
        with self._for("0", "%count", 1) as i:
            self._put("%keys", i, self._integer("%indices", self._indices, i))
            self._put("%places", i, i)
        with self._for("0", "%passes", 1) as number:
            self._pass(number, *self._sides(number))
        keys, places, _, _ = self._sides("%passes")
        last = self._variable("i64", "0")
        with self._for("0", "%count", 1) as i:
            self._add(i, keys, places, last)
        b.declared.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
        return self._function()

    def _sides(self, number: str) -> list[str]:
        """Return where a pass finds keys and places, and where it puts them."""
        b = self._body
        even = b.let(f"icmp eq i64 {b.let(f'and i64 {number}, 1')}, 0")
        sides = [("%keys", "%other_keys"), ("%places", "%other_places")]
        found = [b.let(f"select i1 {even}, ptr {x}, ptr {y}") for x, y in sides]
        return [*found, *(b.let(f"select i1 {even}, ptr {y}, ptr {x}") for x, y in sides)]

    def _at(self, pointer: str, place: str) -> str:
        return self._integer(pointer, _L, place)

    def _put(self, pointer: str, place: str, value: str) -> None:
        self._body.add(f"store i64 {value}, ptr {self._moved(pointer, _L, place)}, align 8")

    def _pass(self, number: str, keys: str, places: str, new_keys: str, new_places: str) -> None:
        """Write a pass of the sort, by one byte of the keys; equal ones keep their order."""
        b = self._body
        b.add(f"call void @llvm.memset.p0.i64(ptr %starts, i8 0, i64 {8 * _DIGITS}, i1 false)")
        shift = b.let(f"mul i64 {number}, 8")
        with self._for("0", "%count", 1) as i:
            digit = b.let(f"and i64 {b.let(f'lshr i64 {self._at(keys, i)}, {shift}')}, {_DIGITS - 1}")
            self._put("%starts", digit, b.let(f"add i64 {self._at('%starts', digit)}, 1"))
        total = self._variable("i64", "0")
        with self._for("0", str(_DIGITS), 1) as digit:
            before, own = self._get(total, "i64"), self._at("%starts", digit)
            self._put("%starts", digit, before)
            self._set(total, "i64", b.let(f"add i64 {before}, {own}"))
        with self._for("0", "%count", 1) as i:
            key = self._at(keys, i)
            digit = b.let(f"and i64 {b.let(f'lshr i64 {key}, {shift}')}, {_DIGITS - 1}")
            target = self._at("%starts", digit)
            self._put("%starts", digit, b.let(f"add i64 {target}, 1"))
            self._put(new_keys, target, key)
            self._put(new_places, target, self._at(places, i))

    def _add(self, i: str, keys: str, places: str, last: str) -> None:
        """Write that a row is the first one of its index, or is added to that."""
        b, kind, n = self._body, memory_type(self._indices), self._label()
        key, size = self._at(keys, i), self._dtype.itemsize
        row = self._row("%values", self._at(places, i))
        before = self._at(keys, self._most(b.let(f"sub i64 {i}, 1"), "0"))
        same = b.let(f"icmp eq i64 {key}, {before}")
        repeated = b.let(f"and i1 {same}, {b.let(f'icmp ne i64 {i}, 0')}")
        narrow = key if kind == "i64" else b.let(f"trunc i64 {key} to {kind}")
        index = b.let(f"select i1 {repeated}, {kind} {no_row(self._indices)}, {kind} {narrow}")
        b.add(f"store {kind} {index}, ptr {self._moved('%rows', self._indices, i)}, align {self._indices.itemsize}")
        own = self._row("%sums", i)
        b.add(f"br i1 {repeated}, label %again{n}, label %first{n}")
        b.add(f"again{n}:")
        nbytes = b.let(f"mul i64 %width, {size}")
        b.add(f"call void @llvm.memset.p0.i64(ptr {own}, i8 0, i64 {nbytes}, i1 false)")
        target = self._row("%sums", self._get(last, "i64"))
        for at, mask in self._across("%width"):
            place = self._moved(target, self._dtype, at)
            value = self._vector(self._moved(row, self._dtype, at), self._dtype, mask)
            total = b.binary("fadd", self._vector(place, self._dtype, mask), value, memory_type(self._dtype))
            self._write(total, self._dtype, place, mask)
        b.add(f"br label %done{n}")
        b.add(f"first{n}:")
        self._set(last, "i64", i)
        for at, mask in self._across("%width"):
            value = self._vector(self._moved(row, self._dtype, at), self._dtype, mask)
            self._write(value, self._dtype, self._moved(own, self._dtype, at), mask)
        b.add(f"br label %done{n}")
        b.add(f"done{n}:")

    def _row(self, pointer: str, number: str) -> str:
        return self._moved(pointer, self._dtype, self._body.let(f"mul i64 {number}, %width"))


@functools.lru_cache(16)
def _address(dtype: np.dtype[Any], indices: np.dtype[Any]) -> int | None:
    return machine.address_of(_Code(dtype, indices).text()) if machine.available() else None


def sum_repeated_rows(op: Any, ctx: PlanContext, indices: TensorSpec, values: TensorSpec) -> Prepared | None:
    """Prepare SumRepeatedRows of a table whose height is given; one thread does it."""
    address = _address(values.dtype, indices.dtype) if op.num_rows and values.dtype.char in "fd" else None
    if address is None:
        return None
    plain = [indices.plain, values.plain]
    count, width = indices.size, math.prod(values.shape[indices.ndim :])
    passes = -(-max(op.num_rows - 1, 1).bit_length() // 8)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        status = np.zeros(1, np.int64)
        pointers = [each.ctypes.data for each in (*inputs, *outputs)]
        pointers += [scratch.ctypes.data + 8 * count * k for k in range(4)]
        words = np.array([address, *pointers, status.ctypes.data, op.num_rows, count, width, passes], np.int64)
        keep = (inputs, outputs, scratch, status)
        call = call_of_threads(ctx, [words], keep, brief=values.nbytes < BRIEF)
        return checked_call(call, op, ctx, inputs, status)

    return Prepared(plain, op.infer(*plain), bind, max(32 * count, 1), name="llvm rows added")
