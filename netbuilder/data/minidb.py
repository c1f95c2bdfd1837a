"""minidb, the simplest database: a file of records, each two lengths, a key and a value.

The lengths (of the key, of the value) are little-endian int32; nothing else is in the file.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator

from netbuilder.proto import NetError, ParseError
from netbuilder.proto.whole_file import whole_file

__all__ = ["read_minidb", "write_minidb"]

_LENGTHS = struct.Struct("<ii")
_LONGEST = 2**31 - 1

PathLike = str | os.PathLike[str]


def read_minidb(path: PathLike) -> Iterator[tuple[bytes, bytes]]:
    """Yield the records of a minidb file, key and value, in the order they were written.

    Raises:
        FileNotFoundError: there is no such file.
        ParseError: the file is cut short or no minidb file; the message names file, record and offset.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        offset = number = 0
        while offset < size:
            head = file.read(_LENGTHS.size)
            if len(head) < _LENGTHS.size:
                raise _broken(
                    path, number, offset, f"needs {_LENGTHS.size} bytes for its lengths, {len(head)} are left"
                )
            key_length, value_length = _LENGTHS.unpack(head)
            left = size - offset - _LENGTHS.size
            if key_length < 0 or value_length < 0 or key_length + value_length > left:
                raise _broken(
                    path, number, offset, f"says {key_length} bytes of key and {value_length} of value, {left} are left"
                )
            yield file.read(key_length), file.read(value_length)
            offset += _LENGTHS.size + key_length + value_length
            number += 1


def _broken(path: PathLike, number: int, offset: int, reason: str) -> ParseError:
    return ParseError(
        f"{os.fspath(path)!r}: cannot be read as minidb: record {number} at byte {offset} {reason}; "
        "the file is cut short or of another kind"
    )


def write_minidb(path: PathLike, records: Iterable[tuple[str | bytes, bytes]]) -> int:
    """Write records to a new file, whole or not at all; return how many.

    Args:
        path: the file; one of that name is replaced.
        records: keys (text is encoded as UTF-8) and values, below 2 GiB each.

    Raises:
        NetError: a key or value is too long.
        OSError: the file cannot be written; one that was there is as before.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     name = os.path.join(folder, "letters.minidb")
    ...     write_minidb(name, [("a", b"alpha"), ("b", b"beta")]), list(read_minidb(name))
    (2, [(b'a', b'alpha'), (b'b', b'beta')])
    """
    count = 0
    with whole_file(path) as file:
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
