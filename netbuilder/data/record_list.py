"""Databases whose records are read by number, in any order and by any thread."""

from __future__ import annotations

import os
from typing import Protocol

from netbuilder.data.lmdb_folder import open_lmdb
from netbuilder.data.minidb import minidb_offsets, read_minidb_at
from netbuilder.proto import NetError
from netbuilder.proto.opened_files import open_descriptor

__all__ = ["RecordList", "database_type", "open_records"]

PathLike = str | os.PathLike[str]


class RecordList(Protocol):
    """The records of a database: ``len(records)``, and ``records[k]``, a pair of key and value."""

    path: str
    db_type: str

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> tuple[bytes, bytes]: ...


class _Minidb:
    db_type = "minidb"

    def __init__(self, path: PathLike) -> None:
        self.path = os.fspath(path)
        self._offsets = minidb_offsets(path)
        self._file = open_descriptor(path)

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, number: int) -> tuple[bytes, bytes]:
        return read_minidb_at(self._file, self._offsets[number], self.path)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)


class _Lmdb:
    db_type = "lmdb"

    def __init__(self, path: PathLike) -> None:
        self.path = os.fspath(path)
        self._file = open_lmdb(path)
        if len(self._file):
            self._file.record(0)  # reads all leaf pages, so that a damaged file raises an error now

    def __len__(self) -> int:
        return len(self._file)

    def __getitem__(self, number: int) -> tuple[bytes, bytes]:
        return self._file.record(number)


_KINDS: dict[str, type[_Minidb] | type[_Lmdb]] = {"lmdb": _Lmdb, "minidb": _Minidb}


def database_type(path: PathLike) -> str | None:
    """Return the type of the database at ``path``, recognized by its files; None if there is none.

    A folder with a file ``data.mdb``, or such a file, is of type lmdb; any other file is assumed to be a minidb.
    """
    if os.path.isdir(path):
        return "lmdb" if os.path.isfile(os.path.join(path, "data.mdb")) else None
    if os.path.isfile(path):
        return "lmdb" if os.path.basename(path) == "data.mdb" else "minidb"
    return None


def open_records(path: PathLike, db_type: str | None = None) -> RecordList:
    """Open a database for reading by number.

    Args:
        path: of the database.
        db_type: "lmdb" or "minidb"; None: recognized by its files.

    Raises:
        NetError: the type is unknown.
        FileNotFoundError: there is no such database.
        DeviceError: the package that reads it is missing.
        ParseError: the file is damaged, or of another type.
    """
    kind = db_type or database_type(path)
    if kind is None:
        raise FileNotFoundError(f"{os.fspath(path)!r}: no such database (a minidb file, or a folder with data.mdb)")
    if kind not in _KINDS:
        raise NetError(f"{os.fspath(path)!r}: unknown type of database {kind!r}; known: {sorted(_KINDS)}")
    return _KINDS[kind](path)
