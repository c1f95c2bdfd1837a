"""Functions that check indices, lengths or labels first: if one is wrong, the plain kernel is called, for its error."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.engines.llvm.code import converted
from netbuilder.engines.llvm.emitter import vector
from netbuilder.engines.llvm.loops import Loops
from netbuilder.ops.core.contexts import Call, PlanContext
from netbuilder.ops.core.registry import CPU, plain_kernel

__all__ = ["BRIEF", "OF_A_THREAD", "CheckedIndices", "checked_call"]

BRIEF, OF_A_THREAD = 1 << 14, 1 << 17  # bytes that are moved; see ``argument_rows``

_AHEAD, _MOST_AHEAD = 8, 512
"""How many rows ahead, and how many bytes of each, are brought to the cache."""


class CheckedIndices(Loops):
    """Base: the function ends at once, with ``status`` 1, if an integer is out of range."""

    def _check_range(self, pointer: str, dtype: np.dtype[Any], count: str, lowest: str, extent: str) -> None:
        """Write the test that ``count`` integers are at least ``lowest``, and less than ``extent``."""
        b, wide = self._body, np.dtype(np.int64)
        least = b.splat(lowest, "i64")
        most = b.splat(b.let(f"sub i64 {extent}, 1"), "i64")
        wrong = self._variable(vector("i64"), b.constant(0, "i64"))
        for at, mask in self._across(count):
            value = converted(b, self._vector(self._moved(pointer, dtype, at), dtype, mask), dtype, wide)
            below, above = b.binary("sub", value, least, "i64"), b.binary("sub", most, value, "i64")
            found = b.binary("or", below, above, "i64")  # negative if one of them is
            found = b.select(mask, found, b.constant(0, "i64"), "i64") if mask else found
            self._set(wrong, vector("i64"), b.binary("or", self._get(wrong, vector("i64")), found, "i64"))
        total = self._of_lanes(lambda x, y: b.binary("or", x, y, "i64"), self._get(wrong, vector("i64")), "i64")
        first = b.let(f"extractelement {vector('i64')} {total}, i64 0")
        self._end_if(b.let(f"icmp slt i64 {first}, 0"))

    def _prefetch(self, pointer: str, nbytes: str) -> None:
        """Write that so many bytes, of a row that is needed soon, are brought to the cache, up to ``_MOST_AHEAD``."""
        b = self._body
        b.declared.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        with self._for("0", self._least(nbytes, _MOST_AHEAD), 64) as at:
            place = b.let(f"getelementptr i8, ptr {pointer}, i64 {at}")
            b.add(f"call void @llvm.prefetch.p0(ptr {place}, i32 0, i32 3, i32 1)")

    def _ahead(self, indices: str, dtype: np.dtype[Any], position: str, end: str) -> str:
        """Return the index of a row that is needed soon."""
        b = self._body
        later = self._least(b.let(f"add i64 {position}, {_AHEAD}"), b.let(f"sub i64 {end}, 1"))
        return self._integer(indices, dtype, later)

    def _end_if(self, wrong: str) -> None:
        """Write that the function ends, with ``status`` 1, where a condition is true."""
        b, n = self._body, self._label()
        b.add(f"br i1 {wrong}, label %wrong{n}, label %right{n}")
        b.add(f"wrong{n}:")
        b.add("store i64 1, ptr %status, align 8")
        b.add("ret void")
        b.add(f"right{n}:")


def checked_call(call: Call, op: Any, ctx: PlanContext, inputs: Sequence[Any], status: Any) -> Call:
    """Return the call that raises the plain kernel's error if one of its functions has set its status.

    Args:
        call: what calls the functions.
        inputs: what the plain kernel is given.
        status: int64, one for each function, which are set again after an error.
    """
    first = ctypes.c_int64.from_buffer(status)
    alone = len(status) == 1

    def run() -> None:
        call()
        if first.value if alone else status.any():
            status[:] = 0
            kernel = plain_kernel(op.type, CPU)
            assert kernel is not None
            kernel(op, ctx.run, *inputs)
            raise AssertionError(f"{op.type}: its kernels disagree on which inputs are wrong")

    return run
