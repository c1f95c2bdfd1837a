"""What the parameter updates share: checks, the learning rate as a scalar of the right dtype, repeated rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from netbuilder.ops.core.contexts import Call
from netbuilder.ops.core.operator import Operator, require
from netbuilder.proto import ArgumentError

__all__ = [
    "check_range",
    "in_place",
    "rate_as",
    "step_number",
]


def check_range(op: Operator, low: float, high: float, **arguments: float) -> None:
    """Raise ArgumentError for an argument outside [low, high]."""
    for name, value in arguments.items():
        if not low <= value <= high:
            raise ArgumentError(f"{op.type}: {name} must lie in [{low}, {high}], got {value}")


_LAST_STEP = 2**63 - 1


def step_number(op: Operator, count: int) -> int:
    """Return the number of a step, counted from 1, for the value of ``iter``.

    Raises:
        ShapeError: it is negative, or the last that int64 can hold.
    """
    require(count >= 0, op, f"iter must be at least 0, got {count}")
    require(count < _LAST_STEP, op, f"iter must be less than {_LAST_STEP}, the largest number of int64, got {count}")
    return count + 1


def rate_as(lr: Any, like: Any) -> Any:
    """Return the rate as a 0-d array of the dtype of ``like``, so that it does not widen what it multiplies."""
    return lr.reshape(()).astype(like.dtype)


def in_place(sources: Sequence[Any], targets: Sequence[Any], update: Callable[[], object]) -> Call:
    """Return a call that copies ``sources`` to those ``targets`` that are other arrays, then calls ``update``."""
    copies = [(s, t) for s, t in zip(sources, targets) if s.ctypes.data != t.ctypes.data]

    def call() -> None:
        for source, target in copies:
            target[...] = source
        update()

    return call
