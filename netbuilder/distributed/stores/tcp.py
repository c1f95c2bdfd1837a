"""The client of a store that one process serves to the others over TCP, with the standard library alone."""

from __future__ import annotations

import contextlib
import functools
import hmac
import os
import select
import socket
import threading
import time
import weakref
from typing import Any

from netbuilder.distributed.stores import tcp_session as wire
from netbuilder.distributed.stores.secret import check_secret
from netbuilder.distributed.stores.store import (
    DEFAULT_TIMEOUT,
    Store,
    check_key,
    check_timeout,
    check_value,
    not_there,
)
from netbuilder.proto.errors import DistributedError, NetError
from netbuilder.proto.os_errors import error_text

__all__ = ["TcpStore"]

_PART, _LARGE_PART = 1 << 14, 1 << 20  # bytes that are received at once, and of a message that is larger
_AGAIN = 2.0  # seconds for which to try again after the server has been there: one that is not has ended
_SILENCE = 15.0  # seconds without an answer to a request that need not wait, after which the server counts as gone


class TcpStore(Store):
    """A client of a ``TcpStoreServer``; all threads of a process that use it share one connection.

    Each end proves to the other that it knows the secret, and a message that somebody has changed, repeated or left out
    on the way is an error. What is stored is not encrypted.

    Args:
        host: name or address of the host that serves the store.
        port: its port.
        secret: what the server knows, too; 16 bytes or more.
        connect_timeout: seconds for which to try again while nobody listens there.

    Raises:
        DistributedError: nobody listens there, or the secret is wrong on either side.
        NetError: there is no secret, or it is too short.
    """

    def __init__(self, host: str, port: int, *, secret: bytes | None, connect_timeout: float = 30.0) -> None:
        self.host, self.port = host, port
        self._secret = check_secret(secret, f"the secret of {self}")
        self._connect_timeout = check_timeout(connect_timeout)
        self._lock, self._process = threading.Lock(), os.getpid()
        self._open: set[_Connection] = set()  # one at most
        self._closed = False
        weakref.finalize(self, _close_all, self._open)
        self._connection()

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process opens a connection of its own; what is pickled holds the secret."""
        made = functools.partial(
            TcpStore, self.host, self.port, secret=self._secret, connect_timeout=self._connect_timeout
        )
        return made, ()

    def __str__(self) -> str:
        return f"the store tcp://{self.host}:{self.port}"

    @property
    def closed(self) -> bool:
        """Whether ``close`` has been called."""
        return self._closed

    def set(self, key: str, value: bytes) -> None:
        self._ask(wire.SET, key, check_value(value))

    def peek(self, key: str) -> bytes | None:
        return self._ask(wire.PEEK, key)

    def add(self, key: str, amount: int = 1) -> int:
        return int(self._ask(wire.ADD, key, b"%d" % amount) or 0)

    def delete(self, key: str) -> bool:
        return self._ask(wire.DELETE, key) == b"1"

    def get(self, key: str, timeout: float = DEFAULT_TIMEOUT) -> bytes:
        end = time.monotonic() + check_timeout(timeout)
        while True:
            left = max(0.0, end - time.monotonic())
            value = self._ask(wire.GET, key, seconds=left)
            if value is not None:
                return value
            if not left:
                raise not_there(key, self, timeout)

    def close(self) -> None:
        self._closed = True
        _close_all(self._open)

    def _ask(self, kind: bytes, key: str, value: bytes = b"", seconds: float = 0.0) -> bytes | None:
        name = check_key(key).encode()
        if len(name) > wire.LONGEST_KEY or len(value) > wire.LONGEST_VALUE:
            raise NetError(
                f"{self}: a key may have {wire.LONGEST_KEY} bytes and a value {wire.LONGEST_VALUE}, "
                f"got {len(name)} and {len(value)} for key {key!r:.80}"
            )
        request = wire.REQUEST.pack(kind, len(name), len(value), seconds) + name + value
        connection = self._connection()
        try:
            status, answer = connection.ask(request, _SILENCE + min(seconds, wire.SLICE))
        except OSError as error:
            raise self._gone(error) from error
        if status == wire.REFUSED:
            raise NetError(f"{self}: {answer.decode()}")
        return None if status == wire.NOTHING else answer

    def _connection(self) -> _Connection:
        if self._process != os.getpid():  # a fork may not share its parent's connection
            self._lock, self._process = threading.Lock(), os.getpid()
            _close_all(self._open)
        with self._lock:
            if self._closed:
                raise DistributedError(f"{self} has been closed")
            for found in list(self._open):
                if found.error is None:
                    return found
            _close_all(self._open)
            made = self._connect()
            self._open.add(made)
        if self._closed:
            _close_all(self._open)
        return made

    def _connect(self) -> _Connection:
        """Return a connection to a server that has proved that it knows the secret, and to which this one has."""
        end, pause = time.monotonic() + self._connect_timeout, 0.02
        while True:
            try:
                connection = socket.create_connection((self.host, self.port), timeout=_SILENCE)
            except (OSError, UnicodeError, OverflowError) as error:  # the last two: a name or port that cannot be one
                why = error_text(error) if isinstance(error, OSError) else str(error)
                problem = DistributedError(
                    f"{self}: nobody answers there after {self._connect_timeout:g} s ({why}); is the process that "
                    "serves it running, is the address right, and does a firewall let the port through?"
                )
                problem.__cause__ = error
            else:
                try:
                    made = _Connection(connection, self._meet(connection))
                    self._connect_timeout = min(self._connect_timeout, _AGAIN)
                    return made
                except TimeoutError as error:
                    connection.close()
                    raise self._gone(error) from error
                except OSError as error:  # ended before it has said what is wrong: it has many to let in
                    connection.close()
                    problem = self._gone(error)
                    problem.__cause__ = error
                except BaseException:
                    connection.close()
                    raise
            if time.monotonic() > end:
                raise problem
            time.sleep(pause)
            pause = min(2 * pause, 0.5)

    def _meet(self, connection: socket.socket) -> wire.Session:
        wire.prepare(connection)
        hello = _receive(connection, len(wire.HELLO) + wire.NONCE, wire.HELLO)
        if not hello.startswith(wire.HELLO):
            raise DistributedError(
                f"{self}: what listens there is no store of this netbuilder: it begins with {hello!r:.40}; is the port "
                "right, and the version of netbuilder there the same?"
            )
        nonce = os.urandom(wire.NONCE)
        session = wire.Session(self._secret, hello[len(wire.HELLO) :], nonce)
        connection.sendall(nonce + session.client_proof)
        if _receive(connection, 1) != wire.KNOWN:
            raise DistributedError(f"{self}: the secret is wrong; another run's store listens there")
        if not hmac.compare_digest(_receive(connection, wire.TAG), session.server_proof):
            raise DistributedError(
                f"{self}: what listens there does not know the secret, and only says so: it is not trusted, and has "
                "got nothing; look which process has the port"
            )
        return session

    def _gone(self, error: OSError) -> DistributedError:
        if isinstance(error, _ChangedError):
            return DistributedError(f"{self}: {error}")
        if isinstance(error, TimeoutError):
            return DistributedError(
                f"{self} has not answered for {_SILENCE:g} s: the process that serves it is stopped, or its host gone"
            )
        return DistributedError(
            f"{self} does not answer any more ({error_text(error)}): the process that serves it has ended"
        )


class _ChangedError(OSError):
    """A message is not what the other end has sent."""

    def __init__(self, which: str) -> None:
        super().__init__(
            f"{which} was changed, repeated or left out on the way: somebody between this process and the store does "
            "that, or answers in its place; the connection has ended"
        )


class _Connection:
    """A connection whose other end is known. Threads that wait for answers take turns in reading for all of them."""

    def __init__(self, connection: socket.socket, session: wire.Session) -> None:
        connection.setblocking(False)
        self._socket, self._to_server, self._to_client = connection, session.to_server, session.to_client
        self._process = os.getpid()
        self._sending, self._changed = threading.Lock(), threading.Condition()
        self._answers: dict[int, tuple[bytes, bytes] | None] = {}  # of those who wait; None: it has not come yet
        self._reader: int | None = None  # the thread that reads
        self._received = bytearray()
        self.error: OSError | None = None

    def ask(self, request: bytes, seconds: float) -> tuple[bytes, bytes]:
        """Send a request, and return status and bytes of its answer.

        Raises:
            TimeoutError: it has not come after this time.
            OSError: the connection has ended.
        """
        end = time.monotonic() + seconds
        number = self._send(request)
        try:
            while (answer := self._wait(number, end)) is None:
                self._read(end)
            return answer
        finally:
            self._leave(number)

    def close(self) -> None:
        """End the connection; threads that wait get an error."""
        if self._process == os.getpid():
            self._fail(ConnectionAbortedError("the connection was closed"))
        else:
            self._socket.close()  # the copy of a forked process, whose parent goes on using it

    def _send(self, request: bytes) -> int:
        with self._sending:
            self._check()
            number = self._to_server.count
            with self._changed:
                self._answers[number] = None
            try:
                self._send_all(request + self._to_server.make(request))
            except BaseException as error:  # Ctrl-C, too: half a request may have gone
                self._fail(error)
                raise
            return number

    def _send_all(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                if not _ready(self._socket, select.POLLOUT, _SILENCE):
                    raise TimeoutError from None

    def _wait(self, number: int, end: float) -> tuple[bytes, bytes] | None:
        """Return an answer; None once it is this thread's turn to read."""
        own = threading.get_ident()
        with self._changed:
            while (answer := self._answers[number]) is None and self._reader not in (None, own):
                left = end - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                self._changed.wait(left)
            if answer is None:
                self._check()
                self._reader = own
            return answer

    def _read(self, end: float) -> None:
        """Receive what has come until the time, and hand out the answers in it."""
        if not _ready(self._socket, select.POLLIN, end - time.monotonic()):
            raise TimeoutError
        try:
            part = self._socket.recv(_LARGE_PART if len(self._received) >= _PART else _PART)
            if not part:
                raise ConnectionResetError("the connection was closed")
            self._received += part
            while self._take_answer():
                pass
        except BaseException as error:  # Ctrl-C, too: what has come may be lost
            self._fail(error)
            raise

    def _take_answer(self) -> bool:
        """Hand out the first answer that has been received, if all of it has; return whether it has."""
        if len(self._received) < wire.ANSWER.size:
            return False
        status, number, length = wire.ANSWER.unpack_from(self._received)
        size = wire.ANSWER.size + length
        if length > wire.LONGEST_VALUE:
            raise _ChangedError("an answer")
        if len(self._received) < size + wire.TAG:
            return False
        message, tag = bytes(self._received[:size]), bytes(self._received[size : size + wire.TAG])
        del self._received[: size + wire.TAG]
        if not self._to_client.fits(message, tag):
            raise _ChangedError("an answer")
        if status == wire.CHANGED:
            raise _ChangedError("a request")
        with self._changed:
            if number in self._answers:
                self._answers[number] = status, message[wire.ANSWER.size :]
                self._changed.notify_all()
        return True

    def _leave(self, number: int) -> None:
        """Wait no more for an answer, which is ignored if it comes, and let another thread read."""
        with self._changed:
            self._answers.pop(number, None)
            if self._reader == threading.get_ident():
                self._reader = None
                if self.error is not None:
                    self._socket.close()
            self._changed.notify_all()

    def _check(self) -> None:
        if self.error is not None:
            raise self.error

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if self.error is None:
                interrupted = ConnectionAbortedError("an exchange with it was interrupted")
                self.error = error if isinstance(error, OSError) else interrupted
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads
            if self._reader is None:
                self._socket.close()
            self._changed.notify_all()


def _ready(connection: socket.socket, event: int, seconds: float) -> bool:
    """Wait until a connection can be read or written, for at most this time; return whether it can."""
    poll = select.poll()
    poll.register(connection, event)
    return bool(poll.poll(max(0.0, seconds) * 1000))


def _close_all(connections: set[_Connection]) -> None:
    for connection in list(connections):
        connection.close()
    connections.clear()


def _receive(connection: socket.socket, count: int, begins: bytes = b"") -> bytes:
    """Return the next bytes; fewer where they do not begin as they must."""
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(count - len(parts))
        if not part:
            raise ConnectionResetError("the connection was closed")
        parts += part
        if parts[: len(begins)] != begins[: len(parts)]:
            break
    return bytes(parts)
