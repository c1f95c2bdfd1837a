"""A queue of records read like a database."""

from __future__ import annotations

from typing import Any

from netbuilder.data.blobs_queue import BlobsQueue, QueueClosedError
from netbuilder.data.db_reader import DBReader, Records
from netbuilder.proto import NetError

__all__ = ["QueueReader"]


class QueueReader(DBReader):
    """Reads the records of a queue: one blob of each is the value, a string, and another may be the key.

    A queue cannot be rewound, and reading after its end is an error.

    Args:
        queue: the queue.
        key: index of the blob that is the key; -1: keys are empty.
        value: index of the blob that is the value.
        timeout: seconds to wait for a record at most; 0: no limit.

    Raises:
        NetError: a number is out of range.
    """

    def __init__(self, queue: BlobsQueue, *, key: int = -1, value: int = 0, timeout: float = 0.0) -> None:
        if not (-1 <= key < queue.num_blobs and 0 <= value < queue.num_blobs and timeout >= 0):
            raise NetError(
                f"queue {queue.name!r} has {queue.num_blobs} blobs per record: key must be the index of one or -1, "
                f"value the index of one, and timeout not negative; got {key}, {value}, {timeout}"
            )
        self.path, self.db_type, self.num_shards, self.shard_id = queue.name, "blobs_queue", 1, 0
        self.queue = queue
        self._key, self._value, self._timeout = key, value, timeout

    def __repr__(self) -> str:
        return f"QueueReader({self.queue!r})"

    def read(self) -> tuple[bytes, bytes]:
        """Return the next record, key and value.

        Raises:
            QueueClosedError: the queue is empty and closed.
            NetError: there was no record in time, or the blob holds no string.
        """
        record = self.queue.read(self._timeout)
        return b"" if self._key < 0 else self._text(record[self._key]), self._text(record[self._value])

    def _text(self, blob: Any) -> bytes:
        found = blob.item() if getattr(blob, "size", 0) == 1 else blob
        if not isinstance(found, bytes):
            raise NetError(f"queue {self.queue.name!r}: keys and values of records must be strings, got {blob!r}")
        return found

    def rest(self) -> Records:
        """Yield the records until the queue is closed and empty."""
        while True:
            try:
                record = self.read()
            except QueueClosedError:
                return
            yield record

    @property
    def position(self) -> int:
        """Always 0: a queue has no position."""
        return 0

    def seek(self, position: int) -> None:
        """Do nothing for position 0, the only one that a queue has.

        Raises:
            NetError: it is another position.
        """
        if position:
            raise NetError(
                f"{self!r}: a queue cannot be read from record {position} on; its records can be read only once"
            )

    def rewind(self) -> None:
        """Raise an error: a queue cannot be rewound.

        Raises:
            NetError: always.
        """
        raise NetError(f"{self!r}: a queue cannot be rewound; its records can be read only once")
