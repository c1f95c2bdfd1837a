"""References to the memory of a kernel's arguments: the operator's inputs and outputs, and parts of scratch memory."""

from __future__ import annotations

import math

from netbuilder.proto.late_dataclass import dataclass

__all__ = ["In", "Out", "Scratch", "ScratchAllocator"]


@dataclass(frozen=True)
class In:
    """The memory of the operator's input ``index``."""

    index: int


@dataclass(frozen=True)
class Out:
    """The memory of the operator's output ``index``."""

    index: int


@dataclass(frozen=True)
class Scratch:
    """Part of the lane's scratch memory, for values that live within one call."""

    offset: int
    nbytes: int


class ScratchAllocator:
    """Assigns parts of the scratch memory.

    Args:
        alignment: of each part, in bytes.
    """

    def __init__(self, alignment: int = 64) -> None:
        self.nbytes = 0
        self._alignment = alignment

    def allocate(self, nbytes: int) -> Scratch:
        """Return scratch memory of so many bytes."""
        scratch = Scratch(self.nbytes, nbytes)
        self.nbytes += -(-nbytes // self._alignment) * self._alignment
        return scratch

    def allocate_words(self, *extents: int) -> Scratch:
        """Return scratch memory for an array with elements of 4 bytes."""
        return self.allocate(4 * math.prod(extents))
