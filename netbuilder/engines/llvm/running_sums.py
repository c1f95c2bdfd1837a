"""CumSum as machine code: sums along an axis, in the order of its elements; vectors are along the axes after it."""

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

__all__ = ["running_sums"]


@dataclass(frozen=True)
class _Kind:
    """What the code depends on: the elements, whether a sum has its own element, and where the sums begin."""

    dtype: str
    exclusive: bool
    reverse: bool


class _Code(Loops):
    """Writes the function of a kind.

    Its arguments: the addresses of X and Y, (outer, n, inner); n, inner, the blocks of ``LANES`` elements along the
    inner axes, the first piece and the end: blocks of each outer index.
    """

    def __init__(self, kind: _Kind) -> None:
        self._kind, self._dtype = kind, np.dtype(kind.dtype)
        self._entry, self._body = Emitter("e"), Emitter("v")

    def text(self) -> str:
        b, real = self._body, register_type(self._dtype)
        self._arguments(("x", "y"), ("n", "inner", "blocks", "begin", "end"))
        single = b.let("icmp eq i64 %inner, 1")
        extent = b.let("mul i64 %n, %inner")
        with self._for("%begin", "%end", 1) as piece:
            block = b.let(f"mul i64 {b.let(f'urem i64 {piece}, %blocks')}, {LANES}")
            row = b.let(f"mul i64 {b.let(f'udiv i64 {piece}, %blocks')}, {extent}")
            first = b.let(f"add i64 {row}, {block}")
            with self._if(single):
                self._sums(first, real, "")
            with self._if(b.let(f"xor i1 {single}, true")):
                self._sums(first, vector(real), self._lanes(b.let(f"sub i64 %inner, {block}")))
        return self._function()

    def _sums(self, first: str, kind: str, mask: str) -> None:
        """Write the sums of a block, or of single elements."""
        b = self._body
        total = self._variable(kind, "zeroinitializer" if mask else "0" if kind[0] == "i" else "0.0")
        with self._for("0", "%n", 1) as i:
            at = b.let(f"sub i64 {b.let('sub i64 %n, 1')}, {i}") if self._kind.reverse else i
            place = b.let(f"add i64 {first}, {b.let(f'mul i64 {at}, %inner')}")
            x = self._read(self._moved("%x", self._dtype, place), kind, mask)
            before = self._get(total, kind)
            after = b.let(f"{'fadd' if self._dtype.kind == 'f' else 'add'} {kind} {before}, {x}")
            self._set(total, kind, after)
            self._put(before if self._kind.exclusive else after, self._moved("%y", self._dtype, place), kind, mask)

    def _read(self, place: str, kind: str, mask: str) -> str:
        b, stored = self._body, memory_type(self._dtype)
        if mask:
            value = self._vector(place, self._dtype, mask)
        else:
            value = b.let(f"load {stored}, ptr {place}, align {self._dtype.itemsize}")
        if self._dtype.char != "e":
            return value
        return b.let(f"fpext {vector('half') if mask else 'half'} {value} to {kind}")

    def _put(self, value: str, place: str, kind: str, mask: str) -> None:
        b, stored = self._body, memory_type(self._dtype)
        if self._dtype.char == "e":
            value = b.let(f"fptrunc {kind} {value} to {vector('half') if mask else 'half'}")
        if mask:
            self._write(value, self._dtype, place, mask)
        else:
            b.add(f"store {stored} {value}, ptr {place}, align {self._dtype.itemsize}")


@functools.lru_cache(64)
def _address(kind: _Kind) -> int | None:
    return machine.address_of(_Code(kind).text()) if machine.available() else None


def running_sums(op: Any, ctx: PlanContext, x: TensorSpec) -> Prepared | None:
    """Prepare CumSum."""
    if x.dtype.kind not in "fiu" or (x.dtype.char == "e" and not machine.has_halves()):
        return None
    address = _address(_Kind(x.dtype.name, bool(op.exclusive), bool(op.reverse)))
    if address is None:
        return None
    axis = op.axis % x.ndim
    outer, n, inner = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
    blocks = -(-inner // LANES)
    threads = max(1, min(ctx.threads, outer * blocks)) if x.nbytes >= OF_A_THREAD else 1

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        fixed = [address, inputs[0].ctypes.data, outputs[0].ctypes.data, n, inner, blocks]
        words = [np.array([*fixed, *share], np.int64) for share in shares(outer * blocks, threads)]
        return call_of_threads(ctx, words, (inputs, outputs), brief=x.nbytes < BRIEF)

    return Prepared([x.plain], [x.plain], bind, name="llvm running sums")
