"""Names of a database's classes, in a text file next to it; names and records match even after a process was killed.

Two files cannot be replaced in one step. Before the new database takes the place of the old one, the new names are
written to a third file together with a checksum of the new records. If that file exists, a reader compares the
checksum with the database: if they match, the names are those in that file, otherwise those in the text file.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from netbuilder.data.db_reader import read_records, write_records
from netbuilder.data.record_list import database_type
from netbuilder.proto import NetError, ParseError
from netbuilder.proto.structured_text import parse_json
from netbuilder.proto.whole_file import write_text

__all__ = ["class_names_file", "pending_file", "read_class_names", "write_named_records"]

PathLike = str | os.PathLike[str]


def class_names_file(path: PathLike) -> Path:
    """Return the file with the names of a database's classes, a line each from class 0 on."""
    return _next_to(path, ".classes.txt")


def pending_file(path: PathLike) -> Path:
    """Return the file with the names of a database that is being replaced, and the checksum of its records."""
    return _next_to(path, ".classes.pending.json")


def _next_to(path: PathLike, ending: str) -> Path:
    return Path(f"{os.fspath(path).rstrip(os.sep)}{ending}")


def read_class_names(path: PathLike, db_type: str | None = None) -> tuple[str, ...]:
    """Return the names of a database's classes from class 0 on; empty if no file has them.

    Args:
        path: of the database.
        db_type: its type; None: recognized by its files.

    Raises:
        ParseError: a file with names is damaged.
    """
    pending = _read_pending(path)
    if pending is not None and pending[0] == _checksum_of(path, db_type):
        return pending[1]
    file = class_names_file(path)
    if not file.is_file():
        return ()
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ParseError(f"{str(file)!r}: byte {error.start} is not UTF-8 text; save the names in UTF-8") from None
    return tuple(lines if lines[-1] else lines[:-1])


def write_named_records(
    path: PathLike, db_type: str, records: Iterable[tuple[str | bytes, bytes]], classes: Sequence[str]
) -> int:
    """Write a database like ``write_records``, and the names of its classes next to it; return the number of records.

    A process that is killed meanwhile leaves either the old database with its names, or the new one with its names.

    Args:
        path, db_type, records: see ``write_records``.
        classes: names from class 0 on; if empty, an existing file with names is removed.

    Raises:
        NetError: there are no records (an existing database is unchanged); or see ``write_records``.
        DeviceError, OSError: see ``write_records``.
    """
    _finish(path, db_type)
    checksum = _Checksum()

    def announced() -> Iterator[tuple[str | bytes, bytes]]:
        for key, value in records:
            checksum.add(key.encode() if isinstance(key, str) else key, value)
            yield key, value
        if not checksum.count:
            raise NetError(f"{os.fspath(path)!r}: there are no records to write")
        pending = {"records": str(checksum), "classes": list(classes)}
        write_text(pending_file(path), json.dumps(pending, ensure_ascii=False) + "\n")

    count = write_records(path, db_type, announced())  # replaces the old database after the last record
    _finish(path, db_type)
    return count


def _finish(path: PathLike, db_type: str) -> None:
    """Complete a replacement: write pending names to the text file if they belong to the existing database."""
    if not pending_file(path).is_file():
        return
    try:
        pending = _read_pending(path)
        belongs = pending is not None and pending[0] == _checksum_of(path, db_type)
    except ParseError:  # of files that are about to be replaced
        belongs = False
    if belongs and pending is not None:
        if pending[1]:
            write_text(class_names_file(path), "".join(f"{name}\n" for name in pending[1]))
        else:
            class_names_file(path).unlink(missing_ok=True)
    pending_file(path).unlink()


def _read_pending(path: PathLike) -> tuple[str, tuple[str, ...]] | None:
    """Return the checksum and the names of a replacement that has begun; None: there is none."""
    file = pending_file(path)
    if not file.is_file():
        return None
    try:
        found = parse_json(file.read_bytes())
        return str(found["records"]), tuple(map(str, found["classes"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ParseError(
            f"{str(file)!r} is damaged ({error!r}); it holds the names of the classes of a database that was being "
            "replaced: remove it, and write the database again"
        ) from None


class _Checksum:
    """A checksum of records in any order: a minidb keeps the order in which they come, LMDB sorts them."""

    def __init__(self) -> None:
        self.count = self._sum = 0

    def add(self, key: bytes, value: bytes) -> None:
        self.count += 1
        self._sum = (self._sum + zlib.crc32(value, zlib.crc32(key))) % (1 << 64)

    def __str__(self) -> str:
        return f"{self.count}:{self._sum:016x}"


def _checksum_of(path: PathLike, db_type: str | None) -> str | None:
    """Return the checksum of a database; None: there is none."""
    kind = db_type or database_type(path)
    if kind is None or not os.path.exists(path):
        return None
    checksum = _Checksum()
    for key, value in read_records(path, kind):
        checksum.add(key, value)
    return str(checksum)
