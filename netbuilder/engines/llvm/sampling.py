"""GridSample as machine code: each lane has a position, whose pixels and weights serve all channels."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.argument_rows import call_of_threads, shares
from netbuilder.engines.llvm.checked_indices import BRIEF, OF_A_THREAD
from netbuilder.engines.llvm.emitter import LANES, Emitter
from netbuilder.engines.llvm.loops import Loops
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["grid_sample"]

_F = np.dtype(np.float32)
_MOST = 1 << 24
"""Extents and numbers of pixels from here on have no exact float32, or no place of 32 bits."""


@dataclass(frozen=True)
class _Kind:
    """What the code depends on: the number of axes, and the operator's arguments."""

    axes: int
    mode: str
    padding: str
    align_corners: bool
    cubic: float
    far: int


class _Code(Loops):
    """Writes the function of a kind, whose arithmetic is that of the plain kernel.

    Its arguments: the addresses of X, (N, channels, pixels), of the grid, (N, count, axes), and Y, (N, channels,
    count); the blocks of ``LANES`` positions of a sample, the first piece and the end: blocks of each sample; and the
    extents of the image.
    """

    def __init__(self, kind: _Kind) -> None:
        self._kind, self._entry, self._body = kind, Emitter("e"), Emitter("v")

    def text(self) -> str:
        b, extents = self._body, [f"extent{i}" for i in range(self._kind.axes)]
        self._arguments(("x", "grid", "y"), ("channels", "pixels", "count", "blocks", "begin", "end", *extents))
        with self._for("%begin", "%end", 1) as piece:
            sample = b.let(f"udiv i64 {piece}, %blocks")
            block = b.let(f"mul i64 {b.let(f'urem i64 {piece}, %blocks')}, {LANES}")
            mask = self._lanes(b.let(f"sub i64 %count, {block}"))
            first = b.let(f"add i64 {b.let(f'mul i64 {sample}, %count')}, {block}")
            taps = self._taps(self._moved("%grid", _F, b.let(f"mul i64 {first}, {self._kind.axes}")), mask)
            with self._for("0", "%channels", 1) as channel:
                plane = b.let(f"add i64 {b.let(f'mul i64 {sample}, %channels')}, {channel}")
                x = self._moved("%x", _F, b.let(f"mul i64 {plane}, %pixels"))
                place = b.let(f"add i64 {b.let(f'mul i64 {plane}, %count')}, {block}")
                total = b.constant(0)
                for index, weight in taps:
                    total = b.binary("fadd", total, b.binary("fmul", weight, self._gathered(x, _F, index)))
                self._write(total, _F, self._moved("%y", _F, place), mask)
        return self._function()

    def _taps(self, grid: str, mask: str) -> list[tuple[str, str]]:
        """Return the pixels that samples are made of: the place in the plane, and the weight."""
        b, count = self._body, self._kind.axes
        axes = [self._along(self._position(grid, count - 1 - axis, mask), f"%extent{axis}") for axis in range(count)]
        taps = []
        for chosen in itertools.product(*axes):
            index, weight = chosen[0]
            for axis, (pixel, factor) in enumerate(chosen[1:], 1):
                index = b.binary("add", b.binary("mul", index, self._integers(f"%extent{axis}"), "i32"), pixel, "i32")
                weight = b.binary("fmul", weight, factor)
            taps.append((index, weight))
        return taps

    def _position(self, grid: str, number: int, mask: str) -> str:
        """Return one of the numbers of each position."""
        places = f"<{', '.join(f'i32 {k * self._kind.axes + number}' for k in range(LANES))}>"
        return self._gathered(grid, _F, places, mask=mask)

    def _integers(self, number: str) -> str:
        return self._body.splat(self._body.let(f"trunc i64 {number} to i32"), "i32")

    def _along(self, position: str, extent: str) -> list[tuple[str, str]]:
        """Return the pixels along an axis, and their weights."""
        b, kind = self._body, self._kind
        size = b.convert("sitofp", self._integers(extent), "i32", "float")
        size = b.binary("fsub", size, b.constant(1)) if kind.align_corners else size
        at = b.binary("fmul", b.binary("fadd", position, b.constant(1)), b.binary("fmul", size, b.constant(0.5)))
        at = at if kind.align_corners else b.binary("fsub", at, b.constant(0.5))
        at = b.select(b.compare("oge", at, b.constant(-kind.far)), at, b.constant(-kind.far))  # also in place of NaN
        at = b.select(b.compare("ole", at, b.constant(kind.far)), at, b.constant(kind.far))
        start = b.call("rint" if kind.mode == "nearest" else "floor", at)
        first, most = (
            b.convert("fptosi", start, "float", "i32"),
            b.binary("sub", self._integers(extent), _one(b), "i32"),
        )
        taps = []
        for offset, weight in self._weights(b.binary("fsub", at, start)):
            pixel, there = self._inside(b.binary("add", first, b.constant(offset, "i32"), "i32"), most)
            taps.append((pixel, b.select(there, weight, b.constant(0)) if there else weight))
        return taps

    def _weights(self, t: str) -> list[tuple[int, str]]:
        """Return, for positions ``t`` after a pixel, offsets of pixels and their weights."""
        b = self._body
        if self._kind.mode == "nearest":
            return [(0, b.constant(1))]
        rest = b.binary("fsub", b.constant(1), t)
        if self._kind.mode == "linear":
            return [(0, rest), (1, t)]

        a = self._kind.cubic

        def near(s: str) -> str:
            inner = b.binary("fsub", b.binary("fmul", b.constant(a + 2), s), b.constant(a + 3))
            return b.binary("fadd", b.binary("fmul", b.binary("fmul", inner, s), s), b.constant(1))

        def far(s: str) -> str:
            inner = b.binary("fsub", b.binary("fmul", b.constant(a), s), b.constant(5 * a))
            inner = b.binary("fadd", b.binary("fmul", inner, s), b.constant(8 * a))
            return b.binary("fsub", b.binary("fmul", inner, s), b.constant(4 * a))

        after, before = b.binary("fadd", b.constant(1), t), b.binary("fsub", b.constant(2), t)
        return [(-1, far(after)), (0, near(t)), (1, near(rest)), (2, far(before))]

    def _inside(self, at: str, most: str) -> tuple[str, str]:
        """Return the pixel that is read at each place, and where there is one; "": everywhere."""
        b, zero = self._body, self._body.constant(0, "i32")
        if self._kind.padding != "reflection":
            below, above = b.compare("slt", at, zero, "i32"), b.compare("sgt", at, most, "i32")
            pixel = b.select(below, zero, b.select(above, most, at, "i32"), "i32")
            outside = b.binary("or", below, above, "i1")
            return pixel, b.binary("xor", outside, b.constant(1, "i1"), "i1") if self._kind.padding == "zeros" else ""
        last = most if self._kind.align_corners else b.binary("add", most, _one(b), "i32")
        period = b.binary("shl", last, _one(b), "i32")
        period = b.select(b.compare("eq", period, zero, "i32"), _one(b), period, "i32")
        rest = b.binary("srem", at, period, "i32")
        rest = b.select(b.compare("slt", rest, zero, "i32"), b.binary("add", rest, period, "i32"), rest, "i32")
        back = b.binary("sub", period, rest, "i32")
        back = back if self._kind.align_corners else b.binary("sub", back, _one(b), "i32")
        return b.select(b.compare("slt", rest, back, "i32"), rest, back, "i32"), ""


