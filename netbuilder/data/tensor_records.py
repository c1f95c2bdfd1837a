"""Conversion of NumPy arrays to TensorProto messages and back, for every element type that TensorProto has.

Elements are stored as in Caffe2: float32, float64 and int64 in fields of their own; all smaller integers, bool and the
bits of float16 in ``int32_data``; strings in ``string_data``. Bytes may also be stored in ``byte_data``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.data.extents import count_elements
from netbuilder.proto import NetError, ParseError, TensorProto
from netbuilder.proto.wire import varint

__all__ = ["DATA_TYPES", "NUMPY_TYPES", "proto_to_tensor", "proto_values", "tensor_to_proto"]

Array = np.ndarray[Any, np.dtype[Any]]

NUMPY_TYPES: dict[int, np.dtype[Any]] = {
    TensorProto.FLOAT: np.dtype(np.float32),
    TensorProto.INT32: np.dtype(np.int32),
    TensorProto.BYTE: np.dtype(np.uint8),
    TensorProto.STRING: np.dtype(object),
    TensorProto.BOOL: np.dtype(np.bool_),
    TensorProto.UINT8: np.dtype(np.uint8),
    TensorProto.INT8: np.dtype(np.int8),
    TensorProto.UINT16: np.dtype(np.uint16),
    TensorProto.INT16: np.dtype(np.int16),
    TensorProto.INT64: np.dtype(np.int64),
    TensorProto.FLOAT16: np.dtype(np.float16),
    TensorProto.DOUBLE: np.dtype(np.float64),
}
"""NumPy's dtype for each value of TensorProto.DataType that an array can have; strings are object arrays of bytes."""

DATA_TYPES: dict[np.dtype[Any], Any] = {
    dtype: number for number, dtype in NUMPY_TYPES.items() if number != TensorProto.BYTE
}
"""The inverse; uint8 is UINT8."""

_FIXED = {  # written as raw bytes, which is many times faster than element by element
    np.dtype(np.float32): (3, "<f4"),
    np.dtype(np.float64): (9, "<f8"),
}
_BFLOAT16 = 1  # SerializationFormat.FMT_BFLOAT16: the upper halves of float32, in raw_data


def tensor_to_proto(
    array: Any, name: str = "", *, segment: tuple[int, int] | None = None, bfloat16: bool = False
) -> TensorProto:
    """Return ``array`` as a message.

    Args:
        array: numbers, bools, or strings (text is encoded as UTF-8).
        name: written into the message if not empty.
        segment: (begin, end): store only these elements, in row-major order; ``dims`` are still the array's.
        bfloat16: store float32 in two bytes, rounded to nearest; other types are unchanged.

    Raises:
        NetError: the dtype has no counterpart in TensorProto.

    >>> proto = tensor_to_proto(np.float32([[1, 2]]), "x")
    >>> list(proto.dims), list(proto.float_data)
    ([1, 2], [1.0, 2.0])
    """
    array = np.asarray(array)
    array = array.astype(object if array.dtype.kind in "SU" else array.dtype.newbyteorder("="), copy=False)
    data_type = DATA_TYPES.get(array.dtype)
    if data_type is None:
        raise NetError(
            f"tensor {name!r}: elements of type {array.dtype} cannot be stored; convert to one of "
            f"{sorted(str(t) for t in DATA_TYPES)}"
        )
    proto = TensorProto(dims=array.shape, data_type=data_type)
    if name:
        proto.name = name
    values = array.reshape(-1)
    if segment is not None:
        begin, end = segment
        if not 0 <= begin <= end <= values.size:
            raise NetError(f"tensor {name!r}: segment {segment} must be in [0, {values.size}]")
        proto.segment.begin, proto.segment.end = begin, end
        values = values[begin:end]
    if bfloat16 and values.dtype == np.float32:
        proto.data_format = _BFLOAT16
        proto.raw_data = _upper_halves(values).tobytes()
    else:
        _store(proto, values, name)
    return proto


def _upper_halves(values: Array) -> Array:
    """Return the upper two bytes of float32, rounded to the nearest, ties to even; NaN stays NaN."""
    bits = values.view(np.uint32)
    rounded = (bits + (0x7FFF + (bits >> 16 & 1)).astype(np.uint32)) >> 16
    return np.where(np.isnan(values), bits >> 16 | 0x40, rounded).astype("<u2")


def _store(proto: TensorProto, values: Array, name: str) -> None:
    fixed = _FIXED.get(values.dtype)
    if fixed is not None:
        number, form = fixed
        raw = values.astype(form).tobytes()
        proto.MergeFromString(bytes([number << 3 | 2]) + varint(len(raw)) + raw)
    elif values.dtype == np.int64:
        proto.int64_data.extend(values.tolist())
    elif values.dtype.kind == "O":
        try:
            proto.string_data.extend(v.encode() if isinstance(v, str) else bytes(v) for v in values)
        except TypeError:
            raise NetError(f"tensor {name!r}: an array of objects must hold strings or bytes only") from None
    else:
        whole = values.view(np.uint16) if values.dtype == np.float16 else values
        numbers: Any = whole.astype(np.int32).tolist()
        proto.int32_data.extend(numbers)


def proto_values(proto: TensorProto) -> Array:
    """Return the elements that a message holds, flat: all of the tensor's, or those of its ``segment``.

    Raises:
        ParseError: arrays cannot have elements of this type.
    """
    dtype = NUMPY_TYPES.get(proto.data_type)
    if dtype is None:
        raise ParseError(f"tensor {proto.name!r}: elements of type {_type_name(proto)} cannot be read")
    if proto.data_format == _BFLOAT16:
        if dtype != np.float32 or len(proto.raw_data) % 2:
            raise ParseError(
                f"tensor {proto.name!r}: bfloat16 data must be of type FLOAT and have two bytes per element"
            )
        upper = np.frombuffer(proto.raw_data, "<u2").astype(np.uint32)
        return (upper << 16).view(np.float32)
    if dtype.kind == "O":
        strings = np.empty(len(proto.string_data), object)
        strings[:] = list(proto.string_data)
        return strings
    if dtype == np.uint8 and proto.byte_data:
        return np.frombuffer(proto.byte_data, np.uint8).copy()
    if dtype == np.float32:
        return np.array(proto.float_data, np.float32)
    if dtype == np.float64:
        return np.array(proto.double_data, np.float64)
    if dtype == np.int64:
        return np.array(proto.int64_data, np.int64)
    whole = np.array(proto.int32_data, np.int32)
    if dtype == np.float16:
        return whole.astype(np.uint16).view(np.float16)
    return whole.astype(dtype)


def _type_name(proto: TensorProto) -> str:
    return TensorProto.DataType.Name(proto.data_type)


def proto_to_tensor(proto: TensorProto) -> Array:
    """Return the array that a message holds.

    Args:
        proto: a whole tensor; without ``dims`` it is a scalar of shape ().

    Returns:
        A new array; strings as an object array of bytes.

    Raises:
        ParseError: the number of elements does not match ``dims``, or their type is unknown.

    >>> proto_to_tensor(tensor_to_proto(np.arange(4, dtype=np.int8).reshape(2, 2))).tolist()
    [[0, 1], [2, 3]]
    """
    values = proto_values(proto)
    shape = tuple(proto.dims)
    size = count_elements(shape)
    if values.size != size:
        raise ParseError(
            f"tensor {proto.name!r} holds {values.size} elements of type {_type_name(proto)} "
            f"where its dims {list(shape)} {'are impossible' if size is None else f'need {size}'}"
            + ("; it is one segment of a larger tensor" if proto.HasField("segment") else "")
        )
    return values.reshape(shape)
