"""Blobs in a minidb file, as Caffe2's Save operator writes checkpoints."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from netbuilder.data.minidb import read_minidb
from netbuilder.data.tensor_records import proto_values
from netbuilder.proto import BlobProto, ParseError, files

__all__ = ["read_blobs"]

Array = np.ndarray[Any, np.dtype[Any]]


def read_blobs(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Return the tensors of a checkpoint by name; chunks of one tensor are joined, other kinds of blobs left out.

    Raises:
        FileNotFoundError: there is no such file.
        ParseError: it is no minidb, a record is no blob, or chunks of a tensor are missing.
    """
    chunks: dict[str, list[tuple[int, Array]]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for key, value in read_minidb(path):
        where = f"{os.fspath(path)}, record {key.decode(errors='replace')!r}"
        blob = files.parse(value, BlobProto, source=where)
        if blob.type != "Tensor":
            continue
        begin = blob.tensor.segment.begin if blob.tensor.HasField("segment") else 0
        shape = tuple(blob.tensor.dims)
        if shapes.setdefault(blob.name, shape) != shape:
            raise ParseError(f"{where}: a chunk of shape {shape}, others of {blob.name!r} have {shapes[blob.name]}")
        chunks.setdefault(blob.name, []).append((begin, proto_values(blob.tensor)))
    return {name: _joined(path, name, parts, shapes[name]) for name, parts in chunks.items()}


def _joined(path: Any, name: str, parts: list[tuple[int, Array]], shape: tuple[int, ...]) -> Array:
    end = 0
    for begin, values in sorted(parts, key=lambda part: part[0]):
        if begin != end:
            raise ParseError(f"{os.fspath(path)}: elements {end} to {begin} of blob {name!r} are missing")
        end += values.size
    if end != int(np.prod(shape, dtype=np.int64)):
        raise ParseError(f"{os.fspath(path)}: blob {name!r} of shape {shape} has {end} elements only")
    return np.concatenate([values for _, values in sorted(parts, key=lambda part: part[0])]).reshape(shape)
