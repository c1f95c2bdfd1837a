"""Floating types: half precision is stored as float16 and computed in float32."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.operator import Operator, TensorSpec, require

__all__ = ["narrow", "one_float_type", "require_one_float_type", "widen"]


def widen(x: Any) -> Any:
    """Return float16 values as float32, others unchanged."""
    return x.astype("float32") if x.dtype == "float16" else x


def narrow(y: Any, like: Any) -> Any:
    """Return ``y`` in the dtype of ``like``."""
    return y.astype(like.dtype, copy=False)


def one_float_type(*specs: TensorSpec) -> bool:
    """Whether all specs are float32, or all float64, and none is empty, as kernels bound to buffers require."""
    return specs[0].dtype in (np.float32, np.float64) and all(s.dtype == specs[0].dtype and s.size for s in specs)


def require_one_float_type(op: Operator, *, mixed_half: bool = False, **specs: TensorSpec | None) -> None:
    """Raise ShapeError, with the type of each input, unless all inputs of an operator have one floating type.

    Args:
        op: the operator.
        mixed_half: allow float32 for the other inputs if the first one is float16.
        specs: the inputs by name; None for a missing one.
    """
    given = {name: spec.dtype for name, spec in specs.items() if spec is not None}
    first, *others = given.values()
    allowed = {first, np.dtype(np.float32)} if mixed_half and first == np.float16 else {first}
    if first.kind != "f" or not allowed.issuperset(others):
        types = ", ".join(f"{name} {dtype}" for name, dtype in given.items())
        wide = any(dtype.kind in "iub" or dtype == np.float64 for dtype in given.values())
        fed = ", or arrays by .astype(np.float32) before they are fed" if wide else ""
        require(
            False, op, f"must have inputs of one floating type, got {types}; convert them, for example with Cast{fed}"
        )
