"""ONNX files: the model without its large constants, and those, each read from the file once."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np
from google.protobuf.message import DecodeError

from netbuilder.engines.large_pages import lasting_zeros
from netbuilder.exchange.onnx.inference import check_external_data
from netbuilder.proto import ParseError, opened_files

__all__ = ["load_model", "without_constants"]

Array = np.ndarray[Any, Any]

_LARGE = 1 << 12  # bytes of a constant that is read on its own
_GRAPH, _INITIALIZER = 7, 5  # fields of ModelProto and GraphProto
_DATA = {4: 1, 9: None, 10: 11}  # fields of TensorProto: those with elements as in memory, and of which type


class _NotProtobuf(ValueError):
    """A file is not a message of protobuf."""


def load_model(onnx: Any, path: str | os.PathLike[str]) -> tuple[Any, dict[str, Array]]:
    """Return a model and its large constants, which the model then lacks.

    Only what is small is parsed by protobuf, which needs a copy of all that it parses; the memory is that of the
    constants.

    Raises:
        ParseError: it is not a model that ONNX's checker accepts.
        OSError: the file cannot be read.
    """
    folder = os.path.dirname(os.path.abspath(path))
    try:
        with opened_files.open_file(path) as file:
            model, found = _parsed(onnx, file, os.fstat(file.fileno()).st_size)
        check_external_data(model, folder)
        _read_external(onnx, model, folder, found)
        onnx.checker.check_model(model)
    except FileNotFoundError:
        opened_files.read_bytes(path)  # lists files with similar names
        raise
    except (_NotProtobuf, DecodeError, onnx.checker.ValidationError) as error:
        text = f"{os.fspath(path)!r} is not an ONNX model that ONNX's checker accepts: {error}"
        raise ParseError(text) from error
    return model, found


def without_constants(onnx: Any, model: Any) -> tuple[Any, dict[str, Array]]:
    """Return a copy of a model without its large constants, and those."""
    light, found = type(model)(), {}
    for field, value in model.ListFields():
        if field.name != "graph":
            _set(light, field, value)
    for field, value in model.graph.ListFields():
        if field.name != "initializer":
            _set(light.graph, field, value)
    taken = []
    for tensor in model.graph.initializer:
        if _elements_bytes(tensor) < _LARGE:
            light.graph.initializer.append(tensor)
        else:
            found[tensor.name] = _array(onnx, tensor)
            taken.append(tensor)
    _declare(onnx, light.graph, taken)
    return light, found


def _set(message: Any, field: Any, value: Any) -> None:
    if isinstance(value, (str, bytes, int, float)):
        setattr(message, field.name, value)
    elif hasattr(value, "CopyFrom"):
        getattr(message, field.name).CopyFrom(value)
    else:
        getattr(message, field.name).extend(value)


def _elements_bytes(tensor: Any) -> int:
    """Return about how many bytes a tensor's elements take."""
    return int(tensor.ByteSize())


def _array(onnx: Any, tensor: Any) -> Array:
    try:
        made: Array = onnx.numpy_helper.to_array(tensor)
    except Exception as error:  # of NumPy or onnx: dims that do not match the data, unknown types, invalid text
        raise ParseError(
            f"constant {tensor.name!r} of dims {list(tensor.dims)} and type {tensor.data_type} does not match its "
            f"data: {error}"
        ) from None
    return made


def _declare(onnx: Any, graph: Any, tensors: Iterable[Any]) -> None:
    """Add inputs with the shapes and types of constants, unless there are such, for checks and inference."""
    declared = {each.name for each in graph.input}
    for tensor in tensors:
        if tensor.name not in declared:
            declared.add(tensor.name)
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))


def _parsed(onnx: Any, file: BinaryIO, size: int) -> tuple[Any, dict[str, Array]]:
    """Return the model in a file without its large constants, and those."""
    places: list[tuple[Any, int, int, int]] = []  # tensors without data; the field, offset and length of it
    small = bytearray()
    for number, start, offset, length in _fields(file, 0, size):
        if number != _GRAPH:
            small += _bytes(file, start, offset + length - start)
            continue
        graph = bytearray()
        for inner, inner_start, inner_offset, inner_length in _fields(file, offset, offset + length):
            if inner != _INITIALIZER or not (place := _large(onnx, file, inner_offset, inner_length)):
                graph += _bytes(file, inner_start, inner_offset + inner_length - inner_start)
            else:
                places.append(place)
        small += bytes([_GRAPH << 3 | 2]) + _varint(len(graph)) + graph
    model = onnx.ModelProto()
    model.ParseFromString(bytes(small))
    found = {}
    for tensor, field, offset, length in places:
        found[tensor.name] = _read_array(onnx, tensor, field, file, offset, length)
    _declare(onnx, model.graph, [tensor for tensor, *_ in places])
    return model, found


