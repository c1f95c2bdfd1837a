"""Files that a process keeps for later ones: they are read whole or not at all, whatever has been written there."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

__all__ = ["keep_latest", "mark_of", "mark_of_sources", "read_kept", "replace_file", "write_kept"]

_DIGEST = hashlib.sha256().digest_size


def read_kept(path: Path | None) -> bytes | None:
    """Return what ``write_kept`` has written; None if there is no such file, or it is damaged."""
    if path is None:
        return None
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return content[_DIGEST:] if hashlib.sha256(content[_DIGEST:]).digest() == content[:_DIGEST] else None


def write_kept(path: Path | None, content: bytes) -> None:
    """Write a file with its checksum. Where that is not possible, nothing is kept: each process does the work."""
    if path is not None:
        with contextlib.suppress(OSError):
            replace_file(path, hashlib.sha256(content).digest() + content)


def keep_latest(folder: Path, most: int) -> None:
    """Remove the files of a folder that were written longest ago, as far as all together have more bytes than that."""
    with contextlib.suppress(OSError):
        files = [(entry.stat(), entry.path) for entry in os.scandir(folder)]
        for status, path in sorted(files, key=lambda each: each[0].st_mtime_ns, reverse=True):
            most -= status.st_size
            if most < 0:
                os.unlink(path)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file, whose folder need not exist: other processes see the old content or the new one, no part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
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
