"""Conditions of branches, loops and execution steps: a tensor with one bool."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.proto import ShapeError

__all__ = ["truth_of"]


def truth_of(value: Any, what: str) -> bool:
    """Return the one bool that a value holds.

    Args:
        value: an array on the host.
        what: the name of the value in errors.

    Raises:
        ShapeError: the value does not have one element, or is not of type bool.
    """
    found = np.asarray(value)
    if found.size != 1:
        raise ShapeError(f"{what} must hold one value, got shape {found.shape}")
    if found.dtype != np.bool_:
        raise ShapeError(
            f"{what} must be of type bool, got {found.dtype}; compare it with a number (GT, EQ), or cast it to bool"
        )
    return bool(found.reshape(-1)[0])
