"""Databases of ``workspace.C``, read by cursors and written by transactions."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator
from typing import Any

from netbuilder.data.db_reader import DATABASES, read_records
from netbuilder.data.lmdb_folder import write_lmdb
from netbuilder.data.minidb import append_minidb, write_minidb
from netbuilder.proto import NetError

__all__ = ["DB", "Cursor", "Mode", "Transaction", "create_db"]


class Mode(enum.Enum):
    """How a database is opened: to read, to append, or as a new database."""

    read = 0
    write = 1
    new = 2


class DB:
    """An open database, see ``create_db``."""

    def __init__(self, db_type: str, path: str, mode: Mode) -> None:
        self._type = db_type
        self._path = path
        self._mode = mode

    def new_cursor(self) -> Cursor:
        """Return a cursor on the first record.

        Raises:
            FileNotFoundError: there is no such database.
        """
        return Cursor(self._type, self._path)

    def new_transaction(self) -> Transaction:
        """Return a transaction, which writes records.

        Raises:
            NetError: the database was opened for reading.
        """
        if self._mode is Mode.read:
            raise NetError(f"{self._path!r} was opened for reading; open it with Mode.write or Mode.new")
        return Transaction(self._type, self._path)

    def close(self) -> None:
        """Do nothing: committed records are already in the file."""


class Cursor:
    """A position in a database; records of LMDB are sorted by key, those of minidb in the order they were written."""

    def __init__(self, db_type: str, path: str) -> None:
        self._type = db_type
        self._path = path
        self._records: Iterator[tuple[bytes, bytes]] = iter(())
        self._record: tuple[bytes, bytes] | None = None
        self.seek_to_first()

    def supports_seek(self) -> bool:
        """Return False: seeking by key is not supported."""
        return False

    def seek_to_first(self) -> None:
        """Go to the first record."""
        self._records = read_records(self._path, self._type)
        self._record = next(self._records, None)

    def next(self) -> None:
        """Go to the next record; after the last one, ``valid()`` is False."""
        self._record = next(self._records, None)

    def valid(self) -> bool:
        """Whether the cursor is on a record."""
        return self._record is not None

    def key(self) -> bytes:
        """Return the record's key.

        Raises:
            NetError: the cursor is after the last record.
        """
        return self._here()[0]

    def value(self) -> bytes:
        """Return the record's value.

        Raises:
            NetError: the cursor is after the last record.
        """
        return self._here()[1]

    def _here(self) -> tuple[bytes, bytes]:
        if self._record is None:
            raise NetError(f"{self._path!r}: the cursor is after the last record; check valid() first")
        return self._record


class Transaction:
    """Records to be written, by ``commit`` or when the transaction is deleted."""

    def __init__(self, db_type: str, path: str) -> None:
        self._type = db_type
        self._path = path
        self._waiting: list[tuple[bytes, bytes]] = []

    def put(self, key: str | bytes, value: str | bytes) -> None:
        """Add a record; text is encoded as UTF-8."""
        first, second = (part.encode() if isinstance(part, str) else bytes(part) for part in (key, value))
        self._waiting.append((first, second))

    def commit(self) -> None:
        """Write the added records; more may be added afterwards."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        if self._type == "minidb":
            append_minidb(self._path, waiting)
        else:
            before = list(read_records(self._path, self._type)) if os.path.exists(self._path) else []
            write_lmdb(self._path, [*before, *waiting])

    def __del__(self) -> None:
        if getattr(self, "_waiting", None):
            self.commit()


def create_db(db_type: str, source: str | os.PathLike[str], mode: Any) -> DB:
    """Open a database.

    Args:
        db_type: one of ``registered_dbs()``, in lower or upper case.
        source: its file or folder.
        mode: a ``Mode``.

    Raises:
        NetError: the type is unknown, or ``mode`` is not a ``Mode``.
        FileNotFoundError: the database is to be read but does not exist.
    """
    kind, path = db_type.lower(), os.fspath(source)
    if kind not in DATABASES:
        raise NetError(f"{path!r}: unknown type of database {db_type!r}; known: {sorted(DATABASES)}")
    if not isinstance(mode, Mode):
        raise NetError(f"create_db: mode must be a Mode, got {mode!r}")
    if mode is Mode.read and not os.path.exists(path):
        raise FileNotFoundError(f"{path!r}: no such {kind} database")
    if mode is Mode.new and kind == "minidb":
        write_minidb(path, [])
    return DB(kind, path, mode)