def _large(onnx: Any, file: BinaryIO, offset: int, length: int) -> tuple[Any, int, int, int] | None:
    """Return a tensor without its data, and their field, offset and length; None if they are few, or not plain."""
    if length < _LARGE:
        return None
    data, rest = None, bytearray()
    for number, start, at, size in _fields(file, offset, offset + length):
        if number in _DATA and size >= _LARGE // 2:
            if data is not None:
                return None
            data = (number, at, size)
        else:
            rest += _bytes(file, start, at + size - start)
    if data is None:
        return None
    tensor = onnx.TensorProto()
    tensor.ParseFromString(bytes(rest))
    kind = _DATA[data[0]]
    if kind not in (None, tensor.data_type) or _plain_dtype(onnx, tensor.data_type) is None or tensor.data_location:
        return None
    return (tensor, *data)


def _plain_dtype(onnx: Any, kind: int) -> np.dtype[Any] | None:
    """Return the NumPy type whose elements are stored as ONNX stores this type; None if there is none."""
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))
    except KeyError:
        return None
    return dtype if dtype.kind in "fiub" and dtype.isbuiltin == 1 and kind != onnx.TensorProto.BFLOAT16 else None


def _read_array(onnx: Any, tensor: Any, field: int, file: BinaryIO, offset: int, length: int) -> Array:
    dtype = _plain_dtype(onnx, tensor.data_type)
    assert dtype is not None
    dims = list(tensor.dims)
    if min(dims, default=1) < 0 or math.prod(dims) * dtype.itemsize != length:
        raise ParseError(
            f"constant {tensor.name!r} of dims {dims} and type {tensor.data_type} does not match its data: "
            f"{length:,} bytes"
        )
    memory = lasting_zeros(length)
    file.seek(offset)
    into: Any = file  # it is buffered
    if into.readinto(memory.data) != length:
        raise ParseError(f"the file ends within the constant {tensor.name!r}")
    memory.flags.writeable = False  # so that a predictor can use it as it is
    made: Array = memory.view(dtype.newbyteorder("<")).reshape(dims)
    return made.astype(dtype, copy=False)


def _read_external(onnx: Any, model: Any, folder: str, found: dict[str, Array]) -> None:
    """Read the constants that are in other files into ``found``; others, in nodes, into the model."""
    kept, taken = [], []
    for tensor in model.graph.initializer:
        if tensor.data_location != tensor.EXTERNAL or _plain_dtype(onnx, tensor.data_type) is None:
            kept.append(tensor)
            continue
        where = {each.key: each.value for each in tensor.external_data}
        path = os.path.join(folder, where.get("location", ""))
        offset = int(where.get("offset", 0))
        with opened_files.open_file(path) as file:
            length = int(where.get("length", os.fstat(file.fileno()).st_size - offset))
            found[tensor.name] = _read_array(onnx, tensor, 9, file, offset, length)
        taken.append(tensor)
    _declare(onnx, model.graph, taken)
    if len(kept) < len(model.graph.initializer):
        copies = [type(tensor).FromString(tensor.SerializeToString()) for tensor in kept]
        del model.graph.initializer[:]
        model.graph.initializer.extend(copies)
    onnx.external_data_helper.load_external_data_for_model(model, folder)


def _fields(file: BinaryIO, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of a message: number, where the field begins, and offset and length of its content.

    Raises:
        _NotProtobuf: the message is cut off, or is no message.
    """
    while at < end:
        start = at
        key, at = _read_varint(file, at, end)
        wire = key & 7
        if wire == 0:
            offset = at
            _, at = _read_varint(file, at, end)
            length = at - offset
        elif wire in (1, 5):
            offset, length = at, 8 if wire == 1 else 4
        elif wire == 2:
            length, offset = _read_varint(file, at, end)
        else:
            raise _NotProtobuf(f"it is no message of protobuf: byte {start} begins a field of the wire type {wire}")
        at = offset + length
        if at > end:
            raise _NotProtobuf(
                f"it is cut off: the field at byte {start} has {length:,} bytes, of which {end - offset:,} are left"
            )
        yield key >> 3, start, offset, length


def _read_varint(file: BinaryIO, at: int, end: int) -> tuple[int, int]:
    """Return a number of variable length, and where it ends."""
    file.seek(at)
    read = file.read(min(10, end - at))
    value = 0
    for i, byte in enumerate(read):
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value, at + i + 1
    raise _NotProtobuf(f"it is no message of protobuf: no number ends after byte {at}")


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


def _bytes(file: BinaryIO, start: int, length: int) -> bytes:
    file.seek(start)
    return file.read(length)
