"""minidb, the simplest database: a file of records, each two lengths, a key and a value.

The lengths (of the key, of the value) are little-endian int32; nothing else is in the file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from netbuilder.proto import NetError, ParseError
from netbuilder.proto.file_kinds import kind_of
from netbuilder.proto.opened_files import open_descriptor, open_file
from netbuilder.proto.os_errors import no_such_file, said_of
from netbuilder.proto.whole_file import whole_file

__all__ = ["append_minidb", "minidb_offsets", "read_minidb", "read_minidb_at", "write_minidb"]

_LENGTHS = struct.Struct("<ii")
_LOOKED_AT = 4096  # bytes at the beginning of a file that say what it is
_LONGEST = 2**31 - 1
_USUAL_KEY = 56  # bytes; most keys are not longer

PathLike = str | os.PathLike[str]


def read_minidb(path: PathLike, passed_over: Callable[[bytes], bool] | None = None) -> Iterator[tuple[bytes, bytes]]:
    """Yield the records of a minidb file, key and value, in the order they were written.

    Args:
        path: the file.
        passed_over: says by its key whether a record is not wanted; its value is not read. None: all are.

    Raises:
        FileNotFoundError: there is no such file.
        IsADirectoryError: it is a folder.
        ParseError: the file is truncated or not a minidb file; the message names file, record and offset.
    """
    _require_file(path)
    number = open_descriptor(path)
    try:  # a file descriptor, not a file object: no ResourceWarning if a suspended generator is collected
        with os.fdopen(number, "rb", closefd=False) as file:
            offset = count = 0
            end = _committed(path)
            while (lengths := _lengths(file, path, count, offset, end)) is not None:
                key = file.read(lengths[0])
                if passed_over is not None and passed_over(key):
                    file.seek(lengths[1], os.SEEK_CUR)
                else:
                    yield key, file.read(lengths[1])
                offset += _LENGTHS.size + sum(lengths)
                count += 1
    finally:
        os.close(number)


def _require_file(path: PathLike) -> None:
    """Raise an error for a folder, and for a pipe, which would be waited for."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise FileNotFoundError(said_of(os.fspath(path), no_such_file(Path(path)))) from None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "is a folder, not a minidb file", os.fspath(path))
    if not stat.S_ISREG(mode):
        raise ParseError(f"{os.fspath(path)!r} cannot be read as minidb: it is not a regular file")


def minidb_offsets(path: PathLike) -> list[int]:
    """Return where the records of a minidb file begin, in bytes.

    Raises:
        As ``read_minidb``.
    """
    offsets: list[int] = []
    _require_file(path)
    with open_file(path) as file:
        offset, end = 0, _committed(path)
        while (lengths := _lengths(file, path, len(offsets), offset, end)) is not None:
            offsets.append(offset)
            offset = file.seek(sum(lengths), os.SEEK_CUR)
    return offsets


def read_minidb_at(number: int, offset: int, path: PathLike) -> tuple[bytes, bytes]:
    """Return the record, key and value, at ``offset`` of an open file; thread-safe.

    Args:
        number: the file descriptor.
        offset: where the record begins, in bytes.
        path: name of the file in errors.

    Raises:
        ParseError: the file has been changed since its offsets were read.
    """
    begin = os.pread(number, _LENGTHS.size + _USUAL_KEY, offset)
    key_length, value_length = _LENGTHS.unpack_from(begin) if len(begin) >= _LENGTHS.size else (-1, -1)
    if min(key_length, value_length) >= 0 and key_length + value_length <= os.fstat(number).st_size - offset:
        key = begin[_LENGTHS.size : _LENGTHS.size + key_length]
        if len(key) < key_length:
            key = os.pread(number, key_length, offset + _LENGTHS.size)
        value = os.pread(number, value_length, offset + _LENGTHS.size + key_length)
        if len(key) == key_length and len(value) == value_length:
            return key, value
    raise ParseError(
        f"{os.fspath(path)!r} no longer has a minidb record at byte {offset}; the file was changed after it was opened"
    )


