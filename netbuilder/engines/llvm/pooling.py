"""Maxima and means of windows of images with channels in blocks of eight, in one pass that keeps NaN.

A table has where each window begins in an image and how many rows and columns of it are inside, so padding is not read.
A thread has blocks of channels.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.argument_rows import call_of_threads, shares
from netbuilder.engines.llvm.emitter import Emitter
from netbuilder.engines.llvm.filters import BLOCK
from netbuilder.engines.llvm.loops import Loops
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.conv_geometry import Geometry
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["blocked_pool"]

_F, _L = np.dtype(np.float32), np.dtype(np.int64)
_V, _B = f"<{BLOCK} x float>", f"<{BLOCK} x i1>"
_POINTERS = ("x", "y", "windows")
_INTEGERS = ("begin", "end", "positions", "x_block", "down", "right")
_LEAST = f"<{', '.join(['float 0xFFF0000000000000'] * BLOCK)}>"  # -inf
_NAN = f"<{', '.join(['float 0x7FF8000000000000'] * BLOCK)}>"
_BRIEF, _OF_A_THREAD = 1 << 15, 1 << 14  # elements of windows, in blocks of channels


class _Code(Loops):
    """Writes the function.

    A row of ``windows`` has where a window begins in an image, its rows and columns, and what a sum is divided by.

    Args:
        mean: whether it computes means, not maxima.
    """

    def __init__(self, *, mean: bool) -> None:
        self._of_window = self._mean if mean else self._maximum
        self._entry, self._body = Emitter("e"), Emitter("v")
        self._arguments(_POINTERS, _INTEGERS)

    def text(self) -> str:
        b = self._body
        with self._for("%begin", "%end", 1) as block:
            x = self._moved("%x", _F, b.let(f"mul i64 {block}, %x_block"))
            y = self._moved("%y", _F, b.let(f"mul i64 {b.let(f'mul i64 {block}, %positions')}, {BLOCK}"))
            with self._for("0", "%positions", 1) as position:
                row = self._moved("%windows", _L, b.let(f"mul i64 {position}, 4"))
                first, rows, columns, count = (self._integer(row, _L, str(i)) for i in range(4))
                found = self._of_window(self._moved(x, _F, first), rows, columns, count)
                place = self._moved(y, _F, b.let(f"mul i64 {position}, {BLOCK}"))
                b.add(f"store {_V} {found}, ptr {place}, align 4")
        return self._function()

    @contextmanager
    def _elements(self, window: str, rows: str, columns: str) -> Iterator[str]:
        """Write what is done with each element of a window."""
        b = self._body
        end = b.let(f"mul i64 {columns}, %right")
        with self._for("0", rows, 1) as i:
            row = self._moved(window, _F, b.let(f"mul i64 {i}, %down"))
            with self._for("0", end, "%right") as j:
                yield b.let(f"load {_V}, ptr {self._moved(row, _F, j)}, align 4")

    def _mean(self, window: str, rows: str, columns: str, count: str) -> str:
        b = self._body
        total = self._variable(_V, "zeroinitializer")
        with self._elements(window, rows, columns) as each:
            self._set(total, _V, b.let(f"fadd {_V} {self._get(total, _V)}, {each}"))
        one = b.let(f"insertelement {_V} poison, float {b.let(f'sitofp i64 {count} to float')}, i64 0")
        counts = b.let(f"shufflevector {_V} {one}, {_V} poison, <{BLOCK} x i32> zeroinitializer")
        return b.let(f"fdiv {_V} {self._get(total, _V)}, {counts}")

    def _maximum(self, window: str, rows: str, columns: str, count: str) -> str:
        b = self._body
        greatest = self._variable(_V, _LEAST)
        kind = f"<{BLOCK} x i32>"
        has_nan = self._variable(kind, "zeroinitializer")
        with self._elements(window, rows, columns) as each:
            before = self._get(greatest, _V)
            is_greater = b.let(f"fcmp ogt {_V} {each}, {before}")
            self._set(greatest, _V, b.let(f"select {_B} {is_greater}, {_V} {each}, {_V} {before}"))
            is_nan = b.let(f"sext {_B} {b.let(f'fcmp uno {_V} {each}, {each}')} to {kind}")
            self._set(has_nan, kind, b.let(f"or {kind} {self._get(has_nan, kind)}, {is_nan}"))
        is_nan = b.let(f"icmp ne {kind} {self._get(has_nan, kind)}, zeroinitializer")
        return b.let(f"select {_B} {is_nan}, {_V} {_NAN}, {_V} {self._get(greatest, _V)}")


@functools.cache
def _text(mean: bool) -> str:
    return _Code(mean=mean).text()


def blocked_pool(
    ctx: PlanContext, window: Geometry, x: TensorSpec, y: TensorSpec, *, mean: bool, with_padding: bool = False
) -> Prepared | None:
    """Prepare the maxima or means of windows: X -> Y; None without llvmlite.

    Args:
        ctx: of the plan.
        window: of images with two axes.
        x, y: of images N, C, height, width, with channels in blocks of eight.
        mean: means, not maxima.
        with_padding: whether padding is counted in means.
    """
    address = machine.address_of(_text(mean))
    if address is None:
        return None
    n, channels, height, width = x.shape
    windows = _windows(window, height, width, with_padding)
    blocks = n * -(-channels // BLOCK)
    cost = blocks * int((windows[:, 1] * windows[:, 2]).sum())
    threads = max(1, min(ctx.threads, blocks, cost // _OF_A_THREAD))
    gaps = [window.dilations[0] * width * BLOCK, window.dilations[1] * BLOCK]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        pointers = [each.ctypes.data for each in (inputs[0], outputs[0], windows)]
        extents = [len(windows), height * width * BLOCK, *gaps]
        rows = [np.array([address, *pointers, *share, *extents], np.int64) for share in shares(blocks, threads)]
        return call_of_threads(ctx, rows, (inputs, outputs, windows), brief=cost < _BRIEF)

    return Prepared([x], [y], bind, name=f"llvm {'mean' if mean else 'max'} pool")


def _windows(window: Geometry, height: int, width: int, with_padding: bool) -> Any:
    """Return the table of windows, see ``_Code``."""
    firsts, counts = zip(*(_inside(window, axis, size) for axis, size in enumerate((height, width))))
    rows, columns = np.meshgrid(*firsts, indexing="ij")
    down, right = np.meshgrid(*counts, indexing="ij")
    divided_by = np.full_like(down, math.prod(window.kernel)) if with_padding else down * right
    table = [(rows * width + columns) * BLOCK, down, right, divided_by]
    return np.stack([each.reshape(-1) for each in table], axis=1).astype(np.int64)


def _inside(window: Geometry, axis: int, size: int) -> tuple[Any, Any]:
    """Return the first element of each window that is inside the image, and how many are."""
    dilation = window.dilations[axis]
    begin = np.arange(window.out[axis]) * window.strides[axis] - window.begin[axis]
    skipped = np.maximum(0, -(begin // dilation))
    end = np.minimum(window.kernel[axis], -(-(size - begin) // dilation))
    return begin + skipped * dilation, end - skipped
