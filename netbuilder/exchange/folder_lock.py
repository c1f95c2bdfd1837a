"""A lock on a folder: of several processes that write checkpoints into it, only one does so at a time.

The lock is a file ``.lock`` in the folder, locked by ``flock``, which ends with the process, also if it is killed, and
which NFS passes on to other hosts. Where the file system has no such locks, the existence of the file is the lock; one
that a killed process has left on the same host is replaced.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from netbuilder.proto import NetError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.opened_files import read_bytes
from netbuilder.proto.structured_text import parse_json

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["LOCK", "folder_lock"]

LOCK, _EXISTS = ".lock", ".lock-held"
"""Names of the file that is locked, and of that whose existence is the lock."""

_HELD = (errno.EACCES, errno.EAGAIN)
_PAUSE = 0.05  # seconds between two attempts
_PATIENCE = 600.0  # seconds that one write waits for those of others


@dataclass
class _Held:
    """A folder that this process has locked: how often, and the descriptor of the file, if that is locked."""

    count: int
    number: int | None


_own: dict[str, _Held] = {}
_guard = threading.RLock()


@contextlib.contextmanager
def folder_lock(folder: str | os.PathLike[str], *, run: bool) -> Iterator[None]:
    """Lock a folder; a process that has locked it may do so again.

    Args:
        folder: it exists.
        run: for a whole run, which other processes do not wait for; otherwise for one write, which they do.

    Raises:
        NetError: another process has locked it for its run; the message names it.
        OSError: the file of the lock cannot be written.
    """
    place = os.path.realpath(folder)
    with _guard:
        if place not in _own:
            _own[place] = _Held(0, _wait_for(Path(place), run))
        _own[place].count += 1
    try:
        with contextlib.nullcontext() if run else _guard:  # the threads of this process write one after another
            yield
    finally:
        with _guard:
            held = _own[place]
            held.count -= 1
            if not held.count:
                del _own[place]
                _unlock(Path(place), held.number)


def _unlock(folder: Path, number: int | None) -> None:
    for name in (LOCK, _EXISTS) if number is None else (LOCK,):
        (folder / name).unlink(missing_ok=True)  # before others can lock it: they look whether it is still there
    if number is not None:
        os.close(number)


def _wait_for(folder: Path, run: bool) -> int | None:
    """Lock a folder; return the descriptor of the file, or None where its existence is the lock."""
    until = time.monotonic() + _PATIENCE
    while True:
        number = _lock(folder / LOCK, run)
        if number is not None and number >= 0:
            return number
        by_existence = number is None
        if by_existence and _make(folder / _EXISTS, run):
            return None
        file = folder / (_EXISTS if by_existence else LOCK)
        holder = _holder(file)
        if holder.get("run") or time.monotonic() > until:
            raise NetError(
                f"{os.fspath(folder)!r}: another run writes its checkpoints here: process {holder.get('pid', '?')} on "
                f"{holder.get('host', '?')}, since {holder.get('since', '?')}; wait for its end, or give another "
                f"folder; if it is certain that it no longer runs, remove {os.fspath(file)!r}"
            )
        time.sleep(_PAUSE)


def _lock(path: Path, run: bool) -> int | None:
    """Lock the file; return its descriptor; -1: another process has it; None: files cannot be locked here."""
    number = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if fcntl is None:
            raise OSError(errno.ENOLCK, "no locks of files")
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(number)
        return -1 if error.errno in _HELD else None
    if not _is(number, path):  # its process has removed it meanwhile
        os.close(number)
        return -1
    os.ftruncate(number, 0)
    os.pwrite(number, _text(run), 0)
    return number


def _make(path: Path, run: bool) -> bool:
    """Make the file whose existence is the lock, in place of one of a process of this host that is gone."""
    holder = _holder(path)
    if holder.get("host") == socket.gethostname() and not _lives(holder.get("pid")):
        aside = path.with_name(f"{path.name}-{os.getpid()}")
        with contextlib.suppress(OSError):
            os.rename(path, aside)
            if _holder(aside) != holder:  # that of another process, which was as quick
                os.rename(aside, path)
            aside.unlink(missing_ok=True)
    try:
        with open(path, "xb") as file:
            file.write(_text(run))
    except FileExistsError:
        return False
    return True


def _text(run: bool) -> bytes:
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since, "run": run}).encode()


def _holder(path: Path) -> dict[str, Any]:
    """Return what the file of a lock says of the process that has it."""
    try:
        found = parse_json(read_bytes(path))
    except (OSError, NetError):
        return {}
    return found if isinstance(found, dict) else {}


def _is(number: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(number), os.stat(path))
    except OSError:
        return False


def _lives(pid: Any) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (OSError, TypeError, ValueError):
        return True
    return True
