"""Exponentials that are weights: of differences from the greatest score, divided by their sum."""

from __future__ import annotations

from typing import Any

__all__ = ["LEAST", "exp_or_zero"]

LEAST = {"f": -87.33, "d": -708.39}
"""Exponentials of less are denormal numbers, below 2**-126 and 2**-1022: many CPUs take ten times as long for them.

float16 is not listed: CPUs compute with it in float32.
"""


def exp_or_zero(xp: Any, x: Any) -> Any:
    """Return the exponentials of numbers of which none is positive; 0 in place of denormal ones."""
    if x.dtype.char not in LEAST:
        return xp.exp(x)
    least = x.dtype.type(LEAST[x.dtype.char])
    return xp.where(x < least, x.dtype.type(0), xp.exp(xp.maximum(x, least)))
