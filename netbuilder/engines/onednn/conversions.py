"""Flat arrays converted between float32 and 16 bits by oneDNN, on the calling thread alone."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn.arguments import In, Out
from netbuilder.engines.onednn.blocked_layout import plain_in, row_major
from netbuilder.engines.onednn.library import available
from netbuilder.engines.onednn.primitive import PostOp, Primitive, Step, cached, compile_primitive

__all__ = ["converted"]

Array = np.ndarray[Any, np.dtype[Any]]

_CODES = {np.dtype(np.float32): c.F32, np.dtype(np.float16): c.F16, np.dtype(np.uint16): c.BF16}
_FEW = 4096
"""Elements up to which NumPy has finished before oneDNN has begun."""


def converted(source: Array, out: Array, *, add: bool = False) -> bool:
    """Convert the elements of an array to the type of another one, rounded to nearest, ties to even.

    Of bfloat16, magnitudes below the least normal float32, 1.2e-38, may become 0.

    Args:
        source: one-dimensional; float32, float16, or uint16 for the bits of bfloat16.
        out: of the same size; one of these types; may not overlap ``source``.
        add: add to ``out``, which is float32, instead of overwriting it.

    Returns:
        Whether it was done: not without the library, for few elements, for arrays that are not contiguous, and for
        types that the library converts one element at a time on this CPU: NumPy is several times faster with float16
        then, and keeps the sign of zeros.
    """
    contiguous = source.strides == (source.itemsize,) and out.strides == (out.itemsize,)
    if source.size <= _FEW or not contiguous or not available():
        return False
    made = _conversion(_CODES[source.dtype], _CODES[out.dtype], source.size, add, threads=1)
    if made is None or "simple:" in made.name:
        return False
    _step(made).bind([source], [out], None, 0)()
    return True


@cached
def _conversion(source: int, target: int, size: int, add: bool) -> Primitive:
    view = row_major((size,))
    return compile_primitive(
        "reorder", plain_in(view, source).handle, plain_in(view, target).handle, post=[PostOp("sum")] if add else ()
    )


@functools.lru_cache(64)
def _step(primitive: Primitive) -> Step:
    return Step(primitive, {c.SRC: In(0), c.DST: Out(0)})
