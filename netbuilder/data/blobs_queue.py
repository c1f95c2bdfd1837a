"""A queue of records between threads: bounded and blocking; it can be closed."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from netbuilder.data.bounded_queue import BoundedQueue, QueueClosedError
from netbuilder.data.waiting import wait
from netbuilder.proto import NetError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["BlobsQueue", "QueueClosedError", "QueueState"]


@dataclass(frozen=True)
class QueueState:
    """Counters of a queue.

    Args:
        length: number of records in the queue.
        written, read: number of records written and read so far.
        write_wait, read_wait: seconds that writers and readers waited, summed over threads.
    """

    length: int
    written: int
    read: int
    write_wait: float
    read_wait: float


class BlobsQueue(BoundedQueue):
    """Records of ``num_blobs`` values each, at most ``capacity`` at a time; any number of threads write and read.

    Closing wakes all threads that wait. Records in the queue can still be read, and records written while it is not
    full; a thread that would have to wait gets an error.

    Args:
        num_blobs: values per record.
        capacity: largest number of records.
        name: name in messages.
        field_names: names of the values, "" or as many as ``num_blobs``.

    Raises:
        NetError: a number is out of range, or the number of names is not ``num_blobs``.

    >>> queue = BlobsQueue(1, 2, "q")
    >>> queue.write([7])
    >>> queue.close()
    >>> queue.read()
    [7]
    >>> queue.read()
    Traceback (most recent call last):
    netbuilder.data.bounded_queue.QueueClosedError: queue 'q' is closed, and nothing is left in it to read
    """

    def __init__(self, num_blobs: int = 1, capacity: int = 1, name: str = "", field_names: Sequence[str] = ()) -> None:
        super().__init__(num_blobs, capacity, name)
        if field_names and len(field_names) != num_blobs:
            raise NetError(f"queue {name!r}: {len(field_names)} field_names for {num_blobs} blobs; give one for each")
        self.field_names = tuple(field_names)
        self._records: deque[Sequence[Any]] = deque()
        self._written = self._read = 0
        self._write_wait = self._read_wait = 0.0

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        closed = ", closed" if self._closed else ""
        return f"BlobsQueue({self.name!r}, {len(self)} of {self.capacity} records of {self.num_blobs} blobs{closed})"

    def state(self) -> QueueState:
        """Return its counters."""
        with self._lock:
            return QueueState(len(self._records), self._written, self._read, self._write_wait, self._read_wait)

    def write(self, record: Sequence[Any], timeout: float = 0.0) -> None:
        """Append a record, as soon as the queue is not full.

        Args:
            record: its values; the queue owns them from then on.
            timeout: seconds to wait at most; 0: no limit.

        Raises:
            QueueClosedError: the queue is full and closed.
            CancelledError: the net that waits was cancelled.
            NetError: the record has another number of values, or the queue stayed full for too long.
        """
        if len(record) != self.num_blobs:
            raise NetError(f"queue {self.name!r}: its records have {self.num_blobs} blobs, got {len(record)}")
        deadline = time.perf_counter() + timeout if timeout else None
        with self._lock:
            while len(self._records) >= self.capacity:
                if self._closed:
                    raise self._refusal("is closed, and full")
                waited = self._wait(self.not_full, deadline, timeout, "full")
                self._write_wait += waited
            self._records.append(record)
            self._written += 1
            self.not_empty.notify()

    def read(self, timeout: float = 0.0) -> Sequence[Any]:
        """Remove and return the first record, as soon as there is one.

        Args:
            timeout: seconds to wait at most; 0: no limit.

        Raises:
            QueueClosedError: the queue is empty and closed.
            CancelledError: the net that waits was cancelled.
            NetError: the queue stayed empty for too long.
        """
        deadline = time.perf_counter() + timeout if timeout else None
        with self._lock:
            while not self._records:
                if self._closed:
                    raise self._refusal("is closed, and nothing is left in it to read")
                waited = self._wait(self.not_empty, deadline, timeout, "empty")
                self._read_wait += waited
            record = self._records.popleft()
            self._read += 1
            self.not_full.notify()
            return record

    def _wait(self, condition: threading.Condition, deadline: float | None, timeout: float, what: str) -> float:
        """Wait once; return the seconds it took."""
        began = time.perf_counter()
        if not wait(condition, None if deadline is None else max(0.0, deadline - began)):
            raise NetError(f"queue {self.name!r} stayed {what} for {timeout:g} seconds")
        return time.perf_counter() - began
