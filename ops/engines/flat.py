"""Elementwise operators on whole buffers of any layout, in pieces that stay in a core's cache.

The layout does not matter for an elementwise operator if all operands have the same one. So its prepared kernel
requests one layout for all of them and works on the flat memory, including padding: zeros there stay zeros if the
operator maps zeros to zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import Call
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.engines.arrays import as_flat

__all__ = ["PIECE", "Step", "common_spec", "pieces", "replay", "scalar", "scratch_bytes"]

PIECE = 1 << 16
"""Number of elements of a piece: a few float32 arrays of this size fit into a core's L2 cache."""

Step = tuple[Callable[..., object], tuple[Any, ...]]
"""A call and its arguments: a ufunc with its operands and, last, the array it writes."""


def common_spec(specs: Sequence[TensorSpec], *, zero_to_zero: bool = True) -> TensorSpec | None:
    """Return one spec for all operands of an elementwise operator, or None if there is none.

    It has the layout of the first operand with a layout, so list first the operand that others read most (a parameter
    before its gradient).

    Args:
        specs: the operands, of the same shape and dtype.
        zero_to_zero: whether the operator maps zeros to zero, so that padding stays zero; if not, only plain order is
            possible.
    """
    first = specs[0]
    if first.dtype not in (np.float32, np.float64):
        return None
    if any(spec.shape != first.shape or spec.dtype != first.dtype for spec in specs):
        return None
    for spec in specs if zero_to_zero else ():
        if spec.layout is not None and not spec.rounds:
            return spec
    return first.plain


def _elements(spec: TensorSpec) -> int:
    return spec.nbytes // spec.dtype.itemsize


def scratch_bytes(spec: TensorSpec, temporaries: int) -> int:
    """Return the bytes of scratch memory that ``pieces`` needs for so many temporaries."""
    return temporaries * min(_elements(spec), PIECE) * spec.dtype.itemsize


def pieces(
    spec: TensorSpec, buffers: Sequence[Any], scratch: Any = None, temporaries: int = 0
) -> Iterator[tuple[Any, ...]]:
    """Yield flat views of matching parts of ``buffers``, then of ``temporaries`` arrays of the same size in scratch."""
    size = _elements(spec)
    if size == 0:
        return
    flat = [as_flat(buffer, spec.dtype) for buffer in buffers]
    most = min(size, PIECE)
    space = as_flat(scratch[: temporaries * most * spec.dtype.itemsize], spec.dtype) if temporaries else None
    for start in range(0, size, PIECE):
        stop = min(start + PIECE, size)
        extra = (space[i * most : i * most + stop - start] for i in range(temporaries)) if space is not None else ()
        yield (*(part[start:stop] for part in flat), *extra)


def scalar(value: float, dtype: Any) -> Any:
    """Return a number as a 0-d array, which ufuncs process faster than a Python number and which can be changed."""
    return np.array(value, dtype)


def replay(steps: Sequence[Step], before: Callable[[], object] | None = None) -> Call:
    """Return a call that runs the steps in order, after ``before``."""
    fixed = tuple(steps)

    def call() -> None:
        for function, operands in fixed:
            function(*operands)

    if before is None:
        return call

    def call_after() -> None:
        before()
        for function, operands in fixed:
            function(*operands)

    return call_after
