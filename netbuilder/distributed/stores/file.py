"""A store in a folder that all processes see, one file a key."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

from netbuilder.distributed.stores.store import Store, as_counter, check_key, check_value
from netbuilder.proto.errors import DistributedError
from netbuilder.proto.opened_files import open_file
from netbuilder.proto.os_errors import error_text

__all__ = ["FileStore"]

_LONGEST_NAME = 200  # bytes; file systems allow 255, and a draft's name has more at its end


class FileStore(Store):
    """A store in a folder; on several hosts it must be on a file system that all of them share.

    A key is one file, which appears whole or not at all. What is in the folder stays there when the run ends, so
    another run in the same folder needs another ``run_id``.

    Args:
        folder: made if it is not there.

    Raises:
        DistributedError: the folder cannot be made or written.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).absolute()
        with self._failing("make"):
            self.folder.mkdir(parents=True, exist_ok=True)

    def __str__(self) -> str:
        return f"the store in the folder {str(self.folder)!r}"

    def set(self, key: str, value: bytes) -> None:
        path = self._path(key)
        value = check_value(value)
        with self._failing("write into"):
            draft = path.with_name(f".{secrets.token_hex(8)}.draft")
            try:
                draft.write_bytes(value)
                os.replace(draft, path)
            except OSError:
                draft.unlink(missing_ok=True)
                raise

    def peek(self, key: str) -> bytes | None:
        path = self._path(key)
        with self._failing("read"):
            try:
                with open_file(path) as file:
                    return file.read()
            except FileNotFoundError:
                return None

    def add(self, key: str, amount: int = 1) -> int:
        with self._locked():
            total = as_counter(key, self.peek(key), self) + amount
            self.set(key, b"%d" % total)
            return total

    def delete(self, key: str) -> bool:
        path = self._path(key)
        with self._locked(), self._failing("remove from"):
            try:
                path.unlink()
            except FileNotFoundError:
                return False
            return True

    def _path(self, key: str) -> Path:
        name = urllib.parse.quote(check_key(key), safe="")
        if len(name) > _LONGEST_NAME:
            name = f"{name[:100]}-{hashlib.sha256(key.encode()).hexdigest()}"
        return self.folder / f"{name}.value"

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other threads and processes from changing a number that this one has read."""
        with self._failing("lock"):
            number = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            with self._failing("lock"):
                fcntl.flock(number, fcntl.LOCK_EX)
            yield
        finally:
            os.close(number)

    @contextlib.contextmanager
    def _failing(self, action: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DistributedError(f"{self}: cannot {action} it: {error_text(error)}") from error
