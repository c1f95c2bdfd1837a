"""ONNX files: the model without its large constants, and those, each read once from its file or another one."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from netbuilder.engines.large_pages import lasting_zeros
from netbuilder.exchange.onnx.inference import check_external_data
from netbuilder.proto import ParseError, opened_files
from netbuilder.proto.file_kinds import kind_of

__all__ = [
    "ConstantElsewhere",
    "FileIdentity",
    "LargeConstant",
    "LoadedModel",
    "ModelFile",
    "file_identity",
    "load_model",
    "read_elsewhere",
    "read_file",
    "without_constants",
]

Array = np.ndarray[Any, Any]

_LARGE = 1 << 12  # bytes of a constant that is read on its own
_GRAPH, _INITIALIZER = 7, 5  # fields of ModelProto and GraphProto
_DATA = {4: 1, 9: None, 10: 11}  # fields of TensorProto: those with elements as in memory, and of which type


FileIdentity = tuple[int, ...]
"""What the system says of a file; if it is equal, the file is unchanged: its number, size and times."""


class _NotProtobuf(ValueError):
    """A file is not a message of protobuf."""


class LargeConstant(NamedTuple):
    """A constant in a file.

    Args:
        head: its message (``TensorProto``) without the elements.
        field: the field of the message that holds these.
        data: their bytes, in memory that lasts.
    """

    head: bytes
    field: int
    data: Array


class ModelFile(NamedTuple):
    """What a file holds.

    Args:
        path: of the file.
        status: what the system says of it.
        light: the message without the large constants.
        large: those.
    """

    path: str | os.PathLike[str]
    status: os.stat_result
    light: bytes
    large: Sequence[LargeConstant]

    @property
    def folder(self) -> str:
        return os.path.dirname(os.path.abspath(self.path))

    @property
    def may_use_others(self) -> bool:
        """Whether constants may be in other files: each names its own under the key "location"."""
        return b"location" in self.light


class ConstantElsewhere(NamedTuple):
    """Where the elements of a constant are that is in another file.

    Args:
        location: of the file, in the model's folder.
        offset, length: in bytes.
    """

    location: str
    offset: int
    length: int


class LoadedModel(NamedTuple):
    """A model, parsed.

    Args:
        model: without its large constants (``ModelProto``).
        constants: those.
        elsewhere: which of them were read from other files, and from where.
        others: those files, each with its identity before it was read.
    """

    model: Any
    constants: dict[str, Array]
    elsewhere: Mapping[str, ConstantElsewhere]
    others: Mapping[str, FileIdentity]


def read_file(path: str | os.PathLike[str]) -> ModelFile:
    """Return what a file holds; none of it is parsed but the fields of the model, its graph and its constants.

    Raises:
        ParseError: it is no message of protobuf.
        OSError: it cannot be read.
    """
    try:
        with opened_files.open_file(path) as file:
            status = os.fstat(file.fileno())
            return ModelFile(path, status, *_split(file, status.st_size))
    except FileNotFoundError:
        opened_files.read_bytes(path)  # lists files with similar names
        raise
    except _NotProtobuf as error:
        raise _refused(path, error) from error


def file_identity(status: os.stat_result) -> FileIdentity:
    """Return what tells whether a file has changed, as in Git's index."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def load_model(onnx: Any, file: ModelFile) -> LoadedModel:
    """Return a model and its large constants, which the model then lacks.

    Only what is small is parsed by protobuf, which needs a copy of all that it parses; the memory is that of the
    constants.

    Raises:
        ParseError: it is not a model that ONNX's checker accepts.
        OSError: a file with constants of it cannot be read.
    """
    try:
        model, found = _parsed(onnx, file)
        locations = check_external_data(model, file.folder)
        others = {each: file_identity(os.stat(os.path.join(file.folder, each))) for each in locations}
        elsewhere = _read_external(onnx, model, file.folder, found)
        onnx.checker.check_model(model)
    except (DecodeError, onnx.checker.ValidationError) as error:
        raise _refused(file.path, error) from error
    return LoadedModel(model, found, elsewhere, others)


def read_elsewhere(folder: str, place: ConstantElsewhere) -> Array:
    """Return the bytes of a constant that is in another file of a model's folder.

    Raises:
        ParseError: the file ends before.
        OSError: it cannot be read.
    """
    with opened_files.open_file(os.path.join(folder, place.location)) as file:
        return _read(file, place.offset, place.length)


def _refused(path: str | os.PathLike[str], error: Exception) -> ParseError:
    kind = kind_of(opened_files.read_bytes(path))
    if kind and "ONNX" not in kind:
        return ParseError(f"{os.fspath(path)!r} is not an ONNX model: this is {kind}")
    return ParseError(f"{os.fspath(path)!r} is not an ONNX model that ONNX's checker accepts: {error}")


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


