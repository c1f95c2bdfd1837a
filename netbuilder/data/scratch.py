"""Buffers that a thread reuses for each image: allocating each time would take a fifth of the decoding time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["Scratch"]

_MOST = 64 << 20  # largest buffer that is kept, in bytes


class Scratch:
    """Buffers by purpose; asking again for the same purpose reuses the buffer and overwrites its content."""

    def __init__(self) -> None:
        self._kept: dict[str, np.ndarray[Any, np.dtype[np.uint8]]] = {}
        self._shaped: dict[str, np.ndarray[Any, np.dtype[np.uint8]]] = {}
        self._planes: dict[str, tuple[Any, list[np.ndarray[Any, np.dtype[np.uint8]]]]] = {}

    def take(self, purpose: str, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return ``size`` bytes."""
        if size > _MOST:
            return np.empty(size, np.uint8)
        kept = self._kept.get(purpose)
        if kept is None or kept.size < size:
            kept = self._kept[purpose] = np.empty(size, np.uint8)
        return kept[:size]

    def shaped(self, purpose: str, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return a uint8 array of a shape in the buffer of a purpose; the same object while the shape stays."""
        found = self._shaped.get(purpose)
        if found is None or found.shape != shape:
            found = self.take(purpose, math.prod(shape)).reshape(shape)
            if found.size <= _MOST:
                self._shaped[purpose] = found
        return found

    def planes(self, purpose: str, shape: tuple[int, ...]) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
        """Return the parts along the first axis of ``shaped``; the same objects while the shape stays."""
        whole = self.shaped(purpose, shape)
        found = self._planes.get(purpose)
        if found is None or found[0] is not whole:
            found = whole, list(whole)
            if whole.size <= _MOST:
                self._planes[purpose] = found
        return found[1]

    def all(self, purpose: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return the whole buffer of a purpose, for callers that do not know beforehand how much they need."""
        kept = self._kept.get(purpose)
        return self.take(purpose, 1) if kept is None else kept