def _lengths(file: BinaryIO, path: PathLike, number: int, offset: int, end: int | None) -> tuple[int, int] | None:
    """Return the lengths of the key and value of the next record, None at the end of the file (or at ``end``)."""
    size = os.fstat(file.fileno()).st_size
    if offset >= size or end is not None and offset >= end:
        return None
    head = file.read(_LENGTHS.size)
    if len(head) < _LENGTHS.size:
        _require_append(path, number, offset, f"needs {_LENGTHS.size} bytes for its lengths, {len(head)} are left")
        return None
    key_length, value_length = _LENGTHS.unpack(head)
    left = size - offset - _LENGTHS.size
    if key_length < 0 or value_length < 0 or key_length + value_length > left:
        _require_append(
            path, number, offset, f"announces {key_length} bytes of key and {value_length} of value, {left} are left"
        )
        return None
    return key_length, value_length


def _require_append(path: PathLike, number: int, offset: int, reason: str) -> None:
    """Raise ParseError for an incomplete record, unless it is one that is being appended."""
    end = _committed(path)
    if end is not None and offset >= end:
        return
    with open_file(path) as file:
        kind = "" if number else kind_of(file.read(_LOOKED_AT))
    raise ParseError(
        f"{os.fspath(path)!r} cannot be read as minidb: record {number} at byte {offset} {reason}; "
        + (f"this is {kind}" if kind else "the file is truncated or not a minidb")
    )


def write_minidb(
    path: PathLike,
    records: Iterable[tuple[str | bytes, bytes]],
    first: Callable[[], tuple[str | bytes, bytes]] | None = None,
) -> int:
    """Write records to a new file, whole or not at all; return their number.

    Args:
        path: the file; an existing one is replaced.
        records: keys (text is encoded as UTF-8) and values, below 2 GiB each.
        first: called after they have been written; returns a record that takes the place of the first one, of the same
            size, where it depends on the others.

    Raises:
        NetError: a key or value is too long.
        OSError: the file cannot be written; an existing one is unchanged.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     name = os.path.join(folder, "letters.minidb")
    ...     write_minidb(name, [("a", b"alpha"), ("b", b"beta")]), list(read_minidb(name))
    (2, [(b'a', b'alpha'), (b'b', b'beta')])
    """
    with whole_file(path) as file:
        count = _write(file, path, records)
        if first is not None:
            file.seek(0)
            _write(file, path, [first()])
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_mark(path))  # of the file that was replaced
    return count


def _write(file: BinaryIO, path: PathLike, records: Iterable[tuple[str | bytes, bytes]]) -> int:
    count = 0
    for given, value in records:
        key = given.encode() if isinstance(given, str) else given
        if len(key) > _LONGEST or len(value) > _LONGEST:
            raise NetError(
                f"{os.fspath(path)!r}: record {count} has {len(key)} bytes of key and {len(value)} of value; "
                f"minidb holds at most {_LONGEST} each"
            )
        file.write(_LENGTHS.pack(len(key), len(value)))
        file.write(key)
        file.write(value)
        count += 1
    return count


def append_minidb(path: PathLike, records: Iterable[tuple[str | bytes, bytes]]) -> int:
    """Append records to a file, all or none even if the process is killed meanwhile; return their number.

    During the call, a second file next to the first stores the size up to which the first is valid. If a killed process
    left such a file, the next call removes it, and truncates the first to that size.

    Args:
        path: the file; it is created if it does not exist.
        records: see ``write_minidb``.

    Raises:
        NetError: a key or value is too long.
        OSError: the file cannot be written; it is unchanged.
    """
    target = os.path.realpath(path)
    if not os.path.exists(target):
        return write_minidb(target, records)
    mark = _mark(target)
    if (end := _committed(target)) is not None:
        os.truncate(target, end)
    with open(target, "ab") as file:
        size = file.tell()
        with open(f"{mark}-", "w", encoding="ascii") as draft:
            draft.write(f"{size} {os.fstat(file.fileno()).st_ino}")
        os.replace(f"{mark}-", mark)
        try:
            count = _write(file, path, records)
            file.flush()
        except BaseException:  # such as a full disk
            with contextlib.suppress(OSError):
                file.close()
            os.truncate(target, size)
            os.unlink(mark)
            raise
    os.unlink(mark)
    return count


def _mark(path: PathLike) -> str:
    """Return the name of the file that stores the valid size of a database during ``append_minidb``."""
    folder, name = os.path.split(os.path.realpath(path))
    return os.path.join(folder, f".{name}.append")


def _committed(path: PathLike) -> int | None:
    """Return the size up to which a database is valid that is being appended to, None for any other."""
    try:
        with open_file(_mark(path)) as file:
            size, number = map(int, file.read().split())
        return size if os.stat(path).st_ino == number else None  # else the file was replaced meanwhile
    except (OSError, ValueError):
        return None
