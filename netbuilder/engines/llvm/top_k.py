"""TopK along the last axis as machine code: vectors are compared with the smallest of the largest elements so far."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.argument_rows import call_of_threads, shares
from netbuilder.engines.llvm.emitter import LANES, Emitter, vector
from netbuilder.engines.llvm.loops import Loops
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["top_k"]

_MOST = 64
"""For more elements, sorting is faster than inserting one by one."""

_BRIEF, _OF_A_THREAD = 1 << 13, 1 << 14  # elements; see ``rows``
_F, _I, _L = np.dtype(np.float32), np.dtype(np.int32), np.dtype(np.int64)
_WORDS = ("x", "values", "indices", "positions", "n", "k", "begin", "end")


class _Code(Loops):
    """Writes the function. Its arguments are ``_WORDS``; ``positions`` may be missing.

    Elements are compared as integers that have their order: -0 is 0, and NaN is below all others. Those found so far
    are in descending order, each with its index.
    """

    def __init__(self, *, positions: bool) -> None:
        self._positions, self._entry, self._body = positions, Emitter("e"), Emitter("v")

    def text(self) -> str:
        self._arguments(_WORDS[:4], _WORDS[4:])
        self._entry.lines += [
            f"  %keys = alloca [{_MOST} x i32], align 64",
            f"  %some = alloca {vector('i32')}, align 64",
        ]
        with self._for("%begin", "%end", 1) as row:
            self._row(row)
        return self._function()

    def _row(self, row: str) -> None:
        b = self._body
        start, first = b.let(f"mul i64 {row}, %n"), b.let(f"mul i64 {row}, %k")
        x = self._moved("%x", _F, start)
        indices = self._moved("%indices", _L, first)
        last = self._moved("%keys", _I, b.let("sub i64 %k, 1"))
        with self._for("0", "%k", LANES) as i:
            lanes = self._lanes(b.let(f"sub i64 %k, {i}"))
            b.add(f"store {vector('i32')} {self._ordered(self._vector(self._moved(x, _F, i), _F, lanes))}, ptr %some")
            many = b.let(f"call i64 @llvm.smin.i64(i64 {b.let(f'sub i64 %k, {i}')}, i64 {LANES})")
            with self._for("0", many, 1) as lane:
                at = b.let(f"add i64 {i}, {lane}")
                self._insert(indices, self._key(lane), at, at)
        with self._for("%k", "%n", LANES) as i:
            lanes = self._lanes(b.let(f"sub i64 %n, {i}"))
            keys = self._ordered(self._vector(self._moved(x, _F, i), _F, lanes))
            least = b.splat(b.let(f"load i32, ptr {last}, align 4"), "i32")
            larger = b.binary("and", b.compare("sgt", keys, least, "i32"), lanes, "i1")
            self._insert_lanes(indices, last, keys, b.let(f"bitcast {vector('i1')} {larger} to i{LANES}"), i)
        with self._for("0", "%k", 1) as j:
            index = b.let(f"load i64, ptr {self._moved(indices, _L, j)}, align 8")
            value = b.let(f"load float, ptr {self._moved(x, _F, index)}, align 4")
            at = b.let(f"add i64 {first}, {j}")
            b.add(f"store float {value}, ptr {self._moved('%values', _F, at)}, align 4")
            if self._positions:
                position = b.let(f"add i64 {start}, {index}")
                b.add(f"store i64 {position}, ptr {self._moved('%positions', _L, at)}, align 8")

    def _key(self, lane: str) -> str:
        return self._body.let(f"load i32, ptr {self._moved('%some', _I, lane)}, align 4")

    def _ordered(self, x: str) -> str:
        """Return integers in the order of floats."""
        b = self._body
        bits = b.convert("bitcast", b.binary("fadd", x, b.constant(0)), "float", "i32")
        sign = b.binary("lshr", b.binary("ashr", bits, b.constant(31, "i32"), "i32"), b.constant(1, "i32"), "i32")
        keys = b.binary("xor", bits, sign, "i32")
        return b.select(b.compare("uno", x, x), b.constant(-(2**31), "i32"), keys, "i32")

    def _insert_lanes(self, indices: str, last: str, keys: str, larger: str, first: str) -> None:
        """Insert the lanes whose bits are set, if they are still larger than the last one."""
        b, n, kind = self._body, self._label(), f"i{LANES}"
        b.declared.add(f"declare {kind} @llvm.cttz.{kind}({kind}, i1)")
        left = self._variable(kind, larger)
        b.add(f"br i1 {b.let(f'icmp ne {kind} {larger}, 0')}, label %some{n}, label %none{n}")
        b.add(f"some{n}:")
        b.add(f"store {vector('i32')} {keys}, ptr %some, align 64")
        b.add(f"br label %next{n}")
        b.add(f"next{n}:")
        bits = self._get(left, kind)
        lane = b.let(f"zext {kind} {b.let(f'call {kind} @llvm.cttz.{kind}({kind} {bits}, i1 true)')} to i64")
        rest = b.let(f"and {kind} {bits}, {b.let(f'sub {kind} {bits}, 1')}")
        self._set(left, kind, rest)
        key, least = self._key(lane), b.let(f"load i32, ptr {last}, align 4")
        b.add(f"br i1 {b.let(f'icmp sgt i32 {key}, {least}')}, label %larger{n}, label %done{n}")
        b.add(f"larger{n}:")
        self._insert(indices, key, b.let(f"add i64 {first}, {lane}"), b.let("sub i64 %k, 1"))
        b.add(f"br label %done{n}")
        b.add(f"done{n}:")
        b.add(f"br i1 {b.let(f'icmp ne {kind} {rest}, 0')}, label %next{n}, label %none{n}")
        b.add(f"none{n}:")

    def _insert(self, indices: str, key: str, index: str, count: str) -> None:
        """Insert an element among ``count``, after those that are not smaller."""
        b, n = self._body, self._label()
        place = self._variable("i64", count)
        b.add(f"br label %test{n}")
        b.add(f"test{n}:")
        at = self._get(place, "i64")
        b.add(f"br i1 {b.let(f'icmp sgt i64 {at}, 0')}, label %compare{n}, label %found{n}")
        b.add(f"compare{n}:")
        before = b.let(f"sub i64 {at}, 1")
        other = b.let(f"load i32, ptr {self._moved('%keys', _I, before)}, align 4")
        b.add(f"br i1 {b.let(f'icmp slt i32 {other}, {key}')}, label %shift{n}, label %found{n}")
        b.add(f"shift{n}:")
        b.add(f"store i32 {other}, ptr {self._moved('%keys', _I, at)}, align 4")
        moved = b.let(f"load i64, ptr {self._moved(indices, _L, before)}, align 8")
        b.add(f"store i64 {moved}, ptr {self._moved(indices, _L, at)}, align 8")
        self._set(place, "i64", before)
        b.add(f"br label %test{n}")
        b.add(f"found{n}:")
        b.add(f"store i32 {key}, ptr {self._moved('%keys', _I, at)}, align 4")
        b.add(f"store i64 {index}, ptr {self._moved(indices, _L, at)}, align 8")


@functools.cache
def _address(*, positions: bool) -> int | None:
    return machine.address_of(_Code(positions=positions).text()) if machine.available() else None


def top_k(op: Any, ctx: PlanContext, x: TensorSpec, *k: TensorSpec) -> Prepared | None:
    """Prepare TopK along the last axis, of at most ``_MOST`` elements; k is an argument."""
    if k or x.dtype != np.float32 or not x.size or op.axis_of(x.shape) < x.ndim - 1:
        return None
    if op.k > min(x.shape[-1], _MOST):
        return None
    positions = op.n_out > 2
    address = _address(positions=positions)
    if address is None:
        return None
    n = x.shape[-1]
    rows = x.size // n
    threads = 1 if x.size < _OF_A_THREAD else max(1, min(ctx.threads, rows))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        buffers = [inputs[0], *outputs[:2], outputs[2] if positions else outputs[1]]
        fixed = [address, *(each.ctypes.data for each in buffers), n, op.k]
        words = [np.array([*fixed, *bounds], np.int64) for bounds in shares(rows, threads)]
        return call_of_threads(ctx, words, buffers, brief=x.size < _BRIEF)

    return Prepared([x.plain], list(op.infer(x.plain)), bind, name="llvm top_k")
