"""Elementwise work on whole buffers, whatever their layout, in pieces that stay in a core's cache.

An elementwise operator does not care where an element lies, as long as all its operands agree. So its prepared kernel
asks for all of them in one layout and works on the flat memory, padding included: zeroes there stay zeroes if the
operator maps zeroes to zero.
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
"""Elements worked on at a time: a few arrays of so many floats fit a core's second-level cache."""

Step = tuple[Callable[..., object], tuple[Any, ...]]
"""A call and its arguments: a ufunc with its operands and, last, the array it writes."""


def common_spec(specs: Sequence[TensorSpec], *, zero_to_zero: bool = True) -> TensorSpec | None:
    """Return the spec that all operands of an elementwise operator should have, or None if they cannot agree.

    The first operand that has a layout decides, so name first the one that others read most (a parameter before its
    gradient).

    Args:
        specs: the operands, of one shape and dtype.
        zero_to_zero: the operator leaves padding of zeroes as it is; otherwise only plain order serves.
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
    """Return the scratch memory that ``pieces`` needs for so many temporaries."""
    return temporaries * min(_elements(spec), PIECE) * spec.dtype.itemsize


def pieces(
    spec: TensorSpec, buffers: Sequence[Any], scratch: Any = None, temporaries: int = 0
) -> Iterator[tuple[Any, ...]]:
    """Yield flat views of matching parts of ``buffers``, then of ``temporaries`` arrays of the same size in scratch."""
    size = _elements(spec)
    if size == 0:
        return
    flat = [as_flat(buffer, spec.dtype) for buffer in buffers]
    room = min(size, PIECE)
    space = as_flat(scratch[: temporaries * room * spec.dtype.itemsize], spec.dtype) if temporaries else None
    for start in range(0, size, PIECE):
        stop = min(start + PIECE, size)
        extra = (space[i * room : i * room + stop - start] for i in range(temporaries)) if space is not None else ()
        yield (*(part[start:stop] for part in flat), *extra)


def scalar(value: float, dtype: Any) -> Any:
    """Return a number as a 0-d array: ufuncs take it faster than a Python number, and it may be changed in place."""
    return np.array(value, dtype)


def replay(steps: Sequence[Step], before: Callable[[], object] | None = None) -> Call:
    """Return a call that takes the steps in order, after ``before``."""
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
