"""MaxPool of images with channels in blocks of eight, in one pass that keeps NaN.

A table has where each window begins in an image and how many rows and columns of it are inside, so padding is not read.
A thread has blocks of channels.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
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

__all__ = ["blocked_max_pool"]

_F, _L = np.dtype(np.float32), np.dtype(np.int64)
_V, _B = f"<{BLOCK} x float>", f"<{BLOCK} x i1>"
_POINTERS = ("x", "y", "windows")
_INTEGERS = ("begin", "end", "positions", "x_block", "down", "right")
_LEAST = f"<{', '.join(['float 0xFFF0000000000000'] * BLOCK)}>"  # -inf
_NAN = f"<{', '.join(['float 0x7FF8000000000000'] * BLOCK)}>"
_BRIEF, _OF_A_THREAD = 1 << 15, 1 << 14  # elements of windows, in blocks of channels


class _Code(Loops):
    """Writes the function. A row of ``windows`` has where a window begins in an image, and its rows and columns."""

    def __init__(self) -> None:
        self._entry, self._body = Emitter("e"), Emitter("v")
        self._arguments(_POINTERS, _INTEGERS)

    def text(self) -> str:
        b = self._body
        with self._for("%begin", "%end", 1) as block:
            x = self._moved("%x", _F, b.let(f"mul i64 {block}, %x_block"))
            y = self._moved("%y", _F, b.let(f"mul i64 {b.let(f'mul i64 {block}, %positions')}, {BLOCK}"))
            with self._for("0", "%positions", 1) as position:
                row = self._moved("%windows", _L, b.let(f"mul i64 {position}, 3"))
                first, rows, columns = (self._integer(row, _L, str(i)) for i in range(3))
                found = self._maximum(self._moved(x, _F, first), rows, columns)
                place = self._moved(y, _F, b.let(f"mul i64 {position}, {BLOCK}"))
                b.add(f"store {_V} {found}, ptr {place}, align 4")
        return self._function()

    def _maximum(self, window: str, rows: str, columns: str) -> str:
        b = self._body
        greatest = self._variable(_V, _LEAST)
        has_nan = self._variable(f"<{BLOCK} x i32>", "zeroinitializer")
        with self._for("0", rows, 1) as i:
            row = self._moved(window, _F, b.let(f"mul i64 {i}, %down"))
            end = b.let(f"mul i64 {columns}, %right")
            with self._for("0", end, "%right") as j:
                each = b.let(f"load {_V}, ptr {self._moved(row, _F, j)}, align 4")
                before = self._get(greatest, _V)
                is_greater = b.let(f"fcmp ogt {_V} {each}, {before}")
                self._set(greatest, _V, b.let(f"select {_B} {is_greater}, {_V} {each}, {_V} {before}"))
                is_nan = b.let(f"sext {_B} {b.let(f'fcmp uno {_V} {each}, {each}')} to <{BLOCK} x i32>")
                kind = f"<{BLOCK} x i32>"
                self._set(has_nan, kind, b.let(f"or {kind} {self._get(has_nan, kind)}, {is_nan}"))
        kind = f"<{BLOCK} x i32>"
        is_nan = b.let(f"icmp ne {kind} {self._get(has_nan, kind)}, zeroinitializer")
        return b.let(f"select {_B} {is_nan}, {_V} {_NAN}, {_V} {self._get(greatest, _V)}")


@functools.cache
def _text() -> str:
    return _Code().text()


def blocked_max_pool(ctx: PlanContext, window: Geometry, x: TensorSpec, y: TensorSpec) -> Prepared | None:
    """Prepare MaxPool: X -> Y; None without llvmlite.

    Args:
        ctx: of the plan.
        window: of images with two axes.
        x, y: of images N, C, height, width, with channels in blocks of eight.
    """
    address = machine.address_of(_text())
    if address is None:
        return None
    n, channels, height, width = x.shape
    windows = _windows(window, height, width)
    blocks = n * -(-channels // BLOCK)
    cost = blocks * int((windows[:, 1] * windows[:, 2]).sum())
    threads = max(1, min(ctx.threads, blocks, cost // _OF_A_THREAD))
    gaps = [window.dilations[0] * width * BLOCK, window.dilations[1] * BLOCK]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        pointers = [each.ctypes.data for each in (inputs[0], outputs[0], windows)]
        extents = [len(windows), height * width * BLOCK, *gaps]
        rows = [np.array([address, *pointers, *share, *extents], np.int64) for share in shares(blocks, threads)]
        return call_of_threads(ctx, rows, (inputs, outputs, windows), brief=cost < _BRIEF)

    return Prepared([x], [y], bind, name="llvm max pool")


def _windows(window: Geometry, height: int, width: int) -> Any:
    """Return the table of windows, see ``_Code``."""
    firsts, counts = zip(*(_inside(window, axis, size) for axis, size in enumerate((height, width))))
    rows, columns = np.meshgrid(*firsts, indexing="ij")
    down, right = np.meshgrid(*counts, indexing="ij")
    table = [(rows * width + columns) * BLOCK, down, right]
    return np.stack([each.reshape(-1) for each in table], axis=1).astype(np.int64)


def _inside(window: Geometry, axis: int, size: int) -> tuple[Any, Any]:
    """Return the first element of each window that is inside the image, and how many are."""
    dilation = window.dilations[axis]
    begin = np.arange(window.out[axis]) * window.strides[axis] - window.begin[axis]
    skipped = np.maximum(0, -(begin // dilation))
    end = np.minimum(window.kernel[axis], -(-(size - begin) // dilation))
    return begin + skipped * dilation, end - skipped
