"""Errors of the operating system in words: the file, what is wrong with it, and names that are similar."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from netbuilder.proto.suggestions import similar

__all__ = ["error_text", "no_such_file"]

_WORDS = {
    errno.EISDIR: "is a folder, not a file",
    errno.ENOTDIR: "a part of this path is a file, not a folder",
    errno.ELOOP: "is a symbolic link that leads back to itself",
}


def error_text(error: BaseException) -> str:
    """Return what an error says; of one of the operating system, without its number: the file, then what is wrong.

    >>> error_text(PermissionError(13, "Permission denied", "net.pb"))
    "'net.pb': permission denied"
    """
    if not isinstance(error, OSError) or error.errno is None or error.strerror is None:
        return str(error)
    reason, name = error.strerror, error.filename
    if reason == os.strerror(error.errno):  # the texts here say more than the system's
        if error.errno == errno.ENOENT and name is not None and not isinstance(name, int):
            reason = no_such_file(Path(os.fsdecode(name)))
        else:
            reason = _WORDS.get(error.errno, reason[:1].lower() + reason[1:])
    return reason if name is None else f"{os.fsdecode(name) if isinstance(name, bytes) else name!r}: {reason}"


def no_such_file(path: Path) -> str:
    """Return that a file does not exist, with up to three names in its folder that are similar or have its suffix."""
    folder, names = path.parent, []
    if path.is_symlink():
        return f"is a symbolic link to {os.readlink(path)!r}, which does not exist"
    if not folder.is_dir():
        return f"no such file: the folder {str(folder)!r} does not exist"
    with contextlib.suppress(OSError):  # a folder may be searched but not listed
        names = sorted(os.listdir(folder))
    near = similar(path.name, names) or [n for n in names if Path(n).suffix == path.suffix][:3]
    return (
        f"no such file; near it are {', '.join(near)}"
        if near
        else "no such file, and its folder has none with a similar name"
    )
