"""Files that are opened for reading; errors name them, and pipes and devices are refused.

What starts with a process imports this, not the files of messages, which need protobuf.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TextIO

from netbuilder.proto.errors import DeviceError, NetError, OperatorError, ParseError
from netbuilder.proto.os_errors import NO_FILE, no_such_file, said_of

__all__ = ["naming", "open_descriptor", "open_file", "open_lines", "read_bytes", "read_text"]

PathLike = str | os.PathLike[str]


@contextlib.contextmanager
def naming(path: PathLike) -> Iterator[None]:
    """Put a file's name before the message of each of our errors that leaves the block without it.

    Errors of the operating system without a file get it as ``filename``.

    >>> with naming("lenet.pb"):
    ...     raise NetError("net 'lenet' reads 'x', which nothing makes")
    Traceback (most recent call last):
        ...
    netbuilder.proto.errors.NetError: 'lenet.pb': net 'lenet' reads 'x', which nothing makes
    """
    name = os.fspath(path)
    try:
        yield
    except (NetError, DeviceError, OperatorError) as error:
        if name in str(error):
            raise
        kind = OperatorError if isinstance(error, OperatorError) else type(error)
        raise kind(f"{name!r}: {error}") from error
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = name
        raise


@contextlib.contextmanager
def open_file(path: PathLike) -> Iterator[BinaryIO]:
    """Open a file to read its bytes; pipes and devices, which may never end, are refused instead of waited for.

    Raises:
        ParseError: it is a pipe or a device.
        OSError: it cannot be opened, or read; the error has its name.
    """
    with naming(path), open(path, "rb", opener=lambda path, _: open_descriptor(path)) as file:
        yield file


@contextlib.contextmanager
def open_lines(path: PathLike) -> Iterator[TextIO]:
    """Open a file to read its text in UTF-8, line by line.

    Raises:
        As ``open_file``; UnicodeDecodeError, when a line is read that is not UTF-8.
    """
    with open_file(path) as file, io.TextIOWrapper(file, encoding="utf-8") as text:
        yield text


def open_descriptor(path: PathLike) -> int:
    """Return a file descriptor to read the bytes of a file, which the caller closes.

    Raises:
        ParseError: it is a pipe or a device, which may never end.
        OSError: it cannot be opened.
    """
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe is not waited for
    mode = os.fstat(number).st_mode
    if stat.S_ISREG(mode):
        return number
    os.close(number)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, NO_FILE, os.fspath(path))
    kind = "a pipe" if stat.S_ISFIFO(mode) else "a device"
    raise ParseError(f"{os.fspath(path)!r} is {kind}, not a file; write what comes from it into one")


def read_bytes(path: PathLike, *, most: int | None = None) -> bytes:
    """Return what a file contains.

    Args:
        path: of the file.
        most: bytes that it may have; None: any number.

    Raises:
        FileNotFoundError: there is no such file; the message lists those with similar names.
        ParseError: it is larger, or is a pipe or a device; nothing of it is read.
        OSError: it cannot be read; the error has its name.
    """
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            if most is not None and size > most:
                raise ParseError(f"{os.fspath(path)!r} has {size} bytes; it may have {most}")
            return file.read()
    except FileNotFoundError:
        raise FileNotFoundError(said_of(os.fspath(path), no_such_file(Path(path)))) from None


def read_text(path: PathLike, *, most: int | None = None) -> str:
    """Return the text of a file in UTF-8.

    Args:
        path: of the file.
        most: bytes that it may have; None: any number.

    Raises:
        FileNotFoundError: there is no such file.
        ParseError: it is not in UTF-8, is larger, or is a pipe or a device.
        OSError: it cannot be read.
    """
    data = read_bytes(path, most=most)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ParseError(f"{os.fspath(path)!r}: byte {error.start} of {len(data)} is no UTF-8 text") from None
