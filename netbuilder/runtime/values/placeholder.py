"""The value that init nets of exported predictors hold for blobs that will be fed."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["PLACEHOLDER", "is_placeholder"]

PLACEHOLDER = np.zeros((1, 1), np.float32)


def is_placeholder(value: Any) -> bool:
    """Whether an array is such a value."""
    return value.dtype == PLACEHOLDER.dtype and value.shape == PLACEHOLDER.shape and not value.any()
