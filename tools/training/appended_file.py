"""A file that a run appends to: what cannot be written, as where the disk is full, is written later."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["AppendedFile"]


class AppendedFile:
    """A file whose end is written piece by piece, each whole, whatever errors come in between.

    Args:
        path: the file; one that exists is continued.

    Attributes:
        unwritten: what the file lacks.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        self.unwritten = bytearray()

    def ends_with(self, data: bytes) -> bool:
        """Say whether the file is empty, not a file on a disk, or ends with these bytes."""
        size = os.fstat(self._number).st_size
        return not size or os.pread(self._number, len(data), max(size - len(data), 0)) == data

    def append(self, data: bytes) -> None:
        """Add ``data`` to what ``write`` writes."""
        self.unwritten += data

    def write(self) -> None:
        """Write what the file lacks.

        Raises:
            OSError: it cannot be written; the next call continues at the same byte.
        """
        while self.unwritten:
            del self.unwritten[: os.write(self._number, self.unwritten)]

    def close(self) -> None:
        """Close the file."""
        os.close(self._number)
