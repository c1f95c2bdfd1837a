"""Arrays by name in files of the format safetensors."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from netbuilder.proto import ParseError, opened_files
from netbuilder.proto.structured_text import parse_json
from netbuilder.proto.whole_file import whole_file

__all__ = ["read_safetensors", "write_safetensors"]

_TYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1",
    "BOOL": "?", "BF16": "<u2",
}  # fmt: skip
_NAMES = {np.dtype(of): name for name, of in _TYPES.items() if name != "BF16"}
_LONGEST = 100_000_000  # bytes of a header


def read_safetensors(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Return the arrays of a file by name, in the order of their data; bfloat16 becomes float32.

    Raises:
        ParseError: the file is no such file, or it is incomplete.
        OSError: it cannot be read.

    Source: https://huggingface.co/docs/safetensors, section "Format".
    """
    data = opened_files.read_bytes(path)
    try:
        length = int.from_bytes(data[:8], "little")
        if not 2 <= length <= min(_LONGEST, len(data) - 8):
            raise ValueError(f"a header of {length} bytes in a file of {len(data)}")
        header = parse_json(data[8 : 8 + length])
        header.pop("__metadata__", None)
        body = memoryview(data)[8 + length :]
        return {
            name: _array(about, body)
            for name, about in sorted(header.items(), key=lambda item: item[1]["data_offsets"][0])
        }
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ParseError(f"{os.fspath(path)!r} is no file of safetensors: {error}") from error


def _array(about: Mapping[str, Any], body: memoryview) -> np.ndarray:
    begin, end = about["data_offsets"]
    if not 0 <= begin <= end <= len(body):
        raise ValueError(f"data at {begin} to {end} of {len(body)} bytes")
    found = np.frombuffer(body[begin:end], _TYPES[about["dtype"]]).reshape(about["shape"])
    if about["dtype"] == "BF16":
        found = (found.astype(np.uint32) << 16).view(np.float32)
    return found


def write_safetensors(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays by name.

    Raises:
        TypeError: the format has no such type.
        OSError: the file cannot be written; then there is none.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    parts, place = [], 0
    for name, array in arrays.items():
        little = np.ascontiguousarray(array, np.asarray(array).dtype.newbyteorder("<")).reshape(np.shape(array))
        if little.dtype not in _NAMES:
            raise TypeError(f"{name!r}: safetensors has no type for {little.dtype}")
        parts.append(little.tobytes())
        header[name] = {
            "dtype": _NAMES[little.dtype],
            "shape": list(little.shape),
            "data_offsets": [place, place + len(parts[-1])],
        }
        place += len(parts[-1])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with whole_file(path) as file:
        file.write(b"".join([len(text).to_bytes(8, "little"), text, *parts]))
