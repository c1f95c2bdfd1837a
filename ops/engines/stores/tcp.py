"""A store that one process serves to the others over TCP, with the standard library alone."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
import struct
import threading
import time
import weakref
from typing import Any

from netbuilder.ops.engines.stores.memory import MemoryStore
from netbuilder.ops.engines.stores.store import (
    DEFAULT_TIMEOUT,
    Store,
    check_key,
    check_timeout,
    check_value,
    not_there,
)
from netbuilder.proto.errors import DistributedError, NetError, StoreTimeoutError
from netbuilder.proto.os_errors import error_text

__all__ = ["TcpStore", "TcpStoreServer"]

# A request: what to do, lengths of key and value, and a number (seconds, or the amount to add). An answer: status and
# length of what follows. A connection begins with a challenge of 32 bytes, and its answer, made with the secret.
_REQUEST, _ANSWER = struct.Struct("!cIQd"), struct.Struct("!cQ")
_SET, _PEEK, _ADD, _DELETE, _GET = b"s", b"p", b"a", b"d", b"g"
_VALUE, _NOTHING, _REFUSED = b"v", b"n", b"r"
_NONCE, _LONGEST_KEY, _LONGEST_VALUE = 32, 1 << 16, 1 << 28
_SLICE = 5.0  # seconds for which the server lets a client wait, before the client asks again
_SILENCE = 15.0  # seconds without an answer to a request that need not wait, after which the server counts as gone


class TcpStoreServer:
    """Serves a store in the memory of this process to those who know the secret.

    Args:
        host: address to listen on; "" is all addresses of this host.
        port: 0: any free one; ``port`` says which.
        secret: bytes that a client must know; None: 32 random ones, see ``secret``.

    Raises:
        DistributedError: the address is taken, or not one of this host.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0, *, secret: bytes | None = None) -> None:
        self.secret = secrets.token_bytes(32) if secret is None else secret
        self.store = MemoryStore()
        try:
            self._listener = socket.create_server((host, port), backlog=1024)
        except OSError as error:
            raise DistributedError(
                f"the store cannot listen on {host or 'any address'}, port {port}: {error_text(error)}; give another "
                "port"
            ) from error
        self.port: int = self._listener.getsockname()[1]
        self._connections: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        threading.Thread(target=self._accept, name=f"store-{self.port}", daemon=True).start()

    def close(self) -> None:
        """Stop serving; clients that wait get an error."""
        with _ignored():
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        self.store.close()
        for connection in list(self._connections):
            with _ignored():
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), name="store-client", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, _ignored():
            _prepare(connection)
            connection.settimeout(_SILENCE)
            nonce = os.urandom(_NONCE)
            connection.sendall(nonce)
            known = hmac.compare_digest(_receive(connection, 32), _proof(self.secret, nonce))
            connection.sendall(_VALUE if known else _REFUSED)
            connection.settimeout(None)
            while known and self._answer(connection):
                pass

    def _answer(self, connection: socket.socket) -> bool:
        kind, key_length, length, number = _REQUEST.unpack(_receive(connection, _REQUEST.size))
        if key_length > _LONGEST_KEY or length > _LONGEST_VALUE:
            return False
        key, value = _receive(connection, key_length).decode(), _receive(connection, length)
        try:
            status, answer = self._do(kind, key, value, number)
        except NetError as error:
            status, answer = _REFUSED, str(error).encode()
        connection.sendall(_ANSWER.pack(status, len(answer)) + answer)
        return True

    def _do(self, kind: bytes, key: str, value: bytes, number: float) -> tuple[bytes, bytes]:
        found: bytes | None = b""
        if kind == _SET:
            self.store.set(key, value)
        elif kind == _ADD:
            found = b"%d" % self.store.add(key, int(value))
        elif kind == _DELETE:
            found = b"1" if self.store.delete(key) else b"0"
        else:
            found = self.store.peek(key)
            if found is None and kind == _GET:
                try:
                    found = self.store.get(key, min(number, _SLICE))
                except StoreTimeoutError:
                    found = None
        return (_NOTHING, b"") if found is None else (_VALUE, found)


