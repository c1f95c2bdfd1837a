"""Tensors as operators of an init net: GivenTensor fills, written and read without a Python object per element."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from netbuilder.data.extents import count_elements
from netbuilder.exchange.divided import Divided
from netbuilder.ops.core.operator import STRING
from netbuilder.proto import Argument, ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.wire import varint

__all__ = ["SERVED_TYPES", "fill_in_parts", "fill_operator", "fill_type", "fill_values"]

Array = np.ndarray[Any, np.dtype[Any]]

_TYPES: dict[np.dtype[Any], str] = {
    np.dtype(np.float32): "GivenTensorFill",
    np.dtype(np.int32): "GivenTensorIntFill",
    np.dtype(np.int64): "GivenTensorInt64Fill",
    np.dtype(np.int16): "GivenTensorInt16Fill",
    np.dtype(np.bool_): "GivenTensorBoolFill",
    np.dtype(np.uint8): "GivenTensorByteStringToUInt8Fill",
    STRING: "GivenTensorStringFill",
}
_DTYPES: dict[str, np.dtype[Any]] = {op_type: dtype for dtype, op_type in _TYPES.items()}

SERVED_TYPES = ("float32", "int32", "int64", "int16", "bool", "uint8", "strings")
"""Element types that an init net can hold."""

_PART = 0x2A  # tag of an OperatorDef's field 5 (arg)
_FLOATS = 0x2D  # tag of an Argument's field 5 (floats), unpacked: four bytes follow
_FLOATS_PACKED = 0x2A  # tag of the same field, packed, which readers accept too


def fill_type(name: str, value: Any) -> str:
    """Return the type of the operator that fills blob ``name`` with ``value``.

    Raises:
        ArgumentError: it is not an array, or of an element type that is not one of ``SERVED_TYPES``.
    """
    if not isinstance(value, (np.ndarray, Divided)):
        raise ArgumentError(f"blob {name!r}: an init net can hold only tensors, got {type(value).__name__} {value!r}")
    op_type = _TYPES.get(STRING if value.dtype.kind in "SU" else value.dtype)
    if op_type is None:
        raise ArgumentError(
            f"blob {name!r}: an init net cannot hold elements of type {value.dtype} without loss; convert them to one "
            f"of {', '.join(SERVED_TYPES)}"
        )
    return op_type


def fill_operator(name: str, value: Any) -> OperatorDef:
    """Return the operator that fills blob ``name`` with ``value``.

    Args:
        name: the blob.
        value: an array of one of ``SERVED_TYPES``.

    Raises:
        ArgumentError: it is not an array, or of another element type.

    >>> fill_operator("b", np.int32([1, 2])).type
    'GivenTensorIntFill'
    """
    op_type = fill_type(name, value)
    array = value.astype(object) if value.dtype.kind in "SU" else value
    op = make_op(op_type, [], [name], shape=list(array.shape))
    argument = op.arg.add(name="values")
    flat = np.ascontiguousarray(array).reshape(-1)
    if array.dtype == np.float32:
        raw = flat.astype("<f4").tobytes()
        argument.MergeFromString(bytes([_FLOATS_PACKED]) + varint(len(raw)) + raw)
    elif array.dtype == np.uint8:
        argument.strings.append(flat.tobytes())
    elif array.dtype == STRING:
        argument.strings.extend(text.encode() if isinstance(text, str) else text for text in flat)
    else:
        argument.ints.extend(flat.astype(np.int64).tolist())
    return op


def fill_in_parts(name: str, shape: Sequence[int], pieces: Iterable[Array]) -> Iterator[bytes]:
    """Yield the bytes of the operator that fills a blob with float32 values, which come in pieces.

    They are those that ``fill_operator`` has when it is written, of which the first ones say how many follow.

    Args:
        name: the blob.
        shape: of the values.
        pieces: all elements in row-major order, flat.
    """
    op = make_op(_TYPES[np.dtype(np.float32)], [], [name], shape=list(shape))
    begin, named = op.SerializeToString(), Argument(name="values").SerializeToString()
    count = len(named) + 5 * math.prod(shape)
    head = begin + bytes([_PART]) + varint(count) + named
    yield varint(len(head) + count - len(named)) + head
    for piece in pieces:
        tagged = np.empty((piece.size, 5), np.uint8)
        tagged[:, 0] = _FLOATS
        tagged[:, 1:] = piece.astype("<f4").reshape(-1, 1).view(np.uint8)
        yield tagged.tobytes()


def fill_values(op: OperatorDef) -> Array | None:
    """Return the array that ``fill_operator`` put into an operator; None for any other operator.

    Raises:
        ArgumentError: the number of values does not match the shape.
    """
    dtype = _DTYPES.get(op.type)
    found = {argument.name: argument for argument in op.arg}
    if dtype is None or op.input or len(op.output) != 1 or not {"shape", "values"} == found.keys():
        return None
    values = found["values"]
    if dtype == np.float32:
        flat = _floats(values)
    elif dtype == np.uint8:
        flat = np.frombuffer(b"".join(values.strings), np.uint8).copy()
    elif dtype == STRING:
        flat = np.empty(len(values.strings), object)
        flat[:] = list(values.strings)
    else:
        flat = np.fromiter(values.ints, np.int64, len(values.ints)).astype(dtype)
    shape = tuple(found["shape"].ints)
    if flat.size != count_elements(shape):
        raise ArgumentError(f"{op.type} of {op.output[0]!r}: shape {shape} does not match {flat.size} values")
    return flat.reshape(shape)


def _floats(argument: Any) -> Array:
    alone = type(argument)()
    alone.MergeFrom(argument)
    alone.ClearField("name")
    raw = np.frombuffer(alone.SerializeToString(), np.uint8)
    if raw.size == 5 * len(argument.floats) and (raw[::5] == _FLOATS).all():
        return raw.reshape(-1, 5)[:, 1:].copy().view("<f4").reshape(-1)
    return np.fromiter(argument.floats, np.float32, len(argument.floats))
