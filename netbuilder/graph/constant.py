"""Constants as operators: which fill writes an array."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.proto import ArgumentError, TensorProto

__all__ = ["constant_operator"]

_FILLS = {"i4": "GivenTensorIntFill", "i8": "GivenTensorInt64Fill", "b1": "GivenTensorBoolFill"}


def constant_operator(array: Any, dtype: Any = None) -> tuple[str, dict[str, Any]]:
    """Return the type and the arguments of an operator that writes ``array``.

    Args:
        array: numbers, bools or strings; a Python bool alone becomes a ConstantFill.
        dtype: NumPy type to convert to first.

    Raises:
        ArgumentError: no fill writes such values.

    >>> constant_operator([[1, 2]])
    ('GivenTensorInt64Fill', {'shape': (1, 2), 'values': [1, 2]})
    """
    if isinstance(array, bool) and dtype is None:
        return "ConstantFill", {"dtype": TensorProto.BOOL, "value": array}
    try:
        values = np.array(array) if dtype is None else np.array(array, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"Const: cannot make an array of {array!r}: {error}") from None
    kind = values.dtype.kind
    if kind in "SU" or kind == "O" and all(isinstance(v, (str, bytes)) for v in values.ravel()):
        fill = "GivenTensorStringFill"
    elif kind == "f":
        fill = "GivenTensorFill"
    elif kind in "iu" and values.dtype.itemsize < 4:
        fill = "GivenTensorIntFill"
    else:
        fill = _FILLS.get(values.dtype.str[1:], "")
    if not fill:
        raise ArgumentError(
            f"Const: no operator writes constants of dtype {values.dtype}; use float32, int32, int64, bool or strings"
        )
    return fill, {"shape": values.shape, "values": values.ravel().tolist()}
