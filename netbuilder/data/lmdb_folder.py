"""LMDB databases, the folders in which Caffe2, Caffe and others keep records sorted by key (package lmdb)."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import threading
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from netbuilder.proto import DeviceError, NetError, ParseError

__all__ = ["LmdbFile", "open_lmdb", "read_lmdb", "write_lmdb"]

PathLike = str | os.PathLike[str]

_FILE = "data.mdb"
_FIRST_MAP = 1 << 24  # bytes; the map grows as records come
_PER_TRANSACTION = 1 << 23  # bytes written before they are committed
_LONGEST_KEY = 511


def _library(path: PathLike) -> Any:
    try:
        import lmdb
    except ImportError:
        raise DeviceError(
            f"{os.fspath(path)!r}: databases of type lmdb need the package lmdb; pip install lmdb, or "
            "'netbuilder[data]', or use db_type 'minidb'"
        ) from None
    return lmdb


class LmdbFile:
    """An open LMDB database; its methods serve any thread. It closes when nobody refers to it.

    Args:
        path: of the database.
        environment: LMDB's handle, for reading.
    """

    def __init__(self, path: str, environment: Any) -> None:
        self.path = path
        self._environment = environment

    def __len__(self) -> int:
        return int(self._environment.stat()["entries"])

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all records, sorted by key.

        Raises:
            ParseError: the file is damaged.
        """
        broken = _library(self.path).Error  # now: at the end of the program nothing can be imported any more
        try:
            with self._environment.begin() as reading:
                yield from reading.cursor()
        except broken as error:
            raise ParseError(f"{self.path!r}: cannot be read as lmdb: {error}") from error

    def keys(self) -> list[bytes]:
        """Return all keys, sorted."""
        try:
            with self._environment.begin() as reading:
                return list(reading.cursor().iternext(values=False))
        except _library(self.path).Error as error:
            raise ParseError(f"{self.path!r}: cannot be read as lmdb: {error}") from error

    def value(self, key: bytes) -> bytes:
        """Return the value under a key.

        Raises:
            ParseError: there is none, or the file is damaged.
        """
        try:
            with self._environment.begin() as reading:
                found = reading.get(key)
        except _library(self.path).Error as error:
            raise ParseError(f"{self.path!r}: cannot be read as lmdb: {error}") from error
        if found is None:
            raise ParseError(f"{self.path!r}: the record {key!r} is gone; has the database been written anew?")
        return bytes(found)


# LMDB forbids to open a file twice in a process, so all readers of one share its handle.
_open: weakref.WeakValueDictionary[tuple[int, int], LmdbFile] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def open_lmdb(path: PathLike) -> LmdbFile:
    """Open a database for reading.

    Args:
        path: a folder with the file ``data.mdb``, or that file.

    Raises:
        DeviceError: the package lmdb is missing.
        FileNotFoundError: there is no such database.
        ParseError: the file is none, or cut short.
    """
    lmdb, name = _library(path), os.fspath(path)
    file = Path(name) / _FILE if os.path.isdir(name) else Path(name)
    if not file.is_file():
        raise FileNotFoundError(errno.ENOENT, f"no such lmdb database (a folder with {_FILE})", name)
    stat = file.stat()
    with _lock:
        found = _open.get((stat.st_dev, stat.st_ino))
        if found is None:
            try:
                handle = lmdb.open(str(file), subdir=False, readonly=True, lock=False, readahead=False, max_readers=1)
                used = (handle.info()["last_pgno"] + 1) * handle.stat()["psize"]
            except lmdb.Error as error:
                raise ParseError(f"{name!r}: cannot be read as lmdb: {error}") from error
            if used > stat.st_size:  # reading on would end the process, not raise
                handle.close()
                raise ParseError(
                    f"{name!r}: cannot be read as lmdb: the file is cut short: it has {stat.st_size} bytes, its "
                    f"records lie in {used}"
                )
            found = _open[stat.st_dev, stat.st_ino] = LmdbFile(name, handle)
        return found


def read_lmdb(path: PathLike) -> Iterator[tuple[bytes, bytes]]:
    """Return an iterator over the records of a database, key and value, sorted by key.

    Raises:
        As ``open_lmdb``, at once.
    """
    return open_lmdb(path).records()


def write_lmdb(path: PathLike, records: Iterable[tuple[str | bytes, bytes]]) -> int:
    """Write records to a new database, whole or not at all; return how many.

    Args:
        path: the folder; an LMDB database of that name is replaced, anything else refused.
        records: keys (text is encoded as UTF-8; 1 to 511 bytes, each once) and values.

    Raises:
        DeviceError: the package lmdb is missing.
        NetError: a key is too long or empty, or comes twice.
        FileExistsError: ``path`` is there and no LMDB database.
        OSError: the folder cannot be written; a database that was there is as before.
    """
    lmdb, target = _library(path), Path(os.path.realpath(path))
    if target.exists() and not _is_database(target):
        raise FileExistsError(errno.EEXIST, "is there and no lmdb database; give another name", os.fspath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"the folder {str(target.parent)!r} does not exist", os.fspath(path))
    draft = target.with_name(f".{target.name}.draft-{secrets.token_hex(4)}")
    try:
        with lmdb.open(str(draft), map_size=_FIRST_MAP, sync=True) as environment:
            count = _write(lmdb, environment, records, os.fspath(path))
        if target.exists():
            shutil.rmtree(target)
        os.replace(draft, target)
    except lmdb.Error as error:
        raise OSError(errno.EIO, f"cannot be written: {error}", os.fspath(path)) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return count


def _is_database(target: Path) -> bool:
    return target.is_dir() and {entry.name for entry in target.iterdir()} <= {_FILE, "lock.mdb"}


def _write(lmdb: Any, environment: Any, records: Iterable[tuple[str | bytes, bytes]], path: str) -> int:
    count = waiting = 0
    batch: list[tuple[bytes, bytes]] = []
    for given, value in records:
        key = given.encode() if isinstance(given, str) else given
        if not 0 < len(key) <= _LONGEST_KEY:
            raise NetError(
                f"{path!r}: record {count} has a key of {len(key)} bytes; lmdb takes keys of 1 to {_LONGEST_KEY}"
            )
        batch.append((key, value))
        count += 1
        waiting += len(key) + len(value)
        if waiting >= _PER_TRANSACTION:
            _commit(lmdb, environment, batch, path)
            batch, waiting = [], 0
    _commit(lmdb, environment, batch, path)
    return count


def _commit(lmdb: Any, environment: Any, batch: list[tuple[bytes, bytes]], path: str) -> None:
    while True:
        try:
            with environment.begin(write=True) as writing:
                for key, value in batch:
                    if not writing.put(key, value, overwrite=False):
                        raise NetError(f"{path!r}: the key {key!r} comes twice; lmdb keeps one record for each")
            return
        except lmdb.MapFullError:
            environment.set_mapsize(2 * environment.info()["map_size"])
