"""Files that a process keeps for later ones: they are read whole or not at all, whatever has been written there."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

__all__ = ["read_kept", "replace_file", "write_kept"]

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
