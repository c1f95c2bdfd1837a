"""Names that NumPy had when Caffe2's scripts were written, and has no longer."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["restore_old_names"]


def _asscalar(a: Any) -> Any:
    """Return the only element of an array."""
    return np.asarray(a).item()


_OLD: dict[str, Any] = {
    "asscalar": _asscalar,
    "bool": bool,
    "complex": complex,
    "float": float,
    "int": int,
    "long": int,
    "object": object,
    "str": str,
    "unicode": str,
    "unicode_": str,
}


def restore_old_names() -> None:
    """Set ``np.asscalar``, ``np.float`` and their kind where NumPy has none; for scripts that run as they are."""
    for name, value in _OLD.items():
        if name not in vars(np):
            setattr(np, name, value)
