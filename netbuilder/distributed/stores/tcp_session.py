"""How the ends of a connection to a store over TCP know each other, and the messages between them.

The server begins with ``HELLO`` and 32 random bytes. The client answers with 32 of its own and a proof: an HMAC under
a key made from both and the secret. The server answers with ``KNOWN`` and its proof, or with ``UNKNOWN``. Each message
after that ends with a tag, an HMAC of its number and its bytes under the key of its direction, so that nobody can add,
change, repeat, leave out or reorder one. Values are not encrypted.

Source: H. Krawczyk, M. Bellare, R. Canetti, "HMAC: Keyed-Hashing for Message Authentication", RFC 2104; keys are made
in two steps, as in RFC 5869.
"""

from __future__ import annotations

import hmac
import socket
import struct

__all__ = [
    "ADD",
    "ANSWER",
    "CHANGED",
    "DELETE",
    "GET",
    "HELLO",
    "KNOWN",
    "LONGEST_KEY",
    "LONGEST_VALUE",
    "NONCE",
    "NOTHING",
    "PEEK",
    "REFUSED",
    "REQUEST",
    "SET",
    "SLICE",
    "TAG",
    "UNKNOWN",
    "VALUE",
    "Session",
    "Tags",
    "prepare",
]

HELLO = b"netbuilder store 2\n"
KNOWN, UNKNOWN = b"k", b"u"
NONCE = TAG = 32  # bytes

REQUEST = struct.Struct("!cIQd")
"""What to do, lengths of key and value that follow, and the seconds that ``GET`` waits at most."""
SET, PEEK, ADD, DELETE, GET = b"s", b"p", b"a", b"d", b"g"

ANSWER = struct.Struct("!cQQ")
"""Status, number of the request on this connection from 0 on, and length of what follows."""
VALUE, NOTHING, REFUSED, CHANGED = b"v", b"n", b"r", b"c"

LONGEST_KEY, LONGEST_VALUE = 1 << 16, 1 << 28  # bytes
SLICE = 5.0
"""Seconds for which the server lets a ``GET`` wait, before the client asks again."""


class Session:
    """Proofs and keys of one connection, which nobody makes without the secret, and which no other connection has.

    Attributes:
        client_proof, server_proof: what each end shows the other.
        to_server, to_client: the tags of the messages of each direction.
    """

    def __init__(self, secret: bytes, server_nonce: bytes, client_nonce: bytes) -> None:
        key = hmac.digest(secret, HELLO + server_nonce + client_nonce, "sha256")
        self.client_proof = hmac.digest(key, b"the client knows the secret", "sha256")
        self.server_proof = hmac.digest(key, b"the server knows the secret", "sha256")
        self.to_server = Tags(hmac.digest(key, b"messages to the server", "sha256"))
        self.to_client = Tags(hmac.digest(key, b"messages to the client", "sha256"))


class Tags:
    """The tags of the messages of one direction, which are numbered from 0 on."""

    def __init__(self, key: bytes) -> None:
        self._key, self.count = key, 0

    def make(self, message: bytes) -> bytes:
        """Return the tag of the next message."""
        tag = hmac.digest(self._key, self.count.to_bytes(8, "big") + message, "sha256")
        self.count += 1
        return tag

    def fits(self, message: bytes, tag: bytes) -> bool:
        """Say whether this is the next message, and nobody has changed it."""
        return hmac.compare_digest(self.make(message), tag)


def prepare(connection: socket.socket) -> None:
    """Let a connection send at once, and notice an end that is gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
