"""Readers of databases: records in order, repeatedly, shared by threads and split into shards."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterable, Iterator

from netbuilder.data.blob_values import BlobObject
from netbuilder.data.forking import new_lock, renew_after_fork
from netbuilder.data.lmdb_folder import read_lmdb, write_lmdb
from netbuilder.data.minidb import read_minidb, write_minidb
from netbuilder.proto import NetError

__all__ = ["DATABASES", "DBReader", "read_records", "write_records"]

_log = logging.getLogger("netbuilder.input")

PathLike = str | os.PathLike[str]
Records = Iterator[tuple[bytes, bytes]]

DATABASES: dict[str, Callable[[PathLike], Records]] = {"lmdb": read_lmdb, "minidb": read_minidb}
"""For each type of database, the function that yields its records (key, value) once, in order."""

_WRITERS: dict[str, Callable[[PathLike, Iterable[tuple[str | bytes, bytes]]], int]] = {
    "lmdb": write_lmdb,
    "minidb": write_minidb,
}


def read_records(path: PathLike, db_type: str) -> Records:
    """Return an iterator over the records of a database.

    Raises:
        NetError: the type of database is unknown.
        DeviceError: the package that reads it is missing.
    """
    return DATABASES[_known(path, db_type)](path)


def write_records(path: PathLike, db_type: str, records: Iterable[tuple[str | bytes, bytes]]) -> int:
    """Write records (key, value) to a new database, whole or not at all; return their number.

    A minidb keeps the order of the records, lmdb sorts them by key.

    Raises:
        NetError: the type of database is unknown, or a record does not fit it.
        DeviceError: the package that writes it is missing.
        OSError: it cannot be written; an existing database is unchanged.
    """
    return _WRITERS[_known(path, db_type)](path, records)


def _known(path: PathLike, db_type: str) -> str:
    if db_type not in DATABASES:
        raise NetError(f"{os.fspath(path)!r}: unknown type of database {db_type!r}; known: {sorted(DATABASES)}")
    return db_type


class DBReader(BlobObject):
    """Reads the records of a database, and after the last one starts again with the first.

    Args:
        path: the database.
        db_type: its type, a key of ``DATABASES``.
        num_shards: number of readers that share the records.
        shard_id: which of them this is: it reads records ``shard_id``, ``shard_id + num_shards``, ..., as the log says.

    Raises:
        NetError: the type or the shard is wrong.
        FileNotFoundError: there is no such database.
        DeviceError: the package that reads this type is missing.
    """

    def __init__(self, path: PathLike, db_type: str = "minidb", *, num_shards: int = 1, shard_id: int = 0) -> None:
        records = read_records(path, db_type)
        if num_shards < 1 or not 0 <= shard_id < num_shards:
            raise NetError(
                f"{os.fspath(path)!r}: shard_id must be in [0, num_shards), got {shard_id} of {num_shards} shards"
            )
        self.path = os.fspath(path)
        self.db_type = db_type
        self.num_shards = num_shards
        self.shard_id = shard_id
        if not os.path.exists(path):
            raise FileNotFoundError(f"{self.path!r}: no such {db_type} database")
        if num_shards > 1:
            _log.info("%r reads records %d, %d, %d, ...", self, *range(shard_id, shard_id + 3 * num_shards, num_shards))
        self._lock = new_lock()
        self._records = records
        self._position = 0
        renew_after_fork(self)

    def __repr__(self) -> str:
        shard = f", shard {self.shard_id} of {self.num_shards}" if self.num_shards > 1 else ""
        return f"DBReader({self.path!r}, {self.db_type!r}{shard})"

    def read(self) -> tuple[bytes, bytes]:
        """Return the next record, key and value; different threads get different records.

        Raises:
            NetError: the database has no record for this reader.
            ParseError: the file is broken.
        """
        with self._lock:
            record = self._pull()
            if record is None:
                self._restart()
                record = self._pull()
            if record is None:
                raise NetError(f"{self!r}: the database holds no record to read")
            return record

    def rest(self) -> Records:
        """Yield the records from here to the end, once."""
        while True:
            with self._lock:
                record = self._pull()
            if record is None:
                return
            yield record

    @property
    def position(self) -> int:
        """Number of records that this pass over the database has gone through, including those of other shards."""
        return self._position

    def seek(self, position: int) -> None:
        """Move to where a reader had this ``position``.

        Raises:
            NetError: the database has fewer records.
        """
        with self._lock:
            self._restart()
            for _ in range(position):
                if next(self._records, None) is None:
                    raise NetError(
                        f"{self!r} has {self._position} records, so it cannot be read from record {position}"
                    )
                self._position += 1

    def rewind(self) -> None:
        """Go back to the first record."""
        with self._lock:
            self._restart()

    def renew(self) -> None:
        """Reopen the database at the same record: a forked process shares open files with its parent."""
        self._records = self._reopened(self._position)

    def _reopened(self, position: int) -> Records:
        yield from itertools.islice(read_records(self.path, self.db_type), position, None)

    def _restart(self) -> None:
        self._position = 0
        self._records = read_records(self.path, self.db_type)

    def _pull(self) -> tuple[bytes, bytes] | None:
        """Return the next record of this shard, None at the end."""
        for record in self._records:
            mine = self._position % self.num_shards == self.shard_id
            self._position += 1
            if mine:
                return record
        return None