def _one(b: Emitter) -> str:
    return b.constant(1, "i32")


@functools.lru_cache(64)
def _address(kind: _Kind) -> int | None:
    return machine.address_of(_Code(kind).text()) if machine.available() else None


def grid_sample(op: Any, ctx: PlanContext, x: TensorSpec, grid: TensorSpec) -> Prepared | None:
    """Prepare GridSample in float32: of images, and of volumes without cubic interpolation, which has 64 pixels."""
    extents = x.shape[2:]
    pixels, count = math.prod(extents), math.prod(grid.shape[1:-1])
    axes = len(extents)
    if x.dtype != _F or grid.dtype != _F or not 0 < pixels < _MOST or axes > (2 if op.mode == "cubic" else 3):
        return None
    address = _address(_Kind(axes, op.mode, op.padding_mode, bool(op.align_corners), op.cubic, op.far))
    if address is None:
        return None
    plain = [x.plain, grid.plain]
    (y,) = op.infer(*plain)
    blocks = -(-count // LANES)
    pieces = x.shape[0] * blocks
    threads = max(1, min(ctx.threads, pieces)) if y.nbytes >= OF_A_THREAD else 1

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        pointers = [each.ctypes.data for each in (*inputs, outputs[0])]
        fixed = [address, *pointers, x.shape[1], pixels, count, blocks]
        words = [np.array([*fixed, *share, *extents], np.int64) for share in shares(pieces, threads)]
        return call_of_threads(ctx, words, (inputs, outputs), brief=y.nbytes < BRIEF)

    return Prepared(plain, [y], bind, name="llvm samples")
