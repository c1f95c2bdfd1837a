"""A queue of records read like a database."""

from __future__ import annotations

from typing import Any

from netbuilder.data.blobs_queue import BlobsQueue, QueueClosedError
from netbuilder.data.db_reader import DBReader, Records
from netbuilder.proto import NetError

__all__ = ["QueueReader"]


class QueueReader(DBReader):
    """Takes records out of a queue: one of their blobs is the value, a string, and one may be the key.

    There is no way back: a queue has no first record to go to, and its end is an error.

    Args:
        queue: whose records are read.
        key: the number of the blob that is the key; -1: keys are empty.
        value: the number of the blob that is the value.
        timeout: seconds to wait for a record at most; 0: no end.

    Raises:
        NetError: a number is out of range.
    """

    def __init__(self, queue: BlobsQueue, *, key: int = -1, value: int = 0, timeout: float = 0.0) -> None:
        if not (-1 <= key < queue.num_blobs and 0 <= value < queue.num_blobs and timeout >= 0):
            raise NetError(
                f"queue {queue.name!r} has {queue.num_blobs} blobs a record: the key's number must be one of them or "
                f"-1, the value's one of them, and the timeout not negative; got {key}, {value}, {timeout}"
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
        """0: a queue has no place to come back to."""
        return 0

    def seek(self, position: int) -> None:
        """Refuse any place but 0, which leaves the queue as it is.

        Raises:
            NetError: another place.
        """
        if position:
            raise NetError(f"{self!r}: records that were read are gone, and it cannot be read from {position} on")

    def rewind(self) -> None:
        """Refuse.

        Raises:
            NetError: always.
        """
        raise NetError(f"{self!r}: records that were read are gone, and it cannot be read anew")
