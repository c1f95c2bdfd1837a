"""Where arrays are in one piece of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["ALIGNMENT", "Arena", "Slot"]

Array = Any

ALIGNMENT = 64
"""Arrays begin at multiples of so many bytes."""


@dataclass(frozen=True)
class Slot:
    """A place in an arena."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        count = self.dtype.itemsize
        for extent in self.shape:
            count *= extent
        return count

    def of(self, memory: Array) -> Array:
        """Return the array that is stored there, a view of ``memory``, which is of bytes."""
        return memory[self.offset : self.offset + self.nbytes].view(self.dtype).reshape(self.shape)


class Arena:
    """Assigns arrays their places in one piece of memory."""

    def __init__(self) -> None:
        self.nbytes = 0

    def add(self, shape: Sequence[int], dtype: Any) -> Slot:
        """Return the place of a further array."""
        slot = Slot(self.nbytes, tuple(shape), np.dtype(dtype))
        self.nbytes += -(-slot.nbytes // ALIGNMENT) * ALIGNMENT
        return slot
