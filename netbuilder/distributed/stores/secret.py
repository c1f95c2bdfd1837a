"""The secret of a store over TCP: what it must be, in the environment or in a file that nobody else can read."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from netbuilder.proto.errors import NetError
from netbuilder.proto.opened_files import open_file
from netbuilder.proto.os_errors import error_text

__all__ = ["SECRET", "SECRET_FILE", "check_secret", "read_secret", "secret_in"]

SECRET = "NETBUILDER_STORE_SECRET"
"""Variable with the secret of a store over TCP, which netbuilder-launch gives its processes."""
SECRET_FILE = "NETBUILDER_STORE_SECRET_FILE"
"""Variable with the path of a file with the secret, where that variable is not set."""

_LEAST, _LONGEST = 16, 4096
_MAKE = 'python -c "import secrets; print(secrets.token_hex(16))" makes one'


def check_secret(secret: bytes | None, source: str = "the secret of a store over TCP") -> bytes:
    """Return the secret.

    Args:
        secret: 16 to 4,096 bytes, none of them 0, without white space at its ends.
        source: what to call it in errors, which never show the secret itself.

    Raises:
        NetError: there is none, or it is none of these.
    """
    if not secret:
        raise NetError(
            f"{source} is missing: all processes of a job give the same one, by which they know one another; set "
            f"{SECRET}, or {SECRET_FILE} to the path of a file with it; {_MAKE}"
        )
    if not isinstance(secret, bytes):
        raise NetError(f"{source} must be bytes, got {type(secret).__name__}")
    if not _LEAST <= len(secret) <= _LONGEST:
        raise NetError(f"{source} must have {_LEAST} to {_LONGEST} characters, got {len(secret)}; {_MAKE}")
    if b"\0" in secret or secret != secret.strip():
        raise NetError(f"{source} must have no zero bytes, and no white space at its ends; {_MAKE}")
    return secret


def secret_in(environment: Mapping[str, str]) -> bytes | None:
    """Return the secret in NETBUILDER_STORE_SECRET, or in the file that NETBUILDER_STORE_SECRET_FILE names.

    None if neither is set, or both are empty.

    Raises:
        NetError: the secret is too short, or others can read the file.
        OSError: the file cannot be read.
    """
    if text := environment.get(SECRET):
        return check_secret(os.fsencode(text), f"{SECRET} in the environment")
    path = environment.get(SECRET_FILE)
    return read_secret(path) if path else None


def read_secret(path: str | os.PathLike[str]) -> bytes:
    """Return the secret in a file, without white space at its ends.

    As ssh does with keys, it refuses a file that others can read: one of this user that is open to anybody else, one of
    root that is open to all (a group may read it, as containers mount secrets), and one of another user.

    Raises:
        NetError: others can read or write the file, it is a pipe, or it holds no secret.
        OSError: it cannot be read.
    """
    name = os.fspath(path)
    with open_file(path) as file:
        _check_private(name, os.fstat(file.fileno()))
        try:
            text = file.read(_LONGEST + 1)
        except OSError as error:
            raise NetError(f"the secret file {name!r} cannot be read: {error_text(error)}") from error
    return check_secret(text.strip(), f"the secret in {name!r}")


def _check_private(name: str, found: os.stat_result) -> None:
    own = found.st_uid == os.geteuid()
    if not own and found.st_uid != 0:
        raise NetError(f"the secret file {name!r} belongs to another user, who knows what it holds; use your own")
    mode = stat.S_IMODE(found.st_mode)
    if mode & (0o077 if own else 0o027):
        raise NetError(
            f"the secret file {name!r} is open to others: its mode is {mode:04o}; chmod 600 {name}, and write another "
            "secret into it if somebody may have read it"
        )
