"""LMDB databases: folders with records sorted by key, as Caffe2, Caffe and others write them.

The module ``lmdb_pages`` reads them; the package lmdb writes them.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from netbuilder.data.lmdb_pages import LmdbFile
from netbuilder.proto import DeviceError, NetError
from netbuilder.proto.extras import how_to_install
from netbuilder.proto.whole_file import sync_folder

__all__ = ["open_lmdb", "read_lmdb", "write_lmdb"]

PathLike = str | os.PathLike[str]

_FILE, _LOCK = "data.mdb", "lock.mdb"
_FIRST_MAP = 1 << 24  # bytes; the map grows with the records
_PER_TRANSACTION = 1 << 23  # bytes written before they are committed
_LONGEST_KEY = 511


def _library(path: PathLike) -> Any:
    try:
        import lmdb
    except ImportError:
        raise DeviceError(
            f"{os.fspath(path)!r}: writing databases of type lmdb needs the package lmdb; pip install lmdb, "
            f"or {how_to_install('data').removeprefix('pip install ')}, or use db_type 'minidb'"
        ) from None
    return lmdb


def open_lmdb(path: PathLike) -> LmdbFile:
    """Open a database for reading.

    Args:
        path: a folder with the file ``data.mdb``, or that file.

    Raises:
        FileNotFoundError: there is no such database.
        ParseError: the file is not an LMDB database, damaged, or truncated.
    """
    name = os.fspath(path)
    file = Path(name) / _FILE if os.path.isdir(name) else Path(name)
    if not file.is_file():
        raise FileNotFoundError(errno.ENOENT, f"no such lmdb database (a folder with {_FILE})", name)
    return LmdbFile(str(file), name)


def read_lmdb(path: PathLike) -> Iterator[tuple[bytes, bytes]]:
    """Return an iterator over the records of a database, key and value, sorted by key.

    Raises:
        As ``open_lmdb``, before the first record is requested.
    """
    return open_lmdb(path).records()


def write_lmdb(path: PathLike, records: Iterable[tuple[str | bytes, bytes]]) -> int:
    """Write records to a new database, whole or not at all; return their number.

    Args:
        path: the folder; an existing LMDB database is replaced, anything else is an error.
        records: distinct keys (1 to 511 bytes; text is encoded as UTF-8) and values.

    Raises:
        DeviceError: the package lmdb is missing.
        NetError: a key is too long, empty, or repeated.
        FileExistsError: ``path`` exists and is not an LMDB database.
        OSError: the folder cannot be written; an existing database is unchanged.
    """
    lmdb, target = _library(path), Path(os.path.realpath(path))
    if target.exists() and not _is_database(target):
        raise FileExistsError(errno.EEXIST, "exists and is not an LMDB database; give another name", os.fspath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"the folder {str(target.parent)!r} does not exist", os.fspath(path))
    draft = target.with_name(f".{target.name}.draft-{secrets.token_hex(4)}")
    try:
        with lmdb.open(str(draft), map_size=_FIRST_MAP, sync=True) as environment:
            count = _write(lmdb, environment, records, os.fspath(path))
        if target.exists():
            os.replace(draft / _FILE, target / _FILE)
            (target / _LOCK).unlink(missing_ok=True)  # it belongs to the old file
        else:
            os.replace(draft, target)
        sync_folder(target)
        sync_folder(target.parent)
    except lmdb.Error as error:
        raise OSError(errno.EIO, f"cannot be written: {error}", os.fspath(path)) from error
    except OSError as error:
        if error.filename != str(draft):
            raise
        raise OSError(error.errno, f"cannot be written: {error.strerror}", os.fspath(path)) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return count


def _is_database(target: Path) -> bool:
    return target.is_dir() and {entry.name for entry in target.iterdir()} <= {_FILE, _LOCK}


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
                        raise NetError(f"{path!r}: the key {key!r} occurs twice; lmdb keeps one record per key")
            return
        except lmdb.MapFullError:
            environment.set_mapsize(2 * environment.info()["map_size"])
