"""Files that a process keeps for later ones: they are read whole or not at all, whatever has been written there.

Their folder stays bounded: files that nothing has read for a long time are removed, such as those for another version
of a library or another machine, and, where there are too many bytes, those that were read longest ago.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

__all__ = [
    "MOST_BYTES",
    "UNUSED_SECONDS",
    "mark_of",
    "mark_of_sources",
    "read_kept",
    "replace_file",
    "trim_kept",
    "write_kept",
]

MOST_BYTES = 1 << 29
"""Bytes of the files of one folder."""

_DAY = 86400.0
UNUSED_SECONDS = 90 * _DAY
"""After so long without being read, a file is removed."""

_DIGEST = hashlib.sha256().digest_size
_BEGUN = ".begun-"  # in the name of a file that is being written
_OFTEN = 16  # a folder is trimmed whenever this process has written this part of the bound

_written: dict[Path, int] = {}  # folder -> bytes that this process has written there since it trimmed it


def read_kept(path: Path | None) -> bytes | None:
    """Return what ``write_kept`` has written; None if there is no such file, or it is damaged."""
    if path is None:
        return None
    try:
        content = path.read_bytes()
    except OSError:
        return None
    if hashlib.sha256(content[_DIGEST:]).digest() != content[:_DIGEST]:
        return None
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > _DAY:
            os.utime(path)  # its time is that of its last use, within a day
    return content[_DIGEST:]


def write_kept(path: Path | None, content: bytes) -> None:
    """Write a file with its checksum. Where that is not possible, nothing is kept: each process does the work."""
    if path is None:
        return
    with contextlib.suppress(OSError):
        replace_file(path, hashlib.sha256(content).digest() + content)
        written = _written.get(path.parent, MOST_BYTES) + len(content)
        if written > MOST_BYTES // _OFTEN:
            trim_kept(path.parent, path.suffix)
            written = 0
        _written[path.parent] = written


def trim_kept(folder: Path, suffix: str) -> None:
    """Remove files that nothing has used for long, and more, those used longest ago first, to keep to the bounds.

    Other processes may read, write and trim at the same time: who has not read a file yet does not find it.

    Args:
        folder: of the files; others in it are left alone.
        suffix: of their names; what a process that was killed has left of one is removed after a day.
    """
    now, kept = time.time(), list[tuple[float, int, str]]()
    with os.scandir(folder) as entries:
        for entry in entries:
            whole = entry.name.endswith(suffix)
            if not whole and f"{suffix}{_BEGUN}" not in entry.name:
                continue
            with contextlib.suppress(OSError):  # another process has removed it
                if entry.is_file(follow_symlinks=False):
                    found = entry.stat(follow_symlinks=False)
                    if now - found.st_mtime > (UNUSED_SECONDS if whole else _DAY):
                        os.unlink(entry)
                    elif whole:
                        kept.append((found.st_mtime, found.st_size, entry.path))
    nbytes = sum(size for _, size, _ in kept)
    for _, size, path in sorted(kept):
        if nbytes <= MOST_BYTES:
            return
        nbytes -= size
        with contextlib.suppress(OSError):
            os.unlink(path)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file, whose folder need not exist: other processes see the old content or the new one, no part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name + _BEGUN)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def mark_of(package: str) -> str:
    """Return a text that differs between installed versions of a package, which is not imported; "" if there is none.

    ``importlib.metadata``, which knows the version, takes longer to import than much of what is kept takes to make.
    """
    found = importlib.util.find_spec(package)
    return "" if found is None or found.origin is None else _mark(found.origin, os.stat(found.origin))


def mark_of_sources(folders: Iterable[str]) -> str:
    """Return a text that differs when a file of Python is changed in folders, or in those inside them."""
    marks, waiting = list[str](), list(folders)
    while waiting:
        for entry in os.scandir(waiting.pop()):
            if entry.name.endswith(".py"):
                marks.append(_mark(entry.path, entry.stat()))
            elif entry.name != "__pycache__" and entry.is_dir():
                waiting.append(entry.path)
    return hashlib.sha256("\n".join(sorted(marks)).encode()).hexdigest()


def _mark(path: str, status: os.stat_result) -> str:
    return f"{path} {status.st_mtime_ns} {status.st_size}"
