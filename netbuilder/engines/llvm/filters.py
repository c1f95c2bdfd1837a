"""The layout of filters for ``convolutions``, which read them in order.

Filters are divided into units of two blocks of eight channels of the result, or of one where another is missing. Of a
unit there are, for some blocks of channels of X at a time, the window's elements, then the blocks, then their channels,
then the unit's channels. Small groups of channels are joined to blocks, with zeros for what has no part in a group.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["BLOCK", "FilterPanels", "FilterShape", "filters", "reorder_filters"]

BLOCK = 8
"""Channels of a block."""

_DEEP = 512
"""About how many products are added in registers before their sum is added to the others."""

_MOST_JOINED = 2
"""How many groups are joined at most: all but one of so many products are with zeros."""

_F = np.dtype(np.float32)


@dataclass(frozen=True)
class FilterShape:
    """The extents of filters.

    Args:
        groups, inputs, outputs: how many groups there are, and channels of X and Y in each.
        joined: how many groups are joined to one.
        taps: elements of the window.
    """

    groups: int
    inputs: int
    outputs: int
    joined: int
    taps: int

    @staticmethod
    def of(inputs: int, outputs: int, groups: int, taps: int) -> FilterShape | None:
        """Return the shape for so many channels and groups; None if groups do not fill blocks."""
        each = inputs // groups, outputs // groups
        if groups == 1:
            return FilterShape(1, *each, 1, taps) if inputs >= BLOCK else None
        for joined in range(1, _MOST_JOINED + 1):
            if groups % joined == 0 and all(joined * channels % BLOCK == 0 for channels in each):
                return FilterShape(groups, *each, joined, taps)
        return None

    @property
    def blocks_in(self) -> int:
        """Blocks of X that joined groups read."""
        return -(-self.joined * self.inputs // BLOCK)

    @property
    def blocks_out(self) -> int:
        return -(-self.joined * self.outputs // BLOCK)

    @property
    def deep(self) -> int:
        """Blocks of X whose products are added in registers."""
        most = max(1, _DEEP // (BLOCK * self.taps))
        return -(-self.blocks_in // -(-self.blocks_in // most))

    @property
    def together(self) -> int:
        """Blocks of most units."""
        return min(2, self.blocks_out)

    @property
    def block_size(self) -> int:
        """Elements of the filters for one block of Y."""
        return self.taps * self.blocks_in * BLOCK * BLOCK

    @property
    def size(self) -> int:
        return self.groups // self.joined * self.blocks_out * self.block_size

    @property
    def units(self) -> list[tuple[int, int, int, int]]:
        """Block of Y, number of blocks, first block of X, and place of the filters, of each unit."""
        found = []
        for group in range(self.groups // self.joined):
            for block in range(0, self.blocks_out, 2):
                number = group * self.blocks_out + block
                several = min(2, self.blocks_out - block)
                found.append((number, several, group * self.blocks_in, number * self.block_size))
        return found


class FilterPanels:
    """The layout of filters of a shape; equal layouts are the same object (see ``filters``)."""

    engine, itemsize, filled = "LLVM", 4, True
    __slots__ = ("nbytes", "shape")

    def __init__(self, shape: FilterShape) -> None:
        self.shape, self.nbytes = shape, shape.size * _F.itemsize

    def __repr__(self) -> str:
        s = self.shape
        return f"<filters of {s.groups} x {s.outputs} x {s.inputs} x {s.taps} in panels>"

    def loops(self, shape: tuple[int, ...]) -> None:
        """See ``netbuilder.ops.core.contexts.Layout``: it is for convolutions alone."""
        return

    def store(self, weights: Any, memory: Any) -> None:
        """Store plain filters O, I, window."""
        s = self.shape
        count, o, i = s.groups // s.joined, s.joined * s.outputs, s.joined * s.inputs
        read = weights.reshape(count, s.joined, s.outputs, s.inputs, s.taps)
        whole = np.zeros((count, s.blocks_out * BLOCK, s.blocks_in * BLOCK, s.taps), _F)
        for j in range(s.joined):
            rows, columns = (slice(j * n, (j + 1) * n) for n in (s.outputs, s.inputs))
            whole[:, rows, columns] = read[:, j]
        assert (o, i) <= whole.shape[1:3]
        blocks = whole.reshape(count, s.blocks_out, BLOCK, s.blocks_in, BLOCK, s.taps)
        written = memory.view(_F).reshape(count, s.blocks_out * s.block_size)
        pairs = s.blocks_out // 2
        for begin, number, several in ((0, pairs, 2), (2 * pairs, s.blocks_out % 2, 1)):
            if not number:
                continue
            part = blocks[:, begin : begin + number * several]
            units = part.reshape(count, number, several, BLOCK, s.blocks_in, BLOCK, s.taps).transpose(0, 1, 6, 4, 5, 2, 3)
            place = written[:, begin * s.block_size :][:, : number * several * s.block_size]
            places = place.reshape(count, number, several * s.block_size)
            for first in range(0, s.blocks_in, s.deep):
                some = units[:, :, :, first : first + s.deep]
                start = first * s.taps * BLOCK * BLOCK * several
                size = some[0, 0].size
                places[:, :, start : start + size] = some.reshape(count, number, size)


filters = functools.lru_cache(1024)(FilterPanels)


def reorder_filters(ctx: PlanContext, source: TensorSpec, target: TensorSpec) -> Prepared:
    """Return the prepared copy of plain filters into panels."""
    layout = target.layout
    assert isinstance(layout, FilterPanels)

    def bind(inputs: Any, outputs: Any, scratch: Any) -> Call:
        return lambda: layout.store(inputs[0], outputs[0])

    return Prepared([source], [target], bind, name="panels of filters")
