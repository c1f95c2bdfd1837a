"""The interface of stores, which hold keys and values that the processes of a run share."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from netbuilder.proto.errors import NetError, StoreTimeoutError

__all__ = ["DEFAULT_TIMEOUT", "Store", "as_counter", "not_there"]

DEFAULT_TIMEOUT = 300.0
"""Seconds for which ``get`` and ``wait`` wait unless they are told."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05  # seconds between two looks at a store that cannot wake those who wait


class Store(ABC):
    """Keys with bytes that all processes of a run see; for ids, checks and health, never for tensors.

    A key is text that is not empty. ``str(store)`` says which store it is, for messages; it never shows a secret.
    Methods may be called from several threads. Used in a ``with`` block, it is closed at the end.

    Raises:
        DistributedError: any method, when the store does not answer or has been closed.
    """

    @abstractmethod
    def set(self, key: str, value: bytes) -> None:
        """Store bytes under a key, in place of what was there."""

    @abstractmethod
    def peek(self, key: str) -> bytes | None:
        """Return the bytes under a key; None if it is not there."""

    @abstractmethod
    def add(self, key: str, amount: int = 1) -> int:
        """Add to the number under a key and return the sum; no other process sees or changes it in between.

        A key that is not there counts as 0. The number is stored as decimal text.

        Raises:
            NetError: the key holds something else than a whole number.
        """

    @abstractmethod
    def delete(self, key: str) -> bool:
        """Remove a key; return whether it was there."""

    def close(self) -> None:  # noqa: B027 (most stores have nothing to give up)
        """Give up the connection to the store; what is in it stays. Closing twice does nothing."""

    def get(self, key: str, timeout: float = DEFAULT_TIMEOUT) -> bytes:
        """Return the bytes under a key; wait for the key if it is not there.

        Args:
            key: text.
            timeout: seconds to wait at most, 0 or more.

        Raises:
            StoreTimeoutError: the key is not there after this time.
        """
        end, pause = time.monotonic() + check_timeout(timeout), _FIRST_PAUSE
        while (value := self.peek(key)) is None:
            left = end - time.monotonic()
            if left <= 0:
                raise not_there(key, self, timeout)
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)
        return value

    def wait(self, keys: Iterable[str], timeout: float = DEFAULT_TIMEOUT) -> None:
        """Return as soon as all keys are there.

        Args:
            keys: texts.
            timeout: seconds to wait at most, 0 or more, for all of them together.

        Raises:
            StoreTimeoutError: keys are not there after this time; the message names them.
        """
        wanted = check_keys(keys)
        end = time.monotonic() + check_timeout(timeout)
        for key in wanted:
            try:
                self.get(key, max(0.0, end - time.monotonic()))
            except StoreTimeoutError:
                missing = [name for name in wanted if self.peek(name) is None]
                if missing:
                    raise not_there(missing, self, timeout) from None

    def with_prefix(self, text: str) -> Store:
        """Return a view of this store whose keys begin with ``text`` and a slash in this one."""
        return _Prefixed(self, check_key(text))

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Prefixed(Store):
    """A view of a store whose keys have a prefix; closing it leaves the store open."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store, self._prefix = store, prefix

    def __str__(self) -> str:
        return f"{self._store}, prefix {self._prefix!r}"

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{check_key(key)}"

    def set(self, key: str, value: bytes) -> None:
        self._store.set(self._key(key), value)

    def peek(self, key: str) -> bytes | None:
        return self._store.peek(self._key(key))

    def add(self, key: str, amount: int = 1) -> int:
        return self._store.add(self._key(key), amount)

    def delete(self, key: str) -> bool:
        return self._store.delete(self._key(key))

    def get(self, key: str, timeout: float = DEFAULT_TIMEOUT) -> bytes:
        return self._store.get(self._key(key), timeout)


def check_key(key: Any) -> str:
    """Return the key; raise NetError if it is not a text, or empty."""
    if not isinstance(key, str) or not key:
        raise NetError(f"a key of a store must be a text that is not empty, got {key!r}")
    return key


def check_keys(keys: Iterable[str]) -> list[str]:
    """Return the keys as a list; raise NetError if they are a single text or not keys."""
    if isinstance(keys, (str, bytes)):
        raise NetError(f"keys must be a list of texts, got the single text {keys!r}")
    return [check_key(key) for key in keys]


def check_value(value: Any) -> bytes:
    """Return the value as bytes; raise NetError if it is not bytes."""
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise NetError(f"a store holds bytes, got {type(value).__name__} {value!r:.80}; encode it")
    return bytes(value)


def check_timeout(timeout: Any) -> float:
    """Return the time; raise NetError if it is not a number of seconds, 0 or more."""
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout >= 0:
        raise NetError(f"timeout must be a number of seconds, 0 or more, got {timeout!r}")
    return float(timeout)


def as_counter(key: str, value: bytes | None, store: Store) -> int:
    """Return the number that a key holds; 0 without one.

    Raises:
        NetError: the bytes are not a whole number in decimal.
    """
    try:
        return int(value or b"0")
    except ValueError:
        raise NetError(f"add: key {key!r} of {store} holds {value!r:.80}, which is not a whole number") from None


def not_there(keys: str | list[str], store: Store, timeout: float) -> StoreTimeoutError:
    """Return the error for keys that have not appeared in time."""
    names = [keys] if isinstance(keys, str) else keys
    shown = ", ".join(map(repr, names[:8])) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    some = "key" if len(names) == 1 else "keys"
    return StoreTimeoutError(
        f"{some} {shown} did not appear in {store} within {timeout:g} s: the process that sets "
        f"{'it' if len(names) == 1 else 'them'} has not started, is slower, has failed, or uses another store or run_id"
    )
