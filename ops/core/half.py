"""Floating types: half precision is kept in float16 and calculated with in float32."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.operator import Operator, TensorSpec, require

__all__ = ["narrow", "one_float_type", "require_one_float_type", "widen"]


def widen(x: Any) -> Any:
    """Return float16 values as float32, any others as they are."""
    return x.astype("float32") if x.dtype == "float16" else x


def narrow(y: Any, like: Any) -> Any:
    """Return ``y`` in the dtype of ``like``."""
    return y.astype(like.dtype, copy=False)


def one_float_type(*specs: TensorSpec) -> bool:
    """Whether all are float32, or all float64, and none is empty: what kernels bound to buffers work on."""
    return specs[0].dtype in (np.float32, np.float64) and all(s.dtype == specs[0].dtype and s.size for s in specs)


def require_one_float_type(op: Operator, *, mixed_half: bool = False, **specs: TensorSpec | None) -> None:
    """Raise ShapeError, with the type of each, unless the inputs of an operator are of one floating type.

    Args:
        single_beside_half: with a first input in float16 the others may be float32.
        specs: the inputs by name; None for one that is not there.
    """
    given = {name: spec.dtype for name, spec in specs.items() if spec is not None}
    first, *others = given.values()
    allowed = {first, np.dtype(np.float32)} if mixed_half and first == np.float16 else {first}
    if first.kind != "f" or not allowed.issuperset(others):
        types = ", ".join(f"{name} {dtype}" for name, dtype in given.items())
        require(False, op, f"must have inputs of one floating type, got {types}; feed them so, or put a Cast before")
