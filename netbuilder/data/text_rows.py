"""Rows of tab-separated text files, read in parts."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from netbuilder.data.blob_values import BlobObject
from netbuilder.data.forking import new_lock, renew_after_fork
from netbuilder.proto import NetError, ParseError, TensorProto
from netbuilder.proto.opened_files import open_file

__all__ = ["TextRows"]

Array = np.ndarray[Any, np.dtype[Any]]

_KINDS: dict[int, np.dtype[Any]] = {TensorProto.STRING: np.dtype(object), TensorProto.FLOAT: np.dtype(np.float32)}


class TextRows(BlobObject):
    """The rows of a file, shared by several readers.

    Each row ends with "\\n" or "\\r\\n"; tabs separate its columns. There are no quotes and no escape sequences.

    Args:
        path: the file.
        types: of each column, STRING or FLOAT of TensorProto.DataType.
        passes: how many times the file is read.

    Raises:
        NetError: there are no columns, or one is of another type.
        FileNotFoundError: there is no such file.
        ParseError: it is a pipe or a device.
    """

    def __init__(self, path: str | os.PathLike[str], types: list[int], passes: int = 1) -> None:
        if not types or any(kind not in _KINDS for kind in types):
            names = [TensorProto.DataType.Name(kind) for kind in types]
            raise NetError(
                f"{os.fspath(path)!r} must have one column or more, of type FLOAT or STRING; got the types {names}"
            )
        self.path = os.fspath(path)
        self.columns = len(types)
        self._types = [_KINDS[kind] for kind in types]
        self._passes = passes
        self._lock = new_lock()
        with open_file(self.path):  # a missing file raises an error now, not at the first read
            pass
        self._given = 0  # rows returned so far, in all passes
        self._rows = self._read()
        renew_after_fork(self)

    def renew(self) -> None:
        """Reopen the file at the same row: a forked process shares open files with its parent."""
        self._rows = itertools.islice(self._read(), self._given, None)

    def _read(self) -> Iterator[list[bytes]]:
        for _ in range(self._passes):
            with open_file(self.path) as file:
                for number, line in enumerate(file, 1):
                    row = line.rstrip(b"\r\n").split(b"\t")
                    if len(row) != self.columns or not line.endswith(b"\n"):
                        why = (
                            "" if line.endswith(b"\n") else ", and every row, the last one too, must end with a newline"
                        )
                        raise ParseError(
                            f"{self.path!r}, row {number}: {len(row)} columns; each row must have {self.columns}, "
                            f"separated by tabs{why}"
                        )
                    yield row

    def next(self, rows: int) -> list[Array]:
        """Return the next rows, column by column; fewer at the end, none after it.

        Raises:
            ParseError: a row has another number of columns, or a FLOAT column holds something else.
        """
        with self._lock:
            found = [row for _, row in zip(range(rows), self._rows)]
            self._given += len(found)
        return [self._column(index, [row[index] for row in found]) for index in range(self.columns)]

    def _column(self, index: int, values: list[bytes]) -> Array:
        if self._types[index].kind == "O":
            column = np.empty(len(values), object)
            column[:] = values
            return column
        try:
            return np.array([float(value) for value in values], np.float32)
        except ValueError as error:
            raise ParseError(f"{self.path!r}, column {index}, of type FLOAT: {error}") from error
