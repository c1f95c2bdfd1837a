"""Floating types: half precision is stored as float16 and computed in float32."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.shape_rules import float_types_error

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


def require_one_float_type(op: Operator, **specs: TensorSpec | None) -> None:
    """Raise ShapeError, with the type of each input, unless all inputs of an operator have one floating type.

    Args:
        op: the operator.
        specs: the inputs by name; None for a missing one.
    """
    given = {name: spec.dtype for name, spec in specs.items() if spec is not None}
    first, *others = given.values()
    if first.kind != "f" or not {first}.issuperset(others):
        require(False, op, float_types_error(given))
