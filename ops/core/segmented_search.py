"""Binary search in sorted parts of a vector, for NumPy and CuPy, all parts at once."""

from __future__ import annotations

from typing import Any

__all__ = ["first_not_below"]


def first_not_below(xp: Any, table: Any, values: Any, begin: Any, end: Any, longest: int) -> Any:
    """Return for each value the first position in its part of ``table`` whose element is not below it, or the end.

    Args:
        xp: numpy or cupy.
        table: a vector, sorted from ``begin`` to ``end``.
        values: any shape.
        begin, end: where each value's part begins and ends; shapes broadcast.
        longest: the greatest length of a part.
    """
    low, high = (xp.zeros(values.shape, int) + bound for bound in (begin, end))
    for _ in range(longest.bit_length()):
        middle = (low + high) // 2
        below = (low < high) & (table[xp.minimum(middle, table.size - 1)] < values)
        low, high = xp.where(below, middle + 1, low), xp.where(below, high, middle)
    return low
