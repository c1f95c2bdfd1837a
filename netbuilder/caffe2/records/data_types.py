"""NumPy's types of elements, and the numbers that tensors in messages have for them."""

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
    """Return the number of a type of elements; object arrays hold strings.

    Raises:
        TypeError: blobs have no such type.

    >>> data_type_for_dtype(np.dtype(np.float32))
    1
    """
    base = np.dtype(dtype).base
    for kind, number in _TYPES:
        if base.type is kind:
            return number
    if base.kind == "O":
        return TensorProto.STRING
    raise TypeError(f"records: tensors have no elements of type {base}")


def dtype_for_core_type(core_type: int) -> Any:
    """Return NumPy's type for a number of ``core.DataType``.

    Raises:
        TypeError: there is none.
    """
    for kind, number in _TYPES:
        if number == core_type:
            return str if kind is np.str_ else kind
    raise TypeError(f"records: no type of NumPy is meant by the number {core_type!r}")
