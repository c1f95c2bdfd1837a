"""The server of a store over TCP: one thread for all connections."""

from __future__ import annotations

import contextlib
import errno
import heapq
import hmac
import itertools
import logging
import os
import secrets
import selectors
import socket
import struct
import time
from collections import defaultdict
from dataclasses import field

from netbuilder.distributed.stores import tcp_session as wire
from netbuilder.distributed.stores.memory import MemoryStore
from netbuilder.distributed.stores.secret import check_secret
from netbuilder.proto.errors import DistributedError, NetError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.os_errors import error_text
from netbuilder.proto.threads import Thread

__all__ = ["STRANGERS", "Client", "TcpStoreServer"]

_log = logging.getLogger("netbuilder")

STRANGERS = 128  # connections that have not proved the secret, at most
PATIENCE, LEAST_PATIENCE = 10.0, 1.0  # seconds that one may take for it, and when there are as many as may be
_PAUSE = 0.2  # seconds without accepting after the system could not give another connection
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PART, _LARGE_PART = 1 << 14, 1 << 20  # bytes that are received at once, and of a message that is larger
_UNREAD = 1 << 26  # bytes of answers that a client has not read, after which its requests wait
_CLOSING = 5.0  # seconds to wait for the thread


@dataclass(eq=False)
class Client:
    """A connection: what has come and is to be sent, and its session once it has proved the secret."""

    socket: socket.socket
    address: str
    nonce: bytes = field(default_factory=lambda: os.urandom(wire.NONCE))
    since: float = field(default_factory=time.monotonic)
    received: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    session: wire.Session | None = None
    ends: bool = False  # once what is unsent has been sent


