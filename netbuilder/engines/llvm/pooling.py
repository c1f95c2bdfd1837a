"""Maxima of windows of images with channels in blocks, in one pass that keeps NaN.

A table has where each window begins in an image and how many rows and columns of it are inside, so padding is not read.
A thread has blocks of channels.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.argument_rows import call_of_threads, shares
from netbuilder.engines.llvm.emitter import Emitter
from netbuilder.engines.llvm.loops import Loops
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.conv_geometry import Geometry
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["blocked_max_pool"]

_F, _L = np.dtype(np.float32), np.dtype(np.int64)
_POINTERS = ("x", "y", "windows")
_INTEGERS = ("begin", "end", "positions", "x_block", "down", "right")
_MINUS_INFINITY, _NAN = "0xFFF0000000000000", "0x7FF8000000000000"
_BRIEF, _OF_A_THREAD = 1 << 15, 1 << 14  # elements of windows, in blocks of channels


class _Code(Loops):
    """Writes the function.

    A row of ``windows`` has where a window begins in an image, its rows and its columns.

    Args:
        block: channels of a block.
    """

    def __init__(self, block: int) -> None:
        self._block, self._kind = block, f"<{block} x float>"
        self._entry, self._body = Emitter("e"), Emitter("v")
        self._arguments(_POINTERS, _INTEGERS)

    def text(self) -> str:
        b = self._body
        with self._for("%begin", "%end", 1) as block:
            x = self._moved("%x", _F, b.let(f"mul i64 {block}, %x_block"))
            y = self._moved("%y", _F, b.let(f"mul i64 {b.let(f'mul i64 {block}, %positions')}, {self._block}"))
            with self._for("0", "%positions", 1) as position:
                row = self._moved("%windows", _L, b.let(f"mul i64 {position}, 3"))
                first, rows, columns = (self._integer(row, _L, str(i)) for i in range(3))
                found = self._maximum(self._moved(x, _F, first), rows, columns)
                place = self._moved(y, _F, b.let(f"mul i64 {position}, {self._block}"))
                b.add(f"store {self._kind} {found}, ptr {place}, align 4")
        return self._function()

    @contextmanager
    def _elements(self, window: str, rows: str, columns: str) -> Iterator[str]:
        """Write what is done with each element of a window."""
        b = self._body
        end = b.let(f"mul i64 {columns}, %right")
        with self._for("0", rows, 1) as i:
            row = self._moved(window, _F, b.let(f"mul i64 {i}, %down"))
            with self._for("0", end, "%right") as j:
                yield b.let(f"load {self._kind}, ptr {self._moved(row, _F, j)}, align 4")

    def _maximum(self, window: str, rows: str, columns: str) -> str:
        b, kind, truth, flags = self._body, self._kind, f"<{self._block} x i1>", f"<{self._block} x i32>"
        greatest = self._variable(kind, self._repeated(_MINUS_INFINITY))
        has_nan = self._variable(flags, "zeroinitializer")
        with self._elements(window, rows, columns) as each:
            before = self._get(greatest, kind)
            is_greater = b.let(f"fcmp ogt {kind} {each}, {before}")
            self._set(greatest, kind, b.let(f"select {truth} {is_greater}, {kind} {each}, {kind} {before}"))
            is_nan = b.let(f"sext {truth} {b.let(f'fcmp uno {kind} {each}, {each}')} to {flags}")
            self._set(has_nan, flags, b.let(f"or {flags} {self._get(has_nan, flags)}, {is_nan}"))
        is_nan = b.let(f"icmp ne {flags} {self._get(has_nan, flags)}, zeroinitializer")
        found = f"{kind} {self._repeated(_NAN)}, {kind} {self._get(greatest, kind)}"
        return b.let(f"select {truth} {is_nan}, {found}")

    def _repeated(self, number: str) -> str:
        return f"<{', '.join([f'float {number}'] * self._block)}>"


@functools.cache
def _text(block: int) -> str:
    return _Code(block).text()


def blocked_max_pool(ctx: PlanContext, window: Geometry, x: TensorSpec, y: TensorSpec, block: int) -> Prepared | None:
    """Prepare the maxima of windows: X -> Y; None without llvmlite, or if a window is all padding.

    Args:
        ctx: of the plan.
        window: of images with two axes.
        x, y: of images N, C, height, width, with channels in blocks.
        block: channels of a block.
    """
    n, channels, height, width = x.shape
    windows = _windows(window, height, width)
    address = machine.address_of(_text(block)) if windows[:, 1:3].min() > 0 else None
    if address is None:
        return None
    windows[:, 0] *= block
    blocks = n * -(-channels // block)
    cost = blocks * int((windows[:, 1] * windows[:, 2]).sum())
    threads = max(1, min(ctx.threads, blocks, cost // _OF_A_THREAD))
    gaps = [window.dilations[0] * width * block, window.dilations[1] * block]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        pointers = [each.ctypes.data for each in (inputs[0], outputs[0], windows)]
        extents = [len(windows), height * width * block, *gaps]
        rows = [np.array([address, *pointers, *share, *extents], np.int64) for share in shares(blocks, threads)]
        return call_of_threads(ctx, rows, (inputs, outputs, windows), brief=cost < _BRIEF)

    return Prepared([x], [y], bind, name="llvm max pool")


def _windows(window: Geometry, height: int, width: int) -> Any:
    """Return the table of windows, see ``_Code``; where they begin is in blocks."""
    firsts, counts = zip(*(_inside(window, axis, size) for axis, size in enumerate((height, width))))
    rows, columns = np.meshgrid(*firsts, indexing="ij")
    down, right = np.meshgrid(*counts, indexing="ij")
    return np.stack([each.reshape(-1) for each in (rows * width + columns, down, right)], axis=1).astype(np.int64)


def _inside(window: Geometry, axis: int, size: int) -> tuple[Any, Any]:
    """Return the first element of each window that is inside the image, and how many are."""
    dilation = window.dilations[axis]
    begin = np.arange(window.out[axis]) * window.strides[axis] - window.begin[axis]
    skipped = np.maximum(0, -(begin // dilation))
    end = np.minimum(window.kernel[axis], -(-(size - begin) // dilation))
    return begin + skipped * dilation, end - skipped
