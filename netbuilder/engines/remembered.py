"""What was made for some keys, up to a number of them: operators of a net are often equal to others."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["Remembered"]

T = TypeVar("T")


class Remembered(Generic[T]):
    """Makes things, each once; when there are too many, all are forgotten.

    Args:
        most: how many are kept.
        keep: whether a thing may serve again.
    """

    def __init__(self, most: int, keep: Callable[[T], bool] = lambda made: True) -> None:
        self._most, self._keep = most, keep
        self._made: dict[Hashable, T] = {}

    def __call__(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what ``make`` returns, or has returned for an equal key."""
        if key in self._made:
            return self._made[key]
        made = make()
        if self._keep(made):
            if len(self._made) >= self._most:
                self._made.clear()
            self._made[key] = made
        return made
