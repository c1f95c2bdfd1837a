"""Files of data sets, fetched once into a cache and checked by size, first bytes and checksum."""

from __future__ import annotations

import hashlib
import os
import shutil
import urllib.parse
from pathlib import Path

from netbuilder.proto import NetError, ParseError
from netbuilder.proto.opened_files import open_file
from netbuilder.proto.os_errors import said_of
from netbuilder.proto.whole_file import whole_file

__all__ = ["fetch_file"]

_TIMEOUT = 30.0  # seconds to wait for the server


def fetch_file(
    url: str,
    *,
    size: int | None = None,
    sha256: str | None = None,
    magic: bytes | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> Path:
    """Return the path of a file in the cache; the first call fetches it.

    Args:
        url: where it is, by http, https or file; its last part is its name in the cache.
        size: in bytes, if it is known.
        sha256: of the whole file, in hexadecimal digits.
        magic: its first bytes, by which formats such as IDX and gzip are recognized.
        folder: the cache; None: ``data`` in the folder that the variable ``NETBUILDER_CACHE`` names, or in
            ``~/.cache/netbuilder``.

    Raises:
        NetError: the URL names no file, or the file cannot be fetched, for instance without a network; the message says
            where to put a copy.
        ParseError: the file differs from its description; it is not kept.
    """
    parts = urllib.parse.urlsplit(url)
    name = os.path.basename(urllib.parse.unquote(parts.path))
    if parts.scheme not in ("http", "https", "file") or not name:
        raise NetError(f"fetch_file needs the http, https or file URL of a file, got {url!r}")
    place = Path(folder) if folder is not None else _cache()
    target = place / name
    if target.is_file():
        if problem := _problem(target, size, sha256, magic):
            raise ParseError(f"{said_of(str(target), problem)}; remove it to have it fetched again from {url}")
        return target
    from http.client import HTTPException
    from urllib.error import URLError  # imports ssl and http, which takes 50 ms and is rarely needed
    from urllib.request import urlopen

    place.mkdir(parents=True, exist_ok=True)
    try:
        with whole_file(target) as file, urlopen(url, timeout=_TIMEOUT) as answer:
            shutil.copyfileobj(answer, file)
            announced = answer.headers.get("Content-Length")
            if announced is not None and file.tell() != int(announced):
                raise ConnectionError(f"the answer ended after {file.tell()} of {announced} bytes")
    except (URLError, HTTPException, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", None) or error
        raise NetError(
            f"{url} cannot be fetched ({reason}); without a network, put the file at {str(target)!r}"
        ) from error
    if problem := _problem(target, size, sha256, magic):
        target.unlink()
        raise ParseError(f"{url} {problem}")
    return target


def _cache() -> Path:
    named = os.environ.get("NETBUILDER_CACHE")
    return (Path(named) if named else Path.home() / ".cache" / "netbuilder") / "data"


def _problem(path: Path, size: int | None, sha256: str | None, magic: bytes | None) -> str | None:
    """Return how a file differs from its description; None if it does not."""
    found = path.stat().st_size
    if size is not None and found != size:
        return f"has {found} bytes instead of {size}"
    with open_file(path) as file:
        begin = file.read(len(magic or b""))
        if magic is not None and begin != magic:
            return f"begins with {begin.hex(' ') or 'nothing'} instead of {magic.hex(' ')}"
        if sha256 is not None:
            digest = hashlib.sha256(begin)
            for piece in iter(lambda: file.read(1 << 20), b""):
                digest.update(piece)
            if digest.hexdigest() != sha256.lower():
                return f"has the SHA-256 sum {digest.hexdigest()} instead of {sha256}"
    return None
