"""ArgMax and ArgMin as machine code: each lane has the best element so far, and its index."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.argument_rows import call_of_threads, shares
from netbuilder.engines.llvm.checked_indices import BRIEF, OF_A_THREAD
from netbuilder.engines.llvm.emitter import LANES, Emitter, memory_type, register_type, vector
from netbuilder.engines.llvm.loops import Loops
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["EXTREMA"]

_L = np.dtype(np.int64)
_MOST = 1 << 31  # indices are 32 bits wide in registers


@dataclass(frozen=True)
class _Kind:
    """What the code depends on: the elements, whether it finds the largest, and whether vectors are along the axis."""

    dtype: str
    largest: bool
    along: bool


class _Code(Loops):
    """Writes the function of a kind.

    Its arguments: the addresses of X, (outer, n, inner), and Y, (outer, inner); n, inner, the blocks of ``LANES``
    elements along the inner axes, the first piece and the end: blocks of each outer index.
    """

    def __init__(self, kind: _Kind) -> None:
        self._kind, self._dtype = kind, np.dtype(kind.dtype)
        self._entry, self._body, self._real = Emitter("e"), Emitter("v"), register_type(self._dtype)

    def text(self) -> str:
        b = self._body
        self._arguments(("x", "y"), ("n", "inner", "blocks", "begin", "end"))
        with self._for("%begin", "%end", 1) as piece:
            if self._kind.along:
                self._row(piece)
            else:
                block = b.let(f"mul i64 {b.let(f'urem i64 {piece}, %blocks')}, {LANES}")
                self._columns(b.let(f"udiv i64 {piece}, %blocks"), block)
        return self._function()

    def _row(self, row: str) -> None:
        """Write the index of one row: all lanes begin with its first element."""
        b = self._body
        x = self._moved("%x", self._dtype, b.let(f"mul i64 {row}, %n"))
        lanes = f"<{', '.join(f'i32 {k}' for k in range(LANES))}>"
        first = b.let(f"load {memory_type(self._dtype)}, ptr {x}, align {self._dtype.itemsize}")
        best, index = self._begun(self._computed(b.splat(first, memory_type(self._dtype))))
        for at, mask in self._across("%n"):
            value = self._read(self._moved(x, self._dtype, at), mask)
            here = b.binary("add", b.splat(b.let(f"trunc i64 {at} to i32"), "i32"), lanes, "i32")
            self._keep_better(best, index, value, here, mask)
        self._combine_lanes(best, index)
        found = b.let(f"extractelement {vector('i32')} {self._get(index, vector('i32'))}, i64 0")
        b.add(f"store i64 {b.let(f'zext i32 {found} to i64')}, ptr {self._moved('%y', _L, row)}, align 8")

    def _columns(self, outer: str, block: str) -> None:
        """Write the indices of a block, whose lanes have a column each."""
        b = self._body
        mask = self._lanes(b.let(f"sub i64 %inner, {block}"))
        extent = b.let("mul i64 %n, %inner")
        start = b.let(f"add i64 {b.let(f'mul i64 {outer}, {extent}')}, {block}")
        x = self._moved("%x", self._dtype, start)
        best, index = self._begun(self._read(x, mask))
        with self._for("1", "%n", 1) as i:
            value = self._read(self._moved(x, self._dtype, b.let(f"mul i64 {i}, %inner")), mask)
            self._keep_better(best, index, value, b.splat(b.let(f"trunc i64 {i} to i32"), "i32"))
        target = self._moved("%y", _L, b.let(f"add i64 {b.let(f'mul i64 {outer}, %inner')}, {block}"))
        self._write(b.convert("zext", self._get(index, vector("i32")), "i32", "i64"), _L, target, mask)

    def _begun(self, best: str) -> tuple[str, str]:
        zero = self._body.constant(0, "i32")
        return self._variable(vector(self._real), best), self._variable(vector("i32"), zero)

    def _read(self, place: str, mask: str) -> str:
        return self._computed(self._vector(place, self._dtype, mask))

    def _computed(self, value: str) -> str:
        return self._body.convert("fpext", value, "half", "float") if self._dtype.char == "e" else value

    def _better(self, x: str, y: str) -> str:
        """Return in which lanes x is better than y: NaN is better than all numbers."""
        b, direction = self._body, "gt" if self._kind.largest else "lt"
        if self._dtype.kind != "f":
            return b.compare(f"{'s' if self._dtype.kind == 'i' else 'u'}{direction}", x, y, self._real)
        above, number = b.compare(f"u{direction}", x, y, self._real), b.compare("ord", y, y, self._real)
        return b.binary("and", above, number, "i1")

    def _keep_better(self, best: str, index: str, value: str, here: str, mask: str = "") -> None:
        b, whole, place = self._body, vector(self._real), vector("i32")
        before = self._get(best, whole)
        better = self._better(value, before)
        better = b.binary("and", better, mask, "i1") if mask else better
        self._set(best, whole, b.select(better, value, before, self._real))
        self._set(index, place, b.select(better, here, self._get(index, place), "i32"))

    def _combine_lanes(self, best: str, index: str) -> None:
        """Write that each lane has the index of the best element of all, the first of several that are equal."""
        b = self._body
        x, i = self._get(best, vector(self._real)), self._get(index, vector("i32"))
        top = self._of_lanes(lambda x, y: b.select(self._better(y, x), y, x, self._real), x, self._real)
        last = b.select(self._better(top, x), b.constant(_MOST - 1, "i32"), i, "i32")
        self._set(index, vector("i32"), self._of_lanes(self._smaller, last, "i32"))

    def _smaller(self, i: str, j: str) -> str:
        return self._body.select(self._body.compare("ult", j, i, "i32"), j, i, "i32")


@functools.lru_cache(64)
def _address(kind: _Kind) -> int | None:
    return machine.address_of(_Code(kind).text()) if machine.available() else None


def _extremum(op: Any, ctx: PlanContext, x: TensorSpec) -> Prepared | None:
    """Prepare ArgMax or ArgMin."""
    axis = op.axis % x.ndim
    outer, n, inner = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
    if n > _MOST or (x.dtype.char == "e" and not machine.has_halves()):
        return None
    along = inner == 1
    address = _address(_Kind(x.dtype.name, op.type == "ArgMax", along))
    if address is None:
        return None
    blocks = 1 if along else -(-inner // LANES)
    threads = max(1, min(ctx.threads, outer * blocks)) if x.nbytes >= OF_A_THREAD else 1

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        fixed = [address, inputs[0].ctypes.data, outputs[0].ctypes.data, n, inner, blocks]
        words = [np.array([*fixed, *share], np.int64) for share in shares(outer * blocks, threads)]
        return call_of_threads(ctx, words, (inputs, outputs), brief=x.nbytes < BRIEF)

    return Prepared([x.plain], list(op.infer(x.plain)), bind, name="llvm extremum")


EXTREMA = dict.fromkeys(("ArgMax", "ArgMin"), _extremum)
"""By operator type."""
