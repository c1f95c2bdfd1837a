"""The layout of several arrays in one block of memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.proto.late_dataclass import dataclass

__all__ = ["ALIGNMENT", "Arena", "Slot"]

Array = Any

ALIGNMENT = 64
"""Alignment of the arrays, in bytes."""


@dataclass(frozen=True)
class Slot:
    """The location of an array in an arena."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    def of(self, memory: Array) -> Array:
        """Return the array that is stored there: a view of ``memory``, an array of bytes."""
        return memory[self.offset : self.offset + self.nbytes].view(self.dtype).reshape(self.shape)


class Arena:
    """Assigns arrays to locations in one block of memory."""

    def __init__(self) -> None:
        self.nbytes = 0

    def add(self, shape: Sequence[int], dtype: Any) -> Slot:
        """Return the location of a further array."""
        slot = Slot(self.nbytes, tuple(shape), np.dtype(dtype))
        self.nbytes += -(-slot.nbytes // ALIGNMENT) * ALIGNMENT
        return slot