def _split(file: BinaryIO, size: int) -> tuple[bytes, list[LargeConstant]]:
    """Return the message in a file without its large constants, and those."""
    large: list[LargeConstant] = []
    small = bytearray()
    for number, start, offset, length in _fields(file, 0, size):
        if number != _GRAPH:
            small += _bytes(file, start, offset + length - start)
            continue
        graph = bytearray()
        for inner, inner_start, inner_offset, inner_length in _fields(file, offset, offset + length):
            found = _large(file, inner_offset, inner_length) if inner == _INITIALIZER else None
            if found is None:
                graph += _bytes(file, inner_start, inner_offset + inner_length - inner_start)
            else:
                large.append(found)
        small += _field(_GRAPH, graph)
    return bytes(small), large


def _large(file: BinaryIO, offset: int, length: int) -> LargeConstant | None:
    """Return a constant of the model; None if it has few elements, or not in one field."""
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
    number, at, size = data
    return LargeConstant(bytes(rest), number, _read(file, at, size))


def _read(file: BinaryIO, offset: int, length: int) -> Array:
    memory = lasting_zeros(length)
    file.seek(offset)
    into: Any = file  # it is buffered
    if into.readinto(memory.data) != length:
        raise ParseError(f"the file ends within a constant of {length:,} bytes")
    memory.flags.writeable = False  # so that a predictor can use it as it is
    return memory


def _parsed(onnx: Any, file: ModelFile) -> tuple[Any, dict[str, Array]]:
    """Return the model in a file without its large constants, and those."""
    model, found, taken = onnx.ModelProto(), dict[str, Array](), []
    model.ParseFromString(file.light)
    for head, field, data in file.large:
        tensor = onnx.TensorProto()
        tensor.ParseFromString(head)
        plain = _DATA[field] in (None, tensor.data_type) and _plain_dtype(onnx, tensor.data_type) is not None
        if plain and not tensor.data_location:
            found[tensor.name] = _as_array(tensor, _checked_dtype(onnx, tensor, data.size), data)
            taken.append(tensor)
        else:
            tensor.MergeFromString(_field(field, data))
            model.graph.initializer.append(tensor)
    _declare(onnx, model.graph, taken)
    return model, found


def _plain_dtype(onnx: Any, kind: int) -> np.dtype[Any] | None:
    """Return the NumPy type whose elements are stored as ONNX stores this type; None if there is none."""
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))
    except KeyError:
        return None
    return dtype if dtype.kind in "fiub" and dtype.isbuiltin == 1 and kind != onnx.TensorProto.BFLOAT16 else None


def _checked_dtype(onnx: Any, tensor: Any, length: int) -> np.dtype[Any]:
    """Return the NumPy type of a constant whose elements have so many bytes, as its dims say."""
    dtype = _plain_dtype(onnx, tensor.data_type)
    assert dtype is not None
    dims = list(tensor.dims)
    if min(dims, default=1) < 0 or math.prod(dims) * dtype.itemsize != length:
        raise ParseError(
            f"constant {tensor.name!r} of dims {dims} and type {tensor.data_type} does not match its data: "
            f"{length:,} bytes"
        )
    return dtype


def _as_array(tensor: Any, dtype: np.dtype[Any], data: Array) -> Array:
    made: Array = data.view(dtype.newbyteorder("<")).reshape(list(tensor.dims))
    return made.astype(dtype, copy=False)


def _read_external(onnx: Any, model: Any, folder: str, found: dict[str, Array]) -> dict[str, ConstantElsewhere]:
    """Read the constants that are in other files into ``found``; others, in nodes, into the model.

    Returns:
        where those in ``found`` are.
    """
    kept, taken, elsewhere = [], [], dict[str, ConstantElsewhere]()
    for tensor in model.graph.initializer:
        if tensor.data_location != tensor.EXTERNAL or _plain_dtype(onnx, tensor.data_type) is None:
            kept.append(tensor)
            continue
        where = {each.key: each.value for each in tensor.external_data}
        location, offset = where.get("location", ""), int(where.get("offset", 0))
        length = int(where.get("length", os.stat(os.path.join(folder, location)).st_size - offset))
        elsewhere[tensor.name] = place = ConstantElsewhere(location, offset, length)
        dtype = _checked_dtype(onnx, tensor, length)
        found[tensor.name] = _as_array(tensor, dtype, read_elsewhere(folder, place))
        taken.append(tensor)
    _declare(onnx, model.graph, taken)
    if len(kept) < len(model.graph.initializer):
        copies = [type(tensor).FromString(tensor.SerializeToString()) for tensor in kept]
        del model.graph.initializer[:]
        model.graph.initializer.extend(copies)
    onnx.external_data_helper.load_external_data_for_model(model, folder)
    return elsewhere


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


def _field(number: int, content: Any) -> bytes:
    """Return a field of a message with its content."""
    return bytes([number << 3 | 2]) + _varint(len(content)) + bytes(content)


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


def _bytes(file: BinaryIO, start: int, length: int) -> bytes:
    file.seek(start)
    return file.read(length)