class TcpStoreServer:
    """Serves a store in the memory of this process to those who know the secret, and proves that it knows it, too.

    Connections that have not proved the secret are few, and short: there may be 128, for 10 s each, or for 1 s when
    more want to come. Where the process may open no more files, new ones wait.

    Args:
        host: address to listen on; "" is all addresses of this host.
        port: 0: any free one; ``port`` says which.
        secret: 16 bytes or more that a client must know; None: random ones, see ``secret``.

    Raises:
        DistributedError: the address is taken, or not one of this host.
        NetError: the secret is too short.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0, *, secret: bytes | None = None) -> None:
        self.secret = secrets.token_hex(32).encode() if secret is None else check_secret(secret)
        self.store = MemoryStore()
        try:
            self._listener = socket.create_server((host, port), backlog=1024)
        except (OSError, OverflowError) as error:
            reason = error_text(error) if isinstance(error, OSError) else str(error)
            raise DistributedError(
                f"the store cannot listen on {host or 'any address'}, port {port}: {reason}; give another port"
            ) from error
        self.port: int = self._listener.getsockname()[1]
        self._listener.setblocking(False)
        self.strangers: dict[Client, None] = {}  # the oldest first
        self._clients = 0
        self._waiting: defaultdict[str, list[tuple[Client, int]]] = defaultdict(list)
        self._ends: list[tuple[float, int, str, Client, int]] = []  # a heap: until when a request waits for its key
        self._order = itertools.count()
        self._listens, self._accept_at, self._said = False, 0.0, set[str]()
        self._closed = False
        self.selector = selectors.DefaultSelector()
        self._bell, bell = socket.socketpair()
        self.selector.register(bell, selectors.EVENT_READ, None)
        self._thread = Thread(target=self._run, args=(bell,), name=f"store-{self.port}", daemon=True)
        self._thread.start()

    @property
    def clients(self) -> int:
        """The number of connections that have proved the secret."""
        return self._clients

    def close(self) -> None:
        """Stop serving; clients that wait get an error."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._bell.send(b"c")
        self._thread.join(_CLOSING)
        self.store.close()

    def _run(self, bell: socket.socket) -> None:
        try:
            while not self._closed:
                for key, events in self.selector.select(self._pause()):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.data is not None:
                        self._serve(key.data, events)
        finally:
            for key in list(self.selector.get_map().values()):
                if isinstance(key.data, Client):
                    with contextlib.suppress(OSError):
                        key.data.socket.shutdown(socket.SHUT_RDWR)  # also where a forked process has it, too
                    key.data.socket.close()
            for each in (self._listener, self._bell, bell, self.selector):
                each.close()

    def _pause(self) -> float | None:
        """Do what is due, and return the seconds until something else is; None: nothing is."""
        now = time.monotonic()
        self._end_waits(now)
        crowded = len(self.strangers) >= STRANGERS or self._accept_at > now
        patience = LEAST_PATIENCE if crowded else PATIENCE
        while self.strangers and (oldest := next(iter(self.strangers))).since + patience <= now:
            self._drop(oldest)
        self._listen(now >= self._accept_at and len(self.strangers) < STRANGERS)
        due = [end for end, *_ in self._ends[:1]]
        if self.strangers:
            due.append(next(iter(self.strangers)).since + patience)
        if self._accept_at > now:
            due.append(self._accept_at)
        return max(0.0, min(due) - now) if due else None

    def _listen(self, wanted: bool) -> None:
        if wanted != self._listens:
            if wanted:
                self.selector.register(self._listener, selectors.EVENT_READ, None)
            else:
                self.selector.unregister(self._listener)
            self._listens = wanted

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
        except OSError as error:
            if error.errno in _EXHAUSTED:
                self._accept_at = time.monotonic() + _PAUSE
                self._say_once(f"cannot take another connection now ({error_text(error)}); new ones wait")
            return  # otherwise a client that has gone before it was accepted
        client = Client(connection, str(address[0]))
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            wire.prepare(connection)
        self.selector.register(connection, selectors.EVENT_READ, client)
        self.strangers[client] = None
        self._send(client, wire.HELLO + client.nonce)

    def _serve(self, client: Client, events: int) -> None:
        """Receive, answer, and send; a connection that fails ends, and no other."""
        try:
            if events & selectors.EVENT_READ:
                part = client.socket.recv(_LARGE_PART if len(client.received) >= _PART else _PART)
                if not part:
                    self._drop(client)
                    return
                client.received += part
                self._read(client)
            self._send(client, b"")
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, struct.error, UnicodeDecodeError):
            self._drop(client)

    def _read(self, client: Client) -> None:
        if client.session is None and not client.ends and len(client.received) >= wire.NONCE + wire.TAG:
            self._meet(client)
        while client.session is not None and not client.ends and self._answer_one(client, client.session):
            pass
        if client.ends:
            client.received.clear()

    def _meet(self, client: Client) -> None:
        """Let a client in whose proof is right."""
        nonce, proof = _take(client.received, wire.NONCE), _take(client.received, wire.TAG)
        session = wire.Session(self.secret, client.nonce, nonce)
        if hmac.compare_digest(proof, session.client_proof):
            client.session = session
            self._clients += 1
            del self.strangers[client]
            self._send(client, wire.KNOWN + session.server_proof)
        else:
            self._say_once(f"has refused a connection from {client.address}, which does not know the secret")
            client.ends = True
            self._send(client, wire.UNKNOWN)

    def _answer_one(self, client: Client, session: wire.Session) -> bool:
        """Do what the first request asks for, if all of it is there; return whether it was."""
        if len(client.received) < wire.REQUEST.size:
            return False
        kind, key_length, length, seconds = wire.REQUEST.unpack_from(client.received)
        size = wire.REQUEST.size + key_length + length
        if key_length <= wire.LONGEST_KEY and length <= wire.LONGEST_VALUE:
            if len(client.received) < size + wire.TAG:
                return False
            number, message = session.to_server.count, _take(client.received, size)
            if session.to_server.fits(message, _take(client.received, wire.TAG)):
                key = message[wire.REQUEST.size : wire.REQUEST.size + key_length].decode()
                self._do(client, number, kind, key, message[wire.REQUEST.size + key_length :], seconds)
                return True
        _log.warning(
            "the store on port %d: a message from %s was changed, repeated or left out on the way; its connection ends",
            self.port, client.address,
        )  # fmt: skip
        self._answer(client, session.to_server.count, wire.CHANGED)
        client.ends = True
        return False

    def _do(self, client: Client, number: int, kind: bytes, key: str, value: bytes, seconds: float) -> None:
        found: bytes | None = b""
        try:
            if kind == wire.SET:
                self.store.set(key, value)
            elif kind == wire.ADD:
                found = b"%d" % self.store.add(key, int(value))
            elif kind == wire.DELETE:
                found = b"1" if self.store.delete(key) else b"0"
            else:
                found = self.store.peek(key)
        except (NetError, DistributedError, ValueError) as error:
            self._answer(client, number, wire.REFUSED, str(error).encode())
            return
        if found is None and kind == wire.GET and seconds > 0:
            self._waiting[key].append((client, number))
            end = time.monotonic() + min(seconds, wire.SLICE)
            heapq.heappush(self._ends, (end, next(self._order), key, client, number))
        else:
            self._answer(client, number, wire.NOTHING if found is None else wire.VALUE, found or b"")
        if kind in (wire.SET, wire.ADD) and key in self._waiting:
            value = self.store.peek(key) or b""
            for waiting, asked in self._waiting.pop(key):
                self._answer(waiting, asked, wire.VALUE, value)

    def _end_waits(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            _, _, key, client, number = heapq.heappop(self._ends)
            if (client, number) in self._waiting.get(key, ()):
                self._answer(client, number, wire.NOTHING)
                self._waiting[key].remove((client, number))
                if not self._waiting[key]:
                    del self._waiting[key]

    def _answer(self, client: Client, number: int, status: bytes, value: bytes = b"") -> None:
        if client.session is not None:
            message = wire.ANSWER.pack(status, number, len(value)) + value
            self._send(client, message + client.session.to_client.make(message))

    def _send(self, client: Client, data: bytes) -> None:
        """Send what can be sent now, and the rest when the client has read."""
        if client.socket.fileno() < 0:
            return  # it has ended
        client.unsent += data
        try:
            while client.unsent:
                del client.unsent[: client.socket.send(client.unsent)]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._drop(client)
            return
        if client.ends and not client.unsent:
            self._finish(client)
        read = 0 if len(client.unsent) > _UNREAD else selectors.EVENT_READ
        self.selector.modify(client.socket, read | (selectors.EVENT_WRITE if client.unsent else 0), client)

    def _finish(self, client: Client) -> None:
        """Say that no more comes, and let the client read why: closed at once, it might lose what it has not read."""
        with contextlib.suppress(OSError):
            client.socket.shutdown(socket.SHUT_WR)
        if client not in self.strangers:
            client.since = time.monotonic()
            self.strangers[client] = None

    def _drop(self, client: Client) -> None:
        if client.socket.fileno() >= 0:
            self.selector.unregister(client.socket)
            client.socket.close()
        self._clients -= client.session is not None
        client.session, client.ends = None, True
        client.unsent.clear()
        self.strangers.pop(client, None)

    def _say_once(self, text: str) -> None:
        if (what := text.split(" from ")[0]) not in self._said:
            self._said.add(what)
            _log.warning("the store on port %d %s; it is said once", self.port, text)


def _take(data: bytearray, count: int) -> bytes:
    """Remove and return the first bytes."""
    found = bytes(data[:count])
    del data[:count]
    return found
