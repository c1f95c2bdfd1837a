"""Stores: keys and bytes that the processes of a run share, in memory, in a folder, on Redis, or over TCP."""

from __future__ import annotations

import os
import urllib.parse

from netbuilder.distributed.stores.file import FileStore
from netbuilder.distributed.stores.memory import MemoryStore
from netbuilder.distributed.stores.redis import RedisStore
from netbuilder.distributed.stores.secret import secret_in
from netbuilder.distributed.stores.store import DEFAULT_TIMEOUT, Store
from netbuilder.distributed.stores.tcp import TcpStore
from netbuilder.distributed.stores.tcp_server import TcpStoreServer
from netbuilder.proto.errors import NetError

__all__ = [
    "DEFAULT_TIMEOUT",
    "FileStore",
    "MemoryStore",
    "RedisStore",
    "Store",
    "TcpStore",
    "TcpStoreServer",
    "open_store",
]


def open_store(address: str, *, secret: bytes | None = None) -> Store:
    """Open the store that an address names.

    Args:
        address: ``file:FOLDER``, ``redis://[:PASSWORD@]HOST[:PORT][/DB]``, ``tcp://HOST:PORT`` or ``memory:``.
        secret: for ``tcp:``, what the server of the store knows, too; None: NETBUILDER_STORE_SECRET.

    Raises:
        NetError: the address is none of these, or the secret is missing or too short.
        DeviceError: a package is missing.
        DistributedError: the store does not answer.
    """
    parts = urllib.parse.urlsplit(address)
    try:
        port, database = parts.port, int(parts.path.strip("/") or 0) if parts.scheme == "redis" else 0
    except ValueError as error:
        raise NetError(f"store {address!r}: {error}") from None
    host = parts.hostname or "127.0.0.1"
    if parts.scheme == "file" and (parts.netloc + parts.path):
        return FileStore(parts.netloc + urllib.parse.unquote(parts.path))
    if parts.scheme == "redis":
        return RedisStore(host, port or 6379, password=parts.password, db=database)
    if parts.scheme == "tcp" and port is not None:
        return TcpStore(host, port, secret=secret_in(os.environ) if secret is None else secret)
    if parts.scheme == "memory":
        return MemoryStore()
    raise NetError(
        f"store {address!r} must be file:FOLDER, redis://HOST:PORT, tcp://HOST:PORT or memory:, such as file:/tmp/run7"
    )
