"""Base class of queues of limited length: their locks, and closing them."""

from __future__ import annotations

import threading

from netbuilder.data.blob_values import BlobObject
from netbuilder.data.forking import renew_after_fork
from netbuilder.proto import NetError

__all__ = ["BoundedQueue", "QueueClosedError"]


class QueueClosedError(NetError):
    """The queue is closed, and empty for a reader or full for a writer; its cause is the error it was closed with."""


class BoundedQueue(BlobObject):
    """Base: at most ``capacity`` records of ``num_blobs`` values each; ``name`` is its name in messages.

    Raises:
        NetError: a number is less than 1.
    """

    def __init__(self, num_blobs: int, capacity: int, name: str) -> None:
        if num_blobs < 1 or capacity < 1:
            raise NetError(f"queue {name!r}: num_blobs and capacity must be at least 1, got {num_blobs} and {capacity}")
        self.num_blobs = num_blobs
        self.capacity = capacity
        self.name = name
        self._closed = False
        self._error: BaseException | None = None
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Replace the locks: the threads that wait for them do not exist in a forked process."""
        self._lock = threading.Lock()
        self.not_full = threading.Condition(self._lock)
        self.not_empty = threading.Condition(self._lock)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def close(self, error: BaseException | None = None) -> None:
        """Close the queue: no thread waits from now on.

        Args:
            error: cause of the errors that readers and writers get; only the first one is kept.
        """
        with self._lock:
            self._closed = True
            if self._error is None:
                self._error = error
            self.not_full.notify_all()
            self.not_empty.notify_all()

    def _refusal(self, what: str) -> QueueClosedError:
        reason = f": {type(self._error).__name__}: {self._error}" if self._error is not None else ""
        refusal = QueueClosedError(f"queue {self.name!r} {what}{reason}")
        refusal.__cause__ = self._error
        return refusal
