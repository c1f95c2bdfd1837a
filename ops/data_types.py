"""Element types: the numbers and names that arguments use, and NumPy's dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.operator import STRING
from netbuilder.proto import ArgumentError, TensorProto

__all__ = ["data_type", "numpy_type"]

_TYPES: dict[int, np.dtype[Any]] = {
    TensorProto.FLOAT: np.dtype(np.float32),
    TensorProto.INT32: np.dtype(np.int32),
    TensorProto.BYTE: np.dtype(np.uint8),
    TensorProto.STRING: STRING,
    TensorProto.BOOL: np.dtype(np.bool_),
    TensorProto.UINT8: np.dtype(np.uint8),
    TensorProto.INT8: np.dtype(np.int8),
    TensorProto.UINT16: np.dtype(np.uint16),
    TensorProto.INT16: np.dtype(np.int16),
    TensorProto.INT64: np.dtype(np.int64),
    TensorProto.FLOAT16: np.dtype(np.float16),
    TensorProto.DOUBLE: np.dtype(np.float64),
}


def data_type(value: Any, where: str) -> int:
    """Return the number of an element type that is given as a number or by name, in either case.

    Args:
        value: a value of TensorProto.DataType, or its name (str or bytes).
        where: what the message names: operator and argument.

    Raises:
        ArgumentError: there is no such type.

    >>> data_type("int32", "Cast: to")
    2
    """
    if isinstance(value, bytes):
        value = value.decode()
    number = dict(TensorProto.DataType.items()).get(value.upper()) if isinstance(value, str) else value
    if number not in _TYPES:
        names = sorted(name.lower() for name, n in TensorProto.DataType.items() if n in _TYPES)
        raise ArgumentError(f"{where} must be the number or name of an element type, {names}; got {value!r}")
    return int(number)


def numpy_type(value: Any, where: str) -> np.dtype[Any]:
    """Return NumPy's dtype for an element type that is given as ``data_type`` takes it."""
    return _TYPES[data_type(value, where)]
