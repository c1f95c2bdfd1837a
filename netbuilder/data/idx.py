"""IDX files, the format of MNIST: a header with type and extents, then an array of numbers.

Source: LeCun, Cortes and Burges, "The MNIST database of handwritten digits", section "The IDX file format".
"""

from __future__ import annotations

import gzip
import io
import math
import os
import zlib
from typing import Any

import numpy as np

from netbuilder.data.extents import count_elements
from netbuilder.proto import ParseError, opened_files
from netbuilder.proto.os_errors import error_text

__all__ = ["read_idx"]

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP = b"\x1f\x8b"
_PACKED = 1100  # upper bound of gzip's compression ratio, which is 1,032


def read_idx(path: str | os.PathLike[str]) -> np.ndarray[Any, np.dtype[Any]]:
    """Return the array in an IDX file, compressed by gzip or not.

    Returns:
        An array of the file's shape and type (uint8 for images and labels of MNIST), in native byte order.

    Raises:
        FileNotFoundError: there is no such file.
        ParseError: the file is truncated, or not an IDX file.
    """
    name = os.fspath(path)
    data = opened_files.read_bytes(path)
    packed = len(data) if data[:2] == _GZIP else None
    if packed is not None:
        data = _unpacked(data, name)
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _TYPES:
        raise ParseError(
            f"{name!r} is not an IDX file: it must begin with two zeroes, a type among "
            f"{', '.join(f'0x{t:02x}' for t in _TYPES)} and the number of axes, got {data[:4].hex(' ') or 'nothing'}"
        )
    dtype, start = np.dtype(_TYPES[data[2]]), 4 + 4 * data[3]
    if len(data) < start:
        raise ParseError(f"{name!r}: truncated: {data[3]} axes need a header of {start} bytes, got {len(data)}")
    shape = tuple(int(n) for n in np.frombuffer(data, ">u4", data[3], 4))
    expected = start + math.prod(shape) * dtype.itemsize
    if len(data) != expected:
        more = " or more" if packed is not None and len(data) > expected else ""
        raise ParseError(
            f"{name!r}: shape {shape} of {dtype.name} makes {expected} bytes with the header, got {len(data)}{more}"
        )
    if count_elements(shape) is None:
        raise ParseError(f"{name!r}: no array can have the shape {shape}")
    return np.frombuffer(data, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="))


def _unpacked(data: bytes, name: str) -> bytes:
    """Return the decompressed bytes: at most one more than the header announces, however large the file unpacks."""
    try:
        with gzip.open(io.BytesIO(data)) as file:
            head = file.read(4 + 4 * 255)
            shape = np.frombuffer(head, ">u4", min(head[3], len(head) // 4 - 1), 4).tolist() if len(head) >= 4 else []
            left = math.prod(shape) * np.dtype(_TYPES.get(head[2], "u1")).itemsize if shape else 0
            return head + file.read(min(left + 1, _PACKED * len(data)))
    except (EOFError, OSError, zlib.error) as error:
        raise ParseError(f"{name!r} cannot be unpacked by gzip: {error_text(error)}") from None
