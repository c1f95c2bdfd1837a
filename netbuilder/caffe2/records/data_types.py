"""NumPy's data types and their numbers in TensorProto."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.proto import TensorProto

__all__ = ["data_type_for_dtype", "dtype_for_core_type"]

_TYPES: tuple[tuple[Any, int], ...] = (
    (np.str_, TensorProto.STRING),
    (np.bytes_, TensorProto.STRING),
    (np.float16, TensorProto.FLOAT16),
    (np.float32, TensorProto.FLOAT),
    (np.float64, TensorProto.DOUBLE),
    (np.bool_, TensorProto.BOOL),
    (np.int8, TensorProto.INT8),
    (np.int16, TensorProto.INT16),
    (np.int32, TensorProto.INT32),
    (np.int64, TensorProto.INT64),
    (np.uint8, TensorProto.UINT8),
    (np.uint16, TensorProto.UINT16),
)


def data_type_for_dtype(dtype: Any) -> int:
    """Return the TensorProto number of a data type; object arrays are strings.

    Raises:
        TypeError: TensorProto has no such data type.

    >>> data_type_for_dtype(np.dtype(np.float32))
    1
    """
    base = np.dtype(dtype).base
    for kind, number in _TYPES:
        if base.type is kind:
            return number
    if base.kind == "O":
        return TensorProto.STRING
    raise TypeError(f"records: the data type must be one that tensors have, got {base}")


def dtype_for_core_type(core_type: int) -> Any:
    """Return NumPy's data type for a number of ``core.DataType``.

    Raises:
        TypeError: NumPy has no such data type.
    """
    for kind, number in _TYPES:
        if number == core_type:
            return str if kind is np.str_ else kind
    raise TypeError(f"records: NumPy has no data type for the number {core_type!r}")
