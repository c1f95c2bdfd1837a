"""Whether a whole buffer is finite, at the cost of reading it once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.engines.arrays import as_flat
from netbuilder.ops.engines.onednn import declarations as c
from netbuilder.ops.engines.onednn.layout import stored_as

__all__ = ["finite_check"]

_INFINITY = 0x7F80  # the bits of +inf in bfloat16, which those of NaN are above
_MINUS_INFINITY = 0xFF80


def finite_check(buffer: Any, spec: TensorSpec) -> Callable[[], bool]:
    """Return a function that says whether all elements of a buffer, padding included, are finite.

    In float32 it may say no of a buffer whose sum of squares overflows.

    Args:
        buffer: of float32 or bfloat16, in any layout.
        spec: what the buffer holds.
    """
    if stored_as(spec) == c.BF16:
        signed, unsigned = as_flat(buffer, np.int16), as_flat(buffer, np.uint16)
        greatest = np.maximum.reduce
        # As signed numbers, positive floats are in order; as unsigned ones, negative floats are above them, in order.
        return lambda: bool(greatest(signed) < _INFINITY and greatest(unsigned) < _MINUS_INFINITY)
    flat, dot = as_flat(buffer, np.float32), np.dot
    return lambda: math.isfinite(dot(flat, flat))
