"""What the parameter updates share: checks, the learning rate as a scalar of the right dtype, repeated rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import Call
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.proto import ArgumentError

__all__ = [
    "check_iteration",
    "check_range",
    "check_rate",
    "check_rows",
    "check_same",
    "in_place",
    "rate_as",
    "step_number",
]


def check_same(op: Operator, **specs: TensorSpec) -> None:
    """Raise ShapeError unless all have the same shape and the same floating dtype."""
    (first_name, first), *others = specs.items()
    require(first.dtype.kind == "f", op, f"{first_name} must be of a floating type, got {first.dtype}")
    for name, spec in others:
        require(
            spec.shape == first.shape,
            op,
            f"{name} of shape {spec.shape} must have the shape of {first_name}, {first.shape}",
        )
        require(
            spec.dtype == first.dtype,
            op,
            f"{name} of type {spec.dtype} must have the type of {first_name}, {first.dtype}",
        )


def check_range(op: Operator, low: float, high: float, **arguments: float) -> None:
    """Raise ArgumentError for an argument outside [low, high]."""
    for name, value in arguments.items():
        if not low <= value <= high:
            raise ArgumentError(f"{op.type}: {name} must lie in [{low}, {high}], got {value}")


def check_rate(op: Operator, lr: TensorSpec, name: str = "lr") -> None:
    """Raise ShapeError unless ``lr`` holds one number."""
    require(lr.size == 1, op, f"{name} must hold one number, got shape {lr.shape}")


def check_rows(op: Operator, param: TensorSpec, indices: TensorSpec, grad: TensorSpec) -> None:
    """Raise ShapeError unless ``grad`` has one row of ``param`` for each of ``indices``."""
    require(param.ndim >= 1, op, f"param must have rows, got shape {param.shape}")
    require(indices.dtype in (np.int32, np.int64), op, f"indices must be int32 or int64, got {indices.dtype}")
    require(grad.dtype == param.dtype, op, f"grad of type {grad.dtype} must have the type of param, {param.dtype}")
    want = indices.shape + param.shape[1:]
    require(
        grad.shape == want,
        op,
        f"grad must have shape {want} for indices {indices.shape} into param {param.shape}, got {grad.shape}",
    )


_LAST_STEP = 2**63 - 1


def check_iteration(op: Operator, iteration: TensorSpec) -> None:
    """Raise ShapeError unless ``iter`` holds one integer."""
    check_rate(op, iteration, "iter")
    require(iteration.dtype.kind in "iu", op, f"iter must be an integer, got type {iteration.dtype}")


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
