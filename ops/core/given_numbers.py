"""Checks of numbers and extents that come from inputs, before a kernel uses them."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from netbuilder.data.extents import count_elements
from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import Operator, require
from netbuilder.proto import ShapeError

__all__ = ["CGROUP", "check_extents", "integer_list", "machine_memory", "one_integer", "one_number"]

CGROUP = Path("/sys/fs/cgroup/memory.max")


@functools.cache
def machine_memory() -> int:
    """Return how many bytes of memory this process can use: the machine's, or its control group's limit if lower."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = CGROUP.read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total


def check_extents(what: str, shape: Sequence[int], dtype: Any) -> None:
    """Raise ShapeError, with a message that begins with ``what``, unless this machine's memory can hold such an array.

    >>> check_extents("Tile: Y", (2, 1 << 60), np.float32)
    Traceback (most recent call last):
        ...
    netbuilder.proto.errors.ShapeError: Tile: Y cannot have the shape (2, 1152921504606846976): no array can
    """
    count = count_elements(shape)
    if count is None:
        raise ShapeError(f"{what} cannot have the shape {tuple(shape)}: no array can")
    nbytes = count * np.dtype(dtype).itemsize
    if nbytes > machine_memory():
        raise ShapeError(
            f"{what} of shape {tuple(shape)} and type {np.dtype(dtype)} takes {nbytes:,} bytes, and the memory of this "
            f"machine has {machine_memory():,}"
        )


def one_number(op: Operator, ctx: RunContext, value: Any, name: str) -> float | int:
    """Return the number in an array of one element.

    Raises:
        ShapeError: the array does not have one element, or its elements are not numbers.
    """
    array = np.asarray(ctx.host(value))
    require(
        array.size == 1 and array.dtype.kind in "biuf",
        op,
        f"{name} must be one number, got shape {array.shape} of type {array.dtype}",
    )
    found: float | int = array.reshape(-1)[0].item()
    return found


def one_integer(op: Operator, ctx: RunContext, value: Any, name: str) -> int:
    """Return the integer in an array of one element.

    Raises:
        ShapeError: the array does not have one element, or is not of an integer type.
    """
    require(value.dtype.kind in "iu", op, f"{name} must be an integer, got type {value.dtype}")
    return int(one_number(op, ctx, value, name))


def integer_list(op: Operator, ctx: RunContext, value: Any, name: str) -> list[int]:
    """Return the integers in an array, in its order.

    Raises:
        ShapeError: the array is not of an integer type.
    """
    array = np.asarray(ctx.host(value))
    require(array.dtype.kind in "iu", op, f"{name} must be integers, got type {array.dtype}")
    found: list[int] = array.reshape(-1).tolist()
    return found
