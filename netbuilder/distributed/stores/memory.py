"""A store in the memory of one process, for its threads."""

from __future__ import annotations

import threading
import time

from netbuilder.distributed.stores.store import (
    DEFAULT_TIMEOUT,
    Store,
    as_counter,
    check_key,
    check_timeout,
    check_value,
    not_there,
)
from netbuilder.proto.errors import DistributedError

__all__ = ["MemoryStore"]


class MemoryStore(Store):
    """A store of one process; threads that wait for a key wake up as soon as it is set."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._closed = False

    def __str__(self) -> str:
        return "the store in memory"

    def set(self, key: str, value: bytes) -> None:
        value = check_value(value)
        with self._changed:
            self._open_values()[check_key(key)] = value
            self._changed.notify_all()

    def peek(self, key: str) -> bytes | None:
        with self._changed:
            return self._open_values().get(check_key(key))

    def add(self, key: str, amount: int = 1) -> int:
        with self._changed:
            values = self._open_values()
            total = as_counter(key, values.get(check_key(key)), self) + amount
            values[key] = b"%d" % total
            self._changed.notify_all()
            return total

    def delete(self, key: str) -> bool:
        with self._changed:
            return self._open_values().pop(check_key(key), None) is not None

    def get(self, key: str, timeout: float = DEFAULT_TIMEOUT) -> bytes:
        end = time.monotonic() + check_timeout(timeout)
        with self._changed:
            while (value := self._open_values().get(check_key(key))) is None:
                left = end - time.monotonic()
                if left <= 0:
                    raise not_there(key, self, timeout)
                self._changed.wait(left)
            return value

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _open_values(self) -> dict[str, bytes]:
        if self._closed:
            raise DistributedError(f"{self} has been closed")
        return self._values
