"""A store on a Redis server."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from netbuilder.distributed.stores.store import Store, check_key, check_value
from netbuilder.proto.errors import DeviceError, DistributedError, NetError
from netbuilder.proto.extras import how_to_install

__all__ = ["RedisStore"]

_CONNECT_TIMEOUT = 10.0  # seconds


class RedisStore(Store):
    """A store on a Redis server, through the package ``redis``.

    What is on the server stays there when the run ends, so another run needs another ``run_id`` or prefix.

    Args:
        host: name or address of the server.
        port: its port.
        prefix: text that all keys on the server begin with.
        password: None: the server asks for none.
        db: number of the database on the server.

    Raises:
        DeviceError: the package ``redis`` is not installed.
        DistributedError: the server does not answer.
    """

    def __init__(
        self, host: str, port: int = 6379, prefix: str = "", *, password: str | None = None, db: int = 0
    ) -> None:
        try:
            import redis
        except ImportError:
            raise DeviceError(
                f"a store on a Redis server needs the package 'redis'; {how_to_install('redis')}"
            ) from None
        self._given: dict[str, Any] = {
            "host": host,
            "port": int(port),
            "prefix": prefix,
            "password": password,
            "db": db,
        }
        self._name, self._prefix = f"the Redis server {host}:{port}", prefix
        self._error, self._wrong_type = redis.RedisError, redis.ResponseError
        self._client: Any = redis.Redis(
            host, int(port), db=db, password=password, socket_connect_timeout=_CONNECT_TIMEOUT
        )
        with self._failing():
            self._client.ping()

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(RedisStore, **self._given), ()  # another process opens a connection of its own

    def __str__(self) -> str:
        return self._name + (f", prefix {self._prefix!r}" if self._prefix else "")

    def set(self, key: str, value: bytes) -> None:
        with self._failing():
            self._client.set(self._key(key), check_value(value))

    def peek(self, key: str) -> bytes | None:
        with self._failing():
            return self._client.get(self._key(key))

    def add(self, key: str, amount: int = 1) -> int:
        name = self._key(key)
        with self._failing():
            try:
                return int(self._client.incrby(name, amount))
            except self._wrong_type as error:
                raise NetError(f"add: key {key!r} of {self}: {error}") from None

    def delete(self, key: str) -> bool:
        with self._failing():
            return bool(self._client.delete(self._key(key)))

    def close(self) -> None:
        self._client.close()

    def _key(self, key: str) -> str:
        return self._prefix + check_key(key)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except self._error as error:
            raise DistributedError(
                f"{self} does not answer: {error}; start it, or give the host and port of one that runs"
            ) from error
