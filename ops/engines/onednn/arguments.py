"""Where the arguments of primitives lie: in the operator's inputs and outputs, in scratch memory, in memory kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from netbuilder.ops.engines.arrays import aligned_empty, as_flat

__all__ = ["Constant", "Held", "In", "Out", "Part", "Place", "Room", "Scratch", "Sparse", "memory_at", "parts_of"]


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


class Held:
    """Memory that lives from a forward operator to its backward one; made when first bound."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._buffer: Any = None

    @property
    def buffer(self) -> Any:
        if self._buffer is None:
            self._buffer = aligned_empty(max(self.nbytes, 1))
            self._buffer[:] = 0
        return self._buffer


class Constant(Held):
    """Numbers that are the same in each run."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        super().__init__(values.nbytes)
        as_flat(self.buffer[: values.nbytes], values.dtype)[:] = values.reshape(-1)


Place = In | Out | Scratch | Held


@dataclass(frozen=True)
class Part:
    """Some of the memory of another place, from ``offset`` on, in bytes."""

    whole: Place
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Sparse:
    """A matrix in compressed rows: its elements that are not 0, their columns, and where each row begins (int32)."""

    values: Place | Part
    columns: Place | Part
    starts: Place | Part


class Room:
    """Hands out scratch memory, each place from a multiple of 64 bytes on."""

    def __init__(self) -> None:
        self.nbytes = 0

    def take(self, nbytes: int) -> Scratch:
        """Return room for so many bytes."""
        place = Scratch(self.nbytes, nbytes)
        self.nbytes += -(-nbytes // 64) * 64
        return place

    def numbers(self, *extents: int) -> Scratch:
        """Return room for an array of numbers of 4 bytes."""
        return self.take(4 * math.prod(extents))


def parts_of(place: Place | Part | Sparse) -> tuple[Place | Part, ...]:
    """Return the pieces of memory that an argument consists of: one, or the three of a sparse matrix."""
    return (place.values, place.columns, place.starts) if isinstance(place, Sparse) else (place,)


def memory_at(place: Place | Part, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Any:
    """Return the array at a place, given the buffers that a call is bound to."""
    if isinstance(place, Part):
        whole = as_flat(memory_at(place.whole, inputs, outputs, scratch), np.uint8)
        return whole[place.offset : place.offset + place.nbytes]
    if isinstance(place, In):
        return inputs[place.index]
    if isinstance(place, Out):
        return outputs[place.index]
    if isinstance(place, Scratch):
        return scratch[place.offset : place.offset + place.nbytes]
    return place.buffer
