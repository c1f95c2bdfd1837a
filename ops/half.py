"""Half precision: values kept in float16 are calculated with in float32."""

from __future__ import annotations

from typing import Any

__all__ = ["narrow", "widen"]


def widen(x: Any) -> Any:
    """Return float16 values as float32, any others as they are."""
    return x.astype("float32") if x.dtype == "float16" else x


def narrow(y: Any, like: Any) -> Any:
    """Return ``y`` in the dtype of ``like``."""
    return y.astype(like.dtype, copy=False)
