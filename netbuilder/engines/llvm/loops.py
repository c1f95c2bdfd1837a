"""Loops, variables, and loads and stores of whole vectors and of parts of them, in the code of functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from netbuilder.engines.llvm.emitter import LANES, Emitter, memory_type, vector

__all__ = ["Loops"]

_SUFFIXES = {"float": "f32", "double": "f64", "half": "f16", **{f"i{n}": f"i{n}" for n in (8, 16, 32, 64)}}


class Loops:
    """Base of what writes a function: first the entry, with arguments and variables, then the body.

    Variables are in memory; LLVM finds registers for them.
    """

    _entry: Emitter
    _body: Emitter
    _labels = 0

    def _arguments(self, pointers: Sequence[str], integers: Sequence[str]) -> None:
        """Load the arguments that follow the address of the function, each to a value of its name."""
        e = self._entry
        for i, name in enumerate([*pointers, *integers], 1):
            place = e.let(f"getelementptr i64, ptr %arguments, i64 {i}")
            e.lines.append(f"  %{name} = load {'ptr' if i <= len(pointers) else 'i64'}, ptr {place}, align 8")

    def _function(self) -> str:
        """Return the text of the function."""
        lines = [*sorted(self._body.declared), "define void @kernel(ptr %arguments) {", "entry:", *self._entry.lines]
        return "\n".join([*lines, "  br label %body", "body:", *self._body.lines, "  ret void", "}", ""])

    def _label(self) -> int:
        self._labels += 1
        return self._labels

    def _variable(self, kind: str, start: str) -> str:
        """Return the place of a new variable, which has the value ``start`` from here on."""
        n = self._label()
        align = 64 if kind.startswith("<") else 8
        self._entry.lines.append(f"  %kept{n} = alloca {kind}, align {align}")
        self._set(f"%kept{n}", kind, start)
        return f"%kept{n}"

    def _set(self, place: str, kind: str, value: str) -> None:
        self._body.add(f"store {kind} {value}, ptr {place}, align {64 if kind.startswith('<') else 8}")

    def _get(self, place: str, kind: str) -> str:
        return self._body.let(f"load {kind}, ptr {place}, align {64 if kind.startswith('<') else 8}")

    @contextmanager
    def _for(self, start: str, end: str, step: int | str) -> Iterator[str]:
        """Write a loop, whose body is written inside the context.

        LLVM is not told how the number changes that the body is given, so that addresses which follow from it stay as
        they are written. Else it would try all ways to compute each from others, which for those of many rows takes as
        long as all else, and gains nothing.
        """
        b, n = self._body, self._label()
        at = self._variable("i64", start)
        b.add(f"br label %test{n}")
        b.add(f"test{n}:")
        value = self._get(at, "i64")
        b.declared.add("declare i64 @llvm.expect.i64(i64, i64)")
        value = b.let(f"call i64 @llvm.expect.i64(i64 {value}, i64 0)")  # which is no instruction of the CPU
        b.add(f"br i1 {b.let(f'icmp slt i64 {value}, {end}')}, label %inside{n}, label %after{n}")
        b.add(f"inside{n}:")
        yield value
        self._set(at, "i64", b.let(f"add i64 {value}, {step}"))
        b.add(f"br label %test{n}")
        b.add(f"after{n}:")

    @contextmanager
    def _if(self, condition: str) -> Iterator[None]:
        """Write what is done where a condition, of type i1, is true."""
        b, n = self._body, self._label()
        b.add(f"br i1 {condition}, label %then{n}, label %after{n}")
        b.add(f"then{n}:")
        yield
        b.add(f"br label %after{n}")
        b.add(f"after{n}:")

    def _across(self, count: str) -> Iterator[tuple[str, str]]:
        """Write a loop over whole vectors of ``count`` elements, and then one for the rest.

        Each body is written while the iterator stands at it; it is given the first element and the mask.
        """
        whole = self._body.let(f"and i64 {count}, {-LANES}")
        for start, end in (("0", whole), (whole, count)):
            with self._for(start, end, LANES) as at:
                yield at, "" if start == "0" else self._lanes(self._body.let(f"sub i64 {count}, {at}"))

    def _integer(self, pointer: str, dtype: np.dtype[Any], index: str = "0") -> str:
        """Return an element of an array of integers, as i64."""
        kind = memory_type(dtype)
        found = self._body.let(f"load {kind}, ptr {self._moved(pointer, dtype, index)}, align {dtype.itemsize}")
        if kind == "i64":
            return found
        return self._body.let(f"{'sext' if dtype.kind == 'i' else 'zext'} {kind} {found} to i64")

    def _least(self, x: str, y: str | int) -> str:
        self._body.declared.add("declare i64 @llvm.smin.i64(i64, i64)")
        return self._body.let(f"call i64 @llvm.smin.i64(i64 {x}, i64 {y})")

    def _most(self, x: str, y: str | int) -> str:
        self._body.declared.add("declare i64 @llvm.smax.i64(i64, i64)")
        return self._body.let(f"call i64 @llvm.smax.i64(i64 {x}, i64 {y})")

    def _lanes(self, left: str) -> str:
        """Return which lanes have one of the elements that are left."""
        b = self._body
        numbers = f"<{', '.join(f'i32 {k}' for k in range(LANES))}>"
        most = self._least(left, LANES)
        return b.compare("sgt", b.splat(b.let(f"trunc i64 {most} to i32"), "i32"), numbers, "i32")

    def _moved(self, pointer: str, dtype: np.dtype[Any], offset: str | int) -> str:
        """Return the address that is some elements further."""
        return self._body.let(f"getelementptr {memory_type(dtype)}, ptr {pointer}, i64 {offset}")

    def _vector(self, place: str, dtype: np.dtype[Any], mask: str = "") -> str:
        """Return the elements in memory that the lanes of ``mask`` have, and 0 in the other lanes; "": all."""
        b, kind = self._body, memory_type(dtype)
        whole, align = vector(kind), dtype.itemsize
        if not mask:
            return b.let(f"load {whole}, ptr {place}, align {align}")
        name = f"llvm.masked.load.v{LANES}{_SUFFIXES[kind]}.p0"
        b.declared.add(f"declare {whole} @{name}(ptr, i32, {vector('i1')}, {whole})")
        given = f"ptr {place}, i32 {align}, {vector('i1')} {mask}, {whole} zeroinitializer"
        return b.let(f"call {whole} @{name}({given})")

    def _fetched_ahead(self, place: str) -> None:
        """Have what is at an address, which need not be there, brought to the cache."""
        self._body.declared.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        self._body.add(f"call void @llvm.prefetch.p0(ptr {place}, i32 0, i32 3, i32 1)")

    def _gathered(self, start: str, dtype: np.dtype[Any], places: str, of_places: str = "i32", mask: str = "") -> str:
        """Return the elements at some places of an array, and 0 in the lanes that ``mask`` has not; "": all."""
        b, kind, pointers = self._body, memory_type(dtype), vector("ptr")
        name = f"llvm.masked.gather.v{LANES}{_SUFFIXES[kind]}.v{LANES}p0"
        b.declared.add(f"declare {vector(kind)} @{name}({pointers}, i32, {vector('i1')}, {vector(kind)})")
        which = b.let(f"getelementptr {kind}, ptr {start}, {vector(of_places)} {places}")
        given = f"i32 {dtype.itemsize}, {vector('i1')} {mask or b.constant(1, 'i1')}, {vector(kind)} zeroinitializer"
        return b.let(f"call {vector(kind)} @{name}({pointers} {which}, {given})")

    def _write(self, value: str, dtype: np.dtype[Any], place: str, mask: str = "") -> None:
        """Store the elements of the lanes of ``mask``; "": all."""
        b, kind = self._body, memory_type(dtype)
        whole, align = vector(kind), dtype.itemsize
        if not mask:
            b.add(f"store {whole} {value}, ptr {place}, align {align}")
            return
        name = f"llvm.masked.store.v{LANES}{_SUFFIXES[kind]}.p0"
        b.declared.add(f"declare void @{name}({whole}, ptr, i32, {vector('i1')})")
        b.add(f"call void @{name}({whole} {value}, ptr {place}, i32 {align}, {vector('i1')} {mask})")

    def _of_lanes(self, combined: Callable[[str, str], str], x: str, kind: str = "float") -> str:
        """Return a reduction over the lanes, in each lane."""
        half = LANES // 2
        while half:
            order = ", ".join(f"i32 {(k + half) % LANES}" for k in range(LANES))
            turned = f"shufflevector {vector(kind)} {x}, {vector(kind)} poison, <{LANES} x i32> <{order}>"
            x = combined(x, self._body.let(turned))
            half //= 2
        return x
