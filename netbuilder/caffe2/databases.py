"""Databases as ``workspace.C`` gives them: opened, read by cursors, written by transactions."""

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
    """What a database is opened for: to read, to add to it, or to begin it."""

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
        """Return what writes.

        Raises:
            NetError: the database was opened to read.
        """
        if self._mode is Mode.read:
            raise NetError(f"{self._path!r} was opened to read; open it with Mode.write or Mode.new")
        return Transaction(self._type, self._path)

    def close(self) -> None:
        """Do nothing: what has been committed is in the file."""


class Cursor:
    """A place in a database; LMDB's records come sorted by key, those of minidb as they were written."""

    def __init__(self, db_type: str, path: str) -> None:
        self._type = db_type
        self._path = path
        self._records: Iterator[tuple[bytes, bytes]] = iter(())
        self._record: tuple[bytes, bytes] | None = None
        self.seek_to_first()

    def supports_seek(self) -> bool:
        """Whether keys can be looked for: they cannot."""
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
            raise NetError(f"{self._path!r}: the cursor is after the last record; ask valid() before")
        return self._record


class Transaction:
    """Records to be written; they are in the database after ``commit``, or when the transaction is given up."""

    def __init__(self, db_type: str, path: str) -> None:
        self._type = db_type
        self._path = path
        self._waiting: list[tuple[bytes, bytes]] = []

    def put(self, key: str | bytes, value: str | bytes) -> None:
        """Add a record; text is encoded as UTF-8."""
        first, second = (part.encode() if isinstance(part, str) else bytes(part) for part in (key, value))
        self._waiting.append((first, second))

    def commit(self) -> None:
        """Write what was put; more may be put after it."""
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
        db_type: one of ``registered_dbs()``, in small or large letters.
        source: its file, or folder.
        mode: of ``Mode``.

    Raises:
        NetError: there is no such type, or ``mode`` is none.
        FileNotFoundError: it is to be read and is not there.
    """
    kind, path = db_type.lower(), os.fspath(source)
    if kind not in DATABASES:
        raise NetError(f"{path!r}: unknown type of database {db_type!r}; known: {sorted(DATABASES)}")
    if not isinstance(mode, Mode):
        raise NetError(f"create_db: mode must be of Mode, got {mode!r}")
    if mode is Mode.read and not os.path.exists(path):
        raise FileNotFoundError(f"{path!r}: no such {kind} database")
    if mode is Mode.new and kind == "minidb":
        write_minidb(path, [])
    return DB(kind, path, mode)
