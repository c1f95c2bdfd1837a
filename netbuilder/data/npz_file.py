"""Arrays in ``.npz`` files, whose headers are checked against the size of the file before memory is allocated."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from netbuilder.data.extents import count_elements
from netbuilder.proto import ParseError, opened_files

__all__ = ["read_npz"]

Array = np.ndarray[Any, np.dtype[Any]]

_PACKED = 1100  # upper bound of the compression ratio of zip files, which is 1,032


def read_npz(path: str | os.PathLike[str]) -> Mapping[str, Array]:
    """Return the arrays in an ``.npz`` file by name.

    Raises:
        FileNotFoundError: there is no such file.
        ParseError: it is not such a file, damaged, or holds Python objects, which could run code.
    """
    name = os.fspath(path)
    with opened_files.open_file(path) as raw:
        try:
            with zipfile.ZipFile(raw) as pack:
                entries = [entry for entry in pack.infolist() if entry.filename.endswith(".npy")]
                if sum(entry.file_size for entry in entries) > _PACKED * os.fstat(raw.fileno()).st_size:
                    raise ParseError(f"its arrays claim {sum(entry.file_size for entry in entries):,} bytes")
                return {entry.filename.removesuffix(".npy"): _array(pack, entry) for entry in entries}
        except Exception as error:  # zipfile, zlib and NumPy raise many kinds for a damaged file
            reason = str(error) if isinstance(error, ParseError) else f"{type(error).__name__}: {error}"
            raise ParseError(f"{name!r} cannot be read as npz: {reason}") from None


def _array(pack: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Array:
    with pack.open(entry) as file:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, by_column, dtype = np.lib.format.read_array_header_1_0(file)
        else:
            shape, by_column, dtype = np.lib.format.read_array_header_2_0(file)
        if dtype.hasobject:
            raise ParseError(f"{entry.filename!r} holds Python objects, which are not loaded")
        size = (count_elements(shape) or 0) * dtype.itemsize
        left = entry.file_size - file.tell()
        if size != left:
            raise ParseError(f"{entry.filename!r}: shape {shape} of {dtype} makes {size:,} bytes, it has {left:,}")
        values = np.frombuffer(file.read(), dtype)
        if file.read(1) or values.nbytes != size:
            raise ParseError(f"{entry.filename!r} has {values.nbytes:,} bytes of {size:,}")
    return values.reshape(shape, order="F" if by_column else "C").copy()
