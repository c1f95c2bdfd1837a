"""What the parameter updates share: checks, the learning rate as a scalar of the right dtype, repeated rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import Call, Prepared, RunContext
from netbuilder.ops.core.given_numbers import one_integer
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.proto import ArgumentError, ShapeError

__all__ = [
    "check_range",
    "check_rate",
    "check_rows",
    "check_same",
    "distinct_rows",
    "in_place",
    "rate_as",
    "step_number",
    "updating_rows",
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


def step_number(op: Operator, ctx: RunContext, iteration: Any) -> int:
    """Return the number of this step, counted from 1: ``iter`` + 1.

    Raises:
        ShapeError: ``iter`` is negative, is not one integer, or is the last that int64 can hold.
    """
    count = one_integer(op, ctx, iteration, "iter")
    require(count >= 0, op, f"iter must be at least 0, got {count}")
    require(count < _LAST_STEP, op, f"iter must be less than {_LAST_STEP}, the largest number of int64, got {count}")
    return count + 1


def rate_as(lr: Any, like: Any) -> Any:
    """Return the rate as a 0-d array of the dtype of ``like``, so that it does not widen what it multiplies."""
    return lr.reshape(()).astype(like.dtype)


_PIECE = 1 << 15
"""Number of elements of the rows updated at a time: the temporaries of an update then fit a core's L2 cache."""


def distinct_rows(op: Operator, ctx: RunContext, indices: Any, rows: int, *, width: int = 0) -> Iterator[Any]:
    """Yield selections of positions in ``indices`` (flat) without repeated rows: first occurrences, then second ones.

    A sparse update that processes them in order gives the result of a loop over single indices.

    Args:
        width: number of elements of a row; if given, selections on the CPU are so small that their rows fit a cache.

    Raises:
        ShapeError: an index lies outside the table.
    """
    if indices.size == 0:
        return
    xp = ctx.xp
    low, high = int(indices.min()), int(indices.max())
    if low < 0 or high >= rows:
        raise ShapeError(f"{op.type}: indices must lie in [0, {rows}), got {low if low < 0 else high}")
    order = xp.argsort(indices, kind="stable")
    ordered = indices[order]
    occurrence = xp.arange(indices.size) - xp.searchsorted(ordered, ordered)  # how often the row occurred before
    together = max(1, _PIECE // width) if width and not ctx.is_gpu else indices.size
    if int(occurrence.max()) == 0:
        yield from (slice(begin, begin + together) for begin in range(0, indices.size, together))
        return
    by_occurrence = order[xp.argsort(occurrence, kind="stable")]
    ends = np.cumsum(ctx.host(xp.bincount(occurrence)))
    start = 0
    for end in ends.tolist():
        yield from (by_occurrence[begin : min(begin + together, end)] for begin in range(start, end, together))
        start = end


def in_place(sources: Sequence[Any], targets: Sequence[Any], update: Callable[[], object]) -> Call:
    """Return a call that copies ``sources`` to those ``targets`` that are other arrays, then calls ``update``."""
    copies = [(s, t) for s, t in zip(sources, targets) if s.ctypes.data != t.ctypes.data]

    def call() -> None:
        for source, target in copies:
            target[...] = source
        update()

    return call


def updating_rows(op: Operator, specs: Sequence[TensorSpec], update: Callable[[Any, Any], object]) -> Prepared:
    """Return the kernel of an in-place update of tables.

    Args:
        op: its ``must_inplace`` pairs each table among the inputs with its output.
        specs: of the inputs.
        update: called in each run with inputs and outputs, when the outputs already hold the values of the tables.
    """
    plain, pairs = [spec.plain for spec in specs], type(op).must_inplace

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        sources, targets = [inputs[i] for i, _ in pairs], [outputs[j] for _, j in pairs]
        return in_place(sources, targets, lambda: update(inputs, outputs))

    return Prepared(plain, op.infer(*plain), bind, inplace=pairs, name="numpy rows")
