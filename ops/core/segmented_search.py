"""Values sought in sorted parts of a vector, for NumPy and CuPy alike, all parts at once."""

from __future__ import annotations

from typing import Any

__all__ = ["first_not_below"]


def first_not_below(xp: Any, table: Any, values: Any, begin: Any, end: Any, longest: int) -> Any:
    """Return for each value the first position in its part of ``table`` that is not below it, or the part's end.

    Args:
        table: a vector; from ``begin`` to ``end`` it does not fall.
        values: any shape.
        begin, end: where each value's part begins and ends; shapes broadcast.
        longest: the greatest length of a part.
    """
    low, high = (xp.zeros(values.shape, int) + side for side in (begin, end))
    for _ in range(longest.bit_length()):
        middle = (low + high) // 2
        below = (low < high) & (table[xp.minimum(middle, table.size - 1)] < values)
        low, high = xp.where(below, middle + 1, low), xp.where(below, high, middle)
    return low
