"""Files that appear whole or not at all: written beside their place, forced to the disk, then renamed."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = ["DRAFT", "check_place", "is_draft", "sync_folder", "whole_file", "write_text"]

PathLike = str | os.PathLike[str]

DRAFT = ".draft-"
"""What stands between a file's name and a random number in the name of what is being written."""


@contextlib.contextmanager
def whole_file(path: PathLike) -> Iterator[BinaryIO]:
    """Give a file to write into; when the block ends without an error, it takes its place under ``path``.

    What is written reaches the disk before the new name does, so that after a crash there is the old file or the
    new one. After an error, also of the disk, the draft is removed and what was there before is as it was.

    Args:
        path: one of that name is replaced; a link to a file stays one. Into a device or a pipe it is written at once.

    Raises:
        FileNotFoundError: the folder is not there.
        IsADirectoryError: ``path`` is a folder.
        OSError: the file cannot be written.
    """
    target = check_place(path)
    if target.exists() and not target.is_file():  # as /dev/stdout: nothing could take its place
        with open(target, "wb") as file:
            yield file
        return
    draft = target.with_name(f".{target.name}{DRAFT}{secrets.token_hex(4)}")
    try:
        with open(draft, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        if isinstance(error, OSError) and error.filename in (None, str(draft)) and error.errno is not None:
            raise OSError(error.errno, f"cannot be written: {error.strerror}", os.fspath(path)) from error
        raise
    sync_folder(target.parent)


def check_place(path: PathLike) -> Path:
    """Return the place of a file that is to be written: ``path``, or what it links to.

    Raises:
        FileNotFoundError: the folder is not there.
        IsADirectoryError: ``path`` is a folder.
    """
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"the folder {str(target.parent)!r} does not exist", os.fspath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder; give the name of a file", os.fspath(path))
    return target


def write_text(path: PathLike, text: str) -> None:
    """Write a file of text, in UTF-8, whole or not at all; one of that name is replaced.

    Raises:
        OSError: it cannot be written; what was there is as before.
    """
    with whole_file(path) as file:
        file.write(text.encode())


def is_draft(name: str) -> bool:
    """Say whether a file's name is that of a draft, which a process that was killed has left behind.

    >>> is_draft(".step-00000100.minidb.draft-0a1b2c3d"), is_draft("step-00000100.minidb")
    (True, False)
    """
    return name.startswith(".") and DRAFT in name


def sync_folder(folder: Path) -> None:
    """Force the folder's new entry to the disk, where the system can."""
    with contextlib.suppress(OSError):  # not every file system syncs folders
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
