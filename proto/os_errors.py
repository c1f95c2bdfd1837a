"""Errors of the operating system in words: the file, what is wrong with it, and names that are similar."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from pathlib import Path

from netbuilder.proto.suggestions import similar

__all__ = ["NO_FILE", "error_text", "is_out_of_memory", "make_folder", "no_such_file", "said_of"]

_OUT_OF_MEMORY = re.compile(
    "cannot allocate memory|failed to map segment|cannot create shared object descriptor|can't start new thread|"
    "out of memory|cannot create cache for search path|cannot change memory protections|mmap.*failed|"
    "error return without exception set|returned NULL without setting an exception",
    re.IGNORECASE,
)
"""What CPython, the dynamic loader and operating systems say where memory is short."""

NO_FILE = "is a folder, not a file"

_WORDS = {
    errno.EISDIR: NO_FILE,
    errno.ENOTDIR: "a part of this path is a file, not a folder",
    errno.ELOOP: "is a symbolic link that leads back to itself",
}

_PREDICATE = re.compile("(is|are|has|does|must|begins) ")

_NAMED = 3  # files in a message


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
            path = os.fsdecode(name)
            reason = no_such_file(Path(path), "folder" if path.endswith(os.sep) else "file")
        else:
            reason = _WORDS.get(error.errno, reason[:1].lower() + reason[1:])
    return reason if name is None else said_of(os.fsdecode(name) if isinstance(name, bytes) else name, reason)


def said_of(name: object, reason: str) -> str:
    """Return what is wrong with a file after its name, and after a colon unless it begins with a verb.

    >>> said_of("net.pb", "permission denied"), said_of("nets", NO_FILE)
    ("'net.pb': permission denied", "'nets' is a folder, not a file")
    """
    return f"{name!r}{' ' if _PREDICATE.match(reason) else ': '}{reason}"


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one that it was raised from, says that memory is short.

    >>> is_out_of_memory(ImportError("libz.so.1: failed to map segment from shared object"))
    True
    >>> is_out_of_memory(SystemError("error return without exception set"))
    True
    """
    if error is None:
        return False
    if isinstance(error, MemoryError) or isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    kinds = (ImportError, OSError, RuntimeError, SystemError)
    said = isinstance(error, kinds) and _OUT_OF_MEMORY.search(str(error)) is not None
    return said or is_out_of_memory(error.__cause__ or error.__context__)


def make_folder(path: str | os.PathLike[str]) -> Path:
    """Make a folder, and those that it is in, unless it exists; return its path.

    Raises:
        NotADirectoryError: it, or a part of its path, is a file.
        OSError: it cannot be made.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        file = next((part for part in (folder, *folder.parents) if part.exists() and not part.is_dir()), folder)
        subject = "" if file == folder else f"{str(file)!r} "
        raise NotADirectoryError(errno.ENOTDIR, f"{subject}is a file, not a folder", str(folder)) from None
    return folder


def no_such_file(path: Path, kind: str = "file") -> str:
    """Return that there is no such file or folder, with names in its folder: similar ones, or of the same suffix."""
    folder, names = path.parent, []
    if path.is_symlink():
        return f"is a symbolic link to {os.readlink(path)!r}, which does not exist"
    if not folder.is_dir():
        return f"no such {kind}: the folder {str(folder)!r} does not exist"
    with contextlib.suppress(OSError):  # a folder may be searched but not listed
        names = sorted(os.listdir(folder))
    if near := [name for name in similar(path.name, names) if similar(path.stem, [Path(name).stem])]:
        return f"no such {kind}; near it {'is' if len(near) == 1 else 'are'} {', '.join(near)}"
    if others := [name for name in names if path.suffix and Path(name).suffix == path.suffix]:
        more = ", ..." if others[_NAMED:] else ""
        return f"no such {kind}; its folder's {path.suffix} files are {', '.join(others[:_NAMED])}{more}"
    return f"no such {kind}, and its folder has none with a similar name"
