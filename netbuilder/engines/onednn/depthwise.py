"""The gradient of the filters of a depthwise convolution wider than 3, in parts that oneDNN has fast kernels for.

oneDNN's kernels (3.2) for it take filters of up to three columns with at most one column of padding on each side, and
no more rows than the image has; for others the library multiplies unrolled images, which takes some 50 times as long.
The middle columns of a wider filter are such a filter. The columns at its sides are columns of a filter over dY shifted
sideways: what the shift drops of dY meets only the padding of X there. Likewise for rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.engines.arrays import as_flat
from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn.arguments import MemoryRef, Scratch, ScratchAllocator, resolve
from netbuilder.engines.onednn.blocked_layout import Desc, channel_blocked, row_major
from netbuilder.engines.onednn.convolutions import Views, any_order, backward_weights, forward
from netbuilder.engines.onednn.primitive import Extra, Primitive, Step
from netbuilder.ops.core.contexts import Call
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["DepthwiseGradient", "depthwise_gradient"]

_WIDEST = 3  # columns of oneDNN's kernels


@dataclass(frozen=True)
class _Range:
    """Some columns, or rows, of a filter's gradient.

    Args:
        shift: dY is read so many columns further on; what is beyond its end is 0.
        extent, before, after: columns of the filter that is computed, and columns of padding.
        first, to, count: the columns ``first`` and following of its gradient are the ``count`` columns from ``to`` on.
    """

    shift: int
    extent: int
    before: int
    after: int
    first: int
    to: int
    count: int

    @property
    def read(self) -> slice:
        """Its columns of the gradient that is computed."""
        return slice(self.first, self.first + self.count)

    @property
    def write(self) -> slice:
        """Its columns of the whole gradient."""
        return slice(self.to, self.to + self.count)


def _ranges(width: int, stride: int, padding: int, size: int, out: int) -> list[_Range] | None:
    """Return the parts of a filter of so many columns over rows of ``size`` elements; None if parts are not enough.

    >>> [(part.shift, part.extent, part.to, part.count) for part in _ranges(5, 1, 2, 16, 16)]
    [(0, 3, 1, 3), (1, 3, 0, 1), (-1, 3, 4, 1)]
    >>> [(part.shift, part.extent, part.to, part.count) for part in _ranges(7, 1, 3, 16, 16)]
    [(0, 3, 2, 3), (1, 3, 1, 1), (-1, 3, 5, 1), (2, 3, 0, 1), (-2, 3, 6, 1)]
    """
    found, missing = list[_Range](), set(range(width))
    for shift in sorted(range(-width, width + 1), key=lambda shift: (abs(shift), -shift)):
        best: _Range | None = None
        for extent in range(_WIDEST, 0, -1):
            for before in (1, 0):
                after = max(0, (out - 1) * stride + extent - size - before)
                if after > 1 or (size + before + after - extent) // stride + 1 != out:
                    continue
                place = before + shift * stride - padding  # of column 0
                held = [
                    k for k in range(width) if 0 <= k + place < extent and _exact(k, shift, stride, padding, size, out)
                ]
                new = sorted(missing.intersection(held))
                if new and (best is None or len(new) > best.count):
                    best = _Range(shift, extent, before, after, new[0] + place, new[0], new[-1] - new[0] + 1)
        if best is not None:
            found.append(best)
            missing -= set(range(best.to, best.to + best.count))
    return None if missing else found


def _exact(column: int, shift: int, stride: int, padding: int, size: int, out: int) -> bool:
    """Whether all columns of dY that a shift drops meet the padding of X at this column of the filter."""
    if shift > 0:
        return (shift - 1) * stride + column < padding
    return shift == 0 or (out + shift) * stride + column - padding >= size


@dataclass(frozen=True)
class DepthwiseGradient:
    """The gradient of the filters and, if requested, of the bias.

    Args:
        shape: channels, rows and columns of the filters.
        image: shape of dY in memory: images and blocks of channels, rows, columns, channels of a block.
        parts: rows and columns of each part, and its primitive; the first one is not shifted.
        shifted, sums: the memory of dY after a shift, and of a part's gradient.
        scratch: bytes of scratch memory.
    """

    shape: tuple[int, int, int]
    image: tuple[int, int, int, int]
    parts: Sequence[tuple[_Range, _Range, Primitive]]
    shifted: Scratch
    sums: Scratch
    scratch: int
    saved_flops: int = 0

    @property
    def whole(self) -> Primitive:
        """The primitive that reads dY as it is, and computes the bias's gradient."""
        return self.parts[0][2]

    def weights(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec in which the gradient of the weights is written."""
        return spec.plain

    def steps(self, x: MemoryRef, dy: MemoryRef, dw: MemoryRef, bias: MemoryRef | None = None) -> list[Step | Extra]:
        """Return the executions; ``bias`` is the bias's gradient, if this was made for one."""
        steps: list[Step | Extra] = []
        for number, (rows, columns, made) in enumerate(self.parts):
            is_shifted = bool(rows.shift or columns.shift)
            if is_shifted:
                steps.append(self._shift(dy, rows.shift, columns.shift))
            arguments = {c.SRC: x, c.DIFF_DST: self.shifted if is_shifted else dy, c.DIFF_WEIGHTS: self.sums}
            if bias is not None and not number:
                arguments[c.DIFF_BIAS] = bias
            steps += [Step(made, arguments), self._store(dw, rows, columns)]
        return steps

    def _shift(self, dy: MemoryRef, down: int, right: int) -> Extra:
        def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
            source, target = (
                as_flat(resolve(ref, inputs, outputs, scratch), np.float32)[: math.prod(self.image)].reshape(self.image)
                for ref in (dy, self.shifted)
            )
            (read_rows, rows), (read_columns, columns) = _moved(down), _moved(right)
            read, write = source[:, read_rows, read_columns], target[:, rows, columns]

            def run() -> None:
                target.fill(0)
                np.copyto(write, read)

            return run

        return bind

    def _store(self, dw: MemoryRef, rows: _Range, columns: _Range) -> Extra:
        def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
            channels, height, width = self.shape
            block = self.image[3]
            size = channels * rows.extent * columns.extent
            sums = as_flat(resolve(self.sums, inputs, outputs, scratch), np.float32)[:size]
            made = sums.reshape(channels // block, rows.extent, columns.extent, block)
            whole = as_flat(resolve(dw, inputs, outputs, scratch), np.float32)
            filters = whole.reshape(channels // block, block, height, width).transpose(0, 2, 3, 1)
            read, write = made[:, rows.read, columns.read], filters[:, rows.write, columns.write]
            return lambda: np.copyto(write, read)

        return bind


def _moved(shift: int) -> tuple[slice, slice]:
    """Return what a shift reads, and where it writes that."""
    read, write = slice(max(shift, 0), min(shift, 0) or None), slice(max(-shift, 0), -max(shift, 0) or None)
    return read, write


def depthwise_gradient(v: Views, bias: Desc | None, *, threads: int) -> DepthwiseGradient | None:
    """Return the gradient of a depthwise convolution's filters in parts; None if this module does not support it."""
    group, *each = v.weights.dims
    if v.kind != "convolution" or len(v.x.dims) != 4 or len(each) != 4 or each[:2] != [1, 1]:
        return None
    (strides, gaps, begin, end), (height, width) = v.window, each[2:]
    if any(gaps) or v.weights.strides[-1] != 1:
        return None
    columns = _ranges(width, strides[1], begin[1], v.x.dims[3], v.y.dims[3])
    whole = [_Range(0, height, begin[0], end[0], 0, 0, height)]
    for rows in (whole, _ranges(height, strides[0], begin[0], v.x.dims[2], v.y.dims[2])):
        if not rows or not columns:
            continue
        for block in (16, 8) if group % 8 == 0 else ():
            made = None if group % block else _in_parts(v, bias, block, list(itertools.product(rows, columns)), threads)
            if made is not None:
                return made
    return None


def _in_parts(
    v: Views, bias: Desc | None, block: int, parts: Sequence[tuple[_Range, _Range]], threads: int
) -> DepthwiseGradient | None:
    """Return the gradient with channels in blocks of this size; None if the library has no fast kernel for a part."""
    at_x, at_y = (channel_blocked(view, c.F32, block) for view in (v.x, v.y))
    if at_x is None or at_y is None:
        return None
    src, dst, made = Desc(v.x.dims, c.F32, at_x), Desc(v.y.dims, c.F32, at_y), list[tuple[_Range, _Range, Primitive]]()
    for rows, columns in parts:
        primitive = _primitive(v, src, dst, None if made else bias, rows, columns, threads)
        if primitive is None or primitive.slow or "gemm" in primitive.name:
            return None
        made.append((rows, columns, primitive))
    (n, group, rows_of_y, columns_of_y), (height, width) = v.y.dims, v.weights.dims[3:]
    image = (n * group // block, rows_of_y, columns_of_y, block)
    memory = ScratchAllocator()
    shifted, sums = (memory.allocate(4 * count) for count in (math.prod(image), group * max(height, _WIDEST) * _WIDEST))
    return DepthwiseGradient((group, height, width), image, made, shifted, sums, memory.nbytes)


def _primitive(
    v: Views, src: Desc, dst: Desc, bias: Desc | None, rows: _Range, columns: _Range, threads: int
) -> Primitive | None:
    strides, gaps, *_ = v.window
    window = (strides, gaps, (rows.before, columns.before), (rows.after, columns.after))
    weights = any_order(row_major((v.weights.dims[0], 1, 1, rows.extent, columns.extent)), c.F32)
    hint = forward(v.kind, src, weights, bias, dst, window, False, (), threads=threads)
    if hint is None:
        return None
    return backward_weights(v.kind, src, weights, bias, dst, window, hint, threads=threads)
