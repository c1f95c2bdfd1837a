"""Blobs in a minidb file, as Caffe2's Save operator writes checkpoints and its Load operator reads them.

A tensor is one record or several (chunks), with the keys ``<name>#%0``, ``<name>#%1``, ...; a string is one record
with its name as the key, and so is an object that has records, such as a counter. Each value is a BlobProto.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.data.extents import count_elements
from netbuilder.data.minidb import read_minidb, write_minidb
from netbuilder.data.object_records import kind_named, kind_of, known_kinds
from netbuilder.data.tensor_records import proto_values, tensor_to_proto
from netbuilder.proto import PROTO_CPU, BlobProto, DeviceOption, NetError, ParseError, files

__all__ = [
    "CHUNK_SIZE",
    "STRING_BLOB",
    "BlobParts",
    "blob_records",
    "chunk_record",
    "read_blobs",
    "record_name",
    "record_number",
    "write_blobs",
]

Array = np.ndarray[Any, np.dtype[Any]]

CHUNK_SIZE = 1_000_000
"""Elements of a tensor in one record, by default."""

STRING_BLOB = "std::string"
"""Type of a blob that is a string."""

_CHUNK_MARK = "#%"


def blob_records(
    name: str,
    value: Any,
    *,
    chunk_size: int = CHUNK_SIZE,
    device: DeviceOption | None = None,
    bfloat16: bool = False,
) -> Iterator[tuple[str, bytes]]:
    """Yield the records of one blob, key and value.

    Args:
        name: the blob's name in the file.
        value: an array of numbers, bools or strings; a string or bytes, also as an array without dimensions; an object
            that ``object_records`` can store.
        chunk_size: elements in one record; 0: all in one record.
        device: stored as the value's device; None: the CPU.
        bfloat16: store float32 in two bytes an element, rounded; other types are stored as they are.

    Raises:
        NetError: the value is none of these, or ``chunk_size`` is negative.

    >>> [key for key, _ in blob_records("w", np.zeros(5, np.float32), chunk_size=2)]
    ['w#%0', 'w#%1', 'w#%2']
    """
    if chunk_size < 0:
        raise NetError(
            f"blob {name!r}: chunk_size must be a number of elements, or 0 for a single record, got {chunk_size}"
        )
    text = _as_string(value)
    if text is not None:
        yield name, BlobProto(name=name, type=STRING_BLOB, content=text).SerializeToString()
        return
    kind = kind_of(value)
    if kind is not None:
        blob = BlobProto(name=name, type=kind.name)
        kind.write(blob, value)
        yield name, blob.SerializeToString()
        return
    if not isinstance(value, np.ndarray):
        raise NetError(
            f"blob {name!r}: only tensors, strings, counters, cursors and mutexes can be stored, got "
            f"{type(value).__name__} {value!r}"
        )
    step, flat = chunk_size or max(value.size, 1), value.reshape(-1)
    for begin in range(0, max(value.size, 1), step):
        chunk = flat[begin : begin + step]
        yield chunk_record(name, chunk, value.shape, begin, number=begin // step, device=device, bfloat16=bfloat16)


def chunk_record(
    name: str,
    chunk: Array,
    shape: Sequence[int],
    begin: int,
    *,
    number: int | None = None,
    device: DeviceOption | None = None,
    bfloat16: bool = False,
) -> tuple[str, bytes]:
    """Return the record, key and value, of some elements of an array.

    Args:
        name: the blob's name in the file.
        chunk: the elements, flat.
        shape: of the array.
        begin: the number of the first of them, in row-major order.
        number: of the record; None: that with chunks of ``CHUNK_SIZE``.
        device, bfloat16: as for ``blob_records``.
    """
    tensor = tensor_to_proto(chunk, name, bfloat16=bfloat16)
    tensor.dims[:] = shape
    tensor.segment.begin, tensor.segment.end = begin, begin + chunk.size
    tensor.device_detail.CopyFrom(device or DeviceOption(device_type=PROTO_CPU))
    record = BlobProto(name=name, type="Tensor", tensor=tensor)
    return f"{name}{_CHUNK_MARK}{begin // CHUNK_SIZE if number is None else number}", record.SerializeToString()


def _as_string(value: Any) -> bytes | None:
    if isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "OSU":
        value = value.item()
    return value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else None


def record_name(key: bytes) -> str:
    """Return the name of the blob that a record of this key belongs to.

    >>> record_name(b"fc_w#%12"), record_name(b"!!META_NET_DEF")
    ('fc_w', '!!META_NET_DEF')
    """
    return key.decode(errors="replace").partition(_CHUNK_MARK)[0]


def record_number(key: bytes) -> int:
    """Return the number of a record among those of its blob.

    >>> record_number(b"fc_w#%12"), record_number(b"!!META_NET_DEF")
    (12, 0)
    """
    number = key.decode(errors="replace").partition(_CHUNK_MARK)[2]
    return int(number) if number.isdecimal() else 0


class BlobParts:
    """Assembles blobs from their records, which may come in any order."""

    def __init__(self) -> None:
        self.devices: dict[str, DeviceOption] = {}  # device of each tensor when it was written, if stored
        self._single: dict[str, Any] = {}  # strings and objects
        self._chunks: dict[str, list[tuple[int, Array]]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}

    def add(self, name: str, blob: BlobProto, where: str) -> None:
        """Add a record.

        Args:
            name: of the blob.
            blob: the record's value.
            where: name of the record in errors.

        Raises:
            ParseError: the blob is of an unknown type, or does not fit the earlier records.
        """
        kind = kind_named(blob.type)
        if name in self._single or name in self._chunks and (kind is not None or blob.type == STRING_BLOB):
            raise ParseError(f"{where}: the file has blob {name!r} twice")
        if blob.type == STRING_BLOB:
            text = np.empty((), object)
            text[()] = blob.content
            self._single[name] = text
        elif blob.type == "Tensor":
            self._add_chunk(name, blob, where)
        elif kind is not None:
            try:
                self._single[name] = kind.read(blob)
            except ParseError as error:
                raise ParseError(f"{where}: {error}") from error
        else:
            raise ParseError(
                f"{where}: blob {name!r} has the unknown type {blob.type!r}; known are 'Tensor', "
                f"{STRING_BLOB!r}, {', '.join(map(repr, known_kinds()))}"
            )

    def _add_chunk(self, name: str, blob: BlobProto, where: str) -> None:
        tensor = blob.tensor
        shape = tuple(tensor.dims)
        if count_elements(shape) is None:
            raise ParseError(f"{where}: blob {name!r} has the impossible shape {shape}")
        if self._shapes.setdefault(name, shape) != shape:
            raise ParseError(
                f"{where}: chunk of shape {shape}, where earlier chunks of {name!r} have {self._shapes[name]}"
            )
        begin = tensor.segment.begin if tensor.HasField("segment") else 0
        try:
            values = proto_values(tensor)
        except ParseError as error:
            raise ParseError(f"{where}: {error}") from error
        parts = self._chunks.setdefault(name, [])
        if parts and parts[0][1].dtype != values.dtype:
            raise ParseError(
                f"{where}: chunk of {values.dtype}, where earlier chunks of {name!r} are {parts[0][1].dtype}"
            )
        parts.append((begin, values))
        if tensor.HasField("device_detail"):
            self.devices.setdefault(name, tensor.device_detail)

    @property
    def names(self) -> list[str]:
        """Names of the blobs that have records, in order."""
        return [*self._chunks, *self._single]

    def only_chunk(self, name: str) -> tuple[tuple[int, ...], int, Array]:
        """Return the shape of a tensor of which one record has been added, and where its elements begin, and these."""
        ((begin, values),) = self._chunks[name]
        return self._shapes[name], begin, values

    def value(self, name: str, where: str) -> Any:
        """Return a blob and forget its records: an array, or an object; a string as an array without dimensions.

        Raises:
            ParseError: chunks of it are missing or repeated.
        """
        if name in self._single:
            return self._single.pop(name)
        parts, shape = sorted(self._chunks.pop(name), key=lambda part: part[0]), self._shapes[name]
        end = 0
        for begin, values in parts:
            if begin > end:
                raise ParseError(f"{where}: elements {end} to {begin} of blob {name!r} are missing")
            if begin < end:
                raise ParseError(f"{where}: elements {begin} to {end} of blob {name!r} occur twice")
            end += values.size
        if end != count_elements(shape):
            raise ParseError(f"{where}: blob {name!r} of shape {shape} has only {end} elements")
        if len(parts) == 1:
            return parts[0][1].reshape(shape)
        return np.concatenate([values for _, values in parts]).reshape(shape)


def write_blobs(path: str | os.PathLike[str], blobs: Mapping[str, Any], *, chunk_size: int = CHUNK_SIZE) -> int:
    """Write blobs to a minidb file, whole or not at all, as Caffe2's Save operator does.

    Args:
        path: the file; an existing one is replaced.
        blobs: name -> array or string.
        chunk_size: see ``blob_records``.

    Returns:
        The number of records written.

    Raises:
        NetError: a value is neither a tensor nor a string.
        OSError: the file cannot be written; an existing one is unchanged.
    """
    return write_minidb(
        path, (record for name, value in blobs.items() for record in blob_records(name, value, chunk_size=chunk_size))
    )


def read_blobs(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Return the tensors of a checkpoint by name; chunks are joined, blobs that are not tensors skipped.

    Raises:
        FileNotFoundError: there is no such file.
        ParseError: it is not a minidb, a record is not a blob, or chunks of a tensor are missing.
    """
    parts = BlobParts()
    for key, value in read_minidb(path):
        where = f"{os.fspath(path)}, record {key.decode(errors='replace')!r}"
        blob = files.parse(value, BlobProto, source=where)
        if blob.type == "Tensor":
            parts.add(blob.name, blob, where)
    return {name: parts.value(name, os.fspath(path)) for name in parts.names}