class TcpStore(Store):
    """A client of a ``TcpStoreServer``. Each thread that uses it has a connection of its own.

    Args:
        host: name or address of the host that serves the store.
        port: its port.
        secret: what the server asks for.
        connect_timeout: seconds for which to try again while nobody listens there.

    Raises:
        DistributedError: nobody listens there, or the secret is wrong.
    """

    def __init__(self, host: str, port: int, *, secret: bytes, connect_timeout: float = 30.0) -> None:
        self.host, self.port, self._secret = host, port, secret
        self._connect_timeout = check_timeout(connect_timeout)
        self._local, self._lock, self._process = threading.local(), threading.Lock(), os.getpid()
        self._all: set[socket.socket] = set()
        self._closed = False
        weakref.finalize(self, _close_all, self._all)
        self._connection()

    def __str__(self) -> str:
        return f"the store tcp://{self.host}:{self.port}"

    def set(self, key: str, value: bytes) -> None:
        self._ask(_SET, key, check_value(value))

    def peek(self, key: str) -> bytes | None:
        return self._ask(_PEEK, key)

    def add(self, key: str, amount: int = 1) -> int:
        return int(self._ask(_ADD, key, b"%d" % amount) or 0)

    def delete(self, key: str) -> bool:
        return self._ask(_DELETE, key) == b"1"

    def get(self, key: str, timeout: float = DEFAULT_TIMEOUT) -> bytes:
        end = time.monotonic() + check_timeout(timeout)
        while True:
            left = max(0.0, end - time.monotonic())
            value = self._ask(_GET, key, number=left)
            if value is not None:
                return value
            if not left:
                raise not_there(key, self, timeout)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for connection in self._all:
                with _ignored():
                    connection.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for an answer
            _close_all(self._all)

    def _ask(self, kind: bytes, key: str, value: bytes = b"", number: float = 0.0) -> bytes | None:
        name = check_key(key).encode()
        if len(name) > _LONGEST_KEY or len(value) > _LONGEST_VALUE:
            raise NetError(
                f"{self}: a key may have {_LONGEST_KEY} bytes and a value {_LONGEST_VALUE}, "
                f"got {len(name)} and {len(value)} for key {key!r:.80}"
            )
        connection = self._connection()
        try:
            connection.settimeout(_SILENCE + min(number, _SLICE))
            connection.sendall(_REQUEST.pack(kind, len(name), len(value), number) + name + value)
            status, length = _ANSWER.unpack(_receive(connection, _ANSWER.size))
            answer = _receive(connection, length)
        except OSError as error:
            with self._lock:
                connection.close()
                self._all.discard(connection)
            raise self._gone(error) from error
        if status == _REFUSED:
            raise NetError(f"{self}: {answer.decode()}")
        return None if status == _NOTHING else answer

    def _connection(self) -> socket.socket:
        if self._closed:
            raise DistributedError(f"{self} has been closed")
        if self._process != os.getpid():  # a fork may not share its parent's connections
            self._local, self._lock, self._process = threading.local(), threading.Lock(), os.getpid()
            _close_all(self._all)
        found: socket.socket | None = getattr(self._local, "connection", None)
        if found is None or found.fileno() < 0:
            found = self._local.connection = self._connect()
            with self._lock:
                self._all.add(found)
        return found

    def _connect(self) -> socket.socket:
        end, pause = time.monotonic() + self._connect_timeout, 0.02
        while True:
            try:
                connection = socket.create_connection((self.host, self.port), timeout=_SILENCE)
                break
            except OSError as error:
                if time.monotonic() > end:
                    raise DistributedError(
                        f"{self}: nobody answers there after {self._connect_timeout:g} s ({error_text(error)}); is "
                        "the process that serves it running, is the address right, and does a firewall let the port "
                        "through?"
                    ) from error
                time.sleep(pause)
                pause = min(2 * pause, 0.5)
        try:
            _prepare(connection)
            connection.sendall(_proof(self._secret, _receive(connection, _NONCE)))
            accepted = _receive(connection, 1) == _VALUE
        except OSError as error:
            connection.close()
            raise self._gone(error) from error
        if not accepted:
            connection.close()
            raise DistributedError(f"{self}: the secret is wrong; another run's store listens there")
        return connection

    def _gone(self, error: OSError) -> DistributedError:
        if isinstance(error, TimeoutError):
            return DistributedError(
                f"{self} has not answered for {_SILENCE:g} s: the process that serves it is stopped, or its host gone"
            )
        return DistributedError(
            f"{self} does not answer any more ({error_text(error)}): the process that serves it has ended"
        )


def _close_all(connections: set[socket.socket]) -> None:
    for connection in connections:
        connection.close()
    connections.clear()


def _prepare(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _proof(secret: bytes, nonce: bytes) -> bytes:
    return hmac.new(secret, nonce, hashlib.sha256).digest()


def _receive(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise ConnectionResetError("the connection was closed")
        parts += part
    return bytes(parts)


def _ignored() -> Any:
    """Errors of a connection, or of a store, that ends."""
    import contextlib

    return contextlib.suppress(OSError, DistributedError, UnicodeDecodeError)
