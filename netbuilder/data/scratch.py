"""Memory that one thread decodes and resizes into, image after image: fresh memory costs a fifth of the decoding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["Scratch"]

_MOST = 64 << 20  # bytes that are kept for one purpose


class Scratch:
    """Memory by purpose. What was taken before for the same purpose is overwritten."""

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
        """Return bytes of a shape, in the memory for a purpose; the same object as before while the shape stays."""
        found = self._shaped.get(purpose)
        if found is None or found.shape != shape:
            found = self.take(purpose, math.prod(shape)).reshape(shape)
            if found.size <= _MOST:
                self._shaped[purpose] = found
        return found

    def planes(self, purpose: str, shape: tuple[int, ...]) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
        """Return the parts along the first axis of ``shaped``; the same objects as before while the shape stays."""
        whole = self.shaped(purpose, shape)
        found = self._planes.get(purpose)
        if found is None or found[0] is not whole:
            found = whole, list(whole)
            if whole.size <= _MOST:
                self._planes[purpose] = found
        return found[1]

    def all(self, purpose: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return all that is kept for a purpose, for those who learn how much they need only by trying."""
        kept = self._kept.get(purpose)
        return self.take(purpose, 1) if kept is None else kept
