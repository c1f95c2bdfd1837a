"""Element types: their numbers and names in arguments, and their NumPy dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.data.tensor_records import NUMPY_TYPES
from netbuilder.proto import ArgumentError, TensorProto

__all__ = ["data_type", "exact_reciprocal", "numpy_type"]


def data_type(value: Any, where: str) -> int:
    """Return the number of an element type that is given as a number or a name.

    Args:
        value: a value of TensorProto.DataType, or its name (str or bytes), in upper or lower case.
        where: operator and argument, for the message.

    Raises:
        ArgumentError: there is no such type.

    >>> data_type("int32", "Cast: to")
    2
    """
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    number = dict(TensorProto.DataType.items()).get(value.upper()) if isinstance(value, str) else value
    if not isinstance(number, int) or number not in NUMPY_TYPES:
        names = sorted(name.lower() for name, n in TensorProto.DataType.items() if n in NUMPY_TYPES)
        raise ArgumentError(f"{where} must be the number or name of an element type, {names}; got {value!r}")
    return int(number)


def numpy_type(value: Any, where: str) -> np.dtype[Any]:
    """Return the NumPy dtype of an element type; the arguments are those of ``data_type``."""
    return NUMPY_TYPES[data_type(value, where)]


def exact_reciprocal(value: float) -> float:
    """Return 1/n if ``value`` is the float32 nearest to it, for an integer n up to 2**16; else ``value`` itself.

    Arguments of operators are stored as float32; this recovers a weight of 1/n exactly, for float64 arrays.

    >>> exact_reciprocal(float(np.float32(1 / 3))) == 1 / 3, exact_reciprocal(0.3)
    (True, 0.3)
    """
    if 2**-16 <= abs(value) <= 1 and float(np.float32(value)) == value:
        exact = 1 / round(1 / value)
        if np.float32(exact) == np.float32(value):
            return exact
    return value
