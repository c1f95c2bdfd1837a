"""Floating types: half precision is kept in float16 and calculated with in float32."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.operator import TensorSpec

__all__ = ["narrow", "one_float_type", "widen"]


def widen(x: Any) -> Any:
    """Return float16 values as float32, any others as they are."""
    return x.astype("float32") if x.dtype == "float16" else x


def narrow(y: Any, like: Any) -> Any:
    """Return ``y`` in the dtype of ``like``."""
    return y.astype(like.dtype, copy=False)


def one_float_type(*specs: TensorSpec) -> bool:
    """Whether all are float32, or all float64, and none is empty: what kernels bound to buffers work on."""
    return specs[0].dtype in (np.float32, np.float64) and all(s.dtype == specs[0].dtype and s.size for s in specs)
