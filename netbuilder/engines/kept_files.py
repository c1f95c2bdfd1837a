"""A folder of files that processes keep for one another, of bounded size: what was not used for longest is removed."""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path

__all__ = ["LIMIT", "bound_once", "remove_oldest"]

LIMIT = 256 << 20
"""Bytes of the files of a folder."""


@functools.cache
def bound_once(folder: Path) -> None:
    """Bound the size of a folder, once in a process."""
    remove_oldest(folder, LIMIT)


def remove_oldest(folder: Path, limit: int) -> int:
    """Remove files of a folder if they are larger than ``limit`` bytes together, until they are three quarters of it.

    Those that were neither read nor written for longest go first; systems note the time of reading by the day. Another
    process may do the same, or use a file that is removed: it has it open, or makes it anew.

    Returns:
        how many files were removed.
    """
    found = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    found.append((max(status.st_atime, status.st_mtime), status.st_size, entry.path))
    size = sum(each for _, each, _ in found)
    if size <= limit:
        return 0
    removed = 0
    for _, each, path in sorted(found):
        if size <= limit * 3 // 4:
            break
        size -= each
        with contextlib.suppress(OSError):
            os.remove(path)
            removed += 1
    return removed
