"""Number of elements of an array whose extents come from a file and are not trusted."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["count_elements"]

_MOST = 2**59  # elements of up to 16 bytes, counted in 64 bits with a sign


def count_elements(shape: Sequence[int]) -> int | None:
    """Return the product of extents; None if no array can have them: one is negative, or they are too large.

    >>> count_elements((2, 3)), count_elements(()), count_elements((2, -1)), count_elements((0, 2**62))
    (6, 1, None, None)
    """
    if any(extent < 0 for extent in shape) or math.prod(extent for extent in shape if extent) > _MOST:
        return None
    return math.prod(shape)
