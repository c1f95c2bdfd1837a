"""A queue of single samples: batches go in, and come out in batches of another size."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.data.bounded_queue import BoundedQueue
from netbuilder.data.waiting import wait
from netbuilder.proto import NetError, ShapeError

__all__ = ["RebatchingQueue"]


class RebatchingQueue(BoundedQueue):
    """Samples of ``num_blobs`` arrays each, at most ``capacity`` at a time; any number of threads write and read.

    Once it is closed, no sample can be written, threads that wait to write get an error, and readers get the samples
    that are left.

    Args:
        num_blobs: arrays per sample.
        capacity: largest number of samples.
        name: name in messages.

    Raises:
        NetError: a number is less than 1.

    >>> queue = RebatchingQueue(1, 8, "q")
    >>> queue.write([np.arange(3)], batch=True)
    >>> [array.tolist() for array in queue.read(2)]
    [[0, 1]]
    """

    def __init__(self, num_blobs: int = 1, capacity: int = 1, name: str = "") -> None:
        super().__init__(num_blobs, capacity, name)
        self._samples: deque[tuple[Any, ...]] = deque()

    def __len__(self) -> int:
        return len(self._samples)

    def __repr__(self) -> str:
        closed = ", closed" if self._closed else ""
        return (
            f"RebatchingQueue({self.name!r}, {len(self)} of {self.capacity} samples of {self.num_blobs} blobs{closed})"
        )

    def write(self, arrays: Sequence[Any], *, batch: bool = False) -> None:
        """Append one sample, or with ``batch`` all rows of the arrays, each as soon as the queue is not full.

        Args:
            arrays: ``num_blobs`` of them; the queue owns them from then on.
            batch: the first axis, of the same length for all arrays, counts samples.

        Raises:
            QueueClosedError: the queue is closed; earlier rows may be in it.
            CancelledError: the net that waits was cancelled; earlier rows may be in the queue.
            NetError: the number of arrays is not ``num_blobs``.
            ShapeError: with ``batch``, the arrays have different numbers of rows.
        """
        if len(arrays) != self.num_blobs:
            raise NetError(f"queue {self.name!r}: its samples have {self.num_blobs} blobs, got {len(arrays)}")
        if not batch:
            self._put(tuple(arrays))
            return
        shapes = [tuple(array.shape) for array in arrays]
        if not all(shape and shape[0] == shapes[0][0] for shape in shapes):
            raise ShapeError(
                f"queue {self.name!r}: all blobs of a batch must have the same number of rows, got shapes {shapes}"
            )
        for row in range(shapes[0][0]):
            self._put(tuple(array[row : row + 1].reshape(array.shape[1:]) for array in arrays))

    def _put(self, sample: tuple[Any, ...]) -> None:
        with self._lock:
            while len(self._samples) >= self.capacity and not self._closed:
                wait(self.not_full)
            if self._closed:
                raise self._refusal("is closed; nothing can be written to it")
            self._samples.append(sample)
            self.not_empty.notify()

    def read(self, count: int = 1) -> list[Any]:
        """Remove and return the first samples, stacked along a new first axis, as soon as there are enough.

        Args:
            count: how many; a closed queue returns what is left, if that is less.

        Raises:
            NetError: ``count`` is less than 1.
            QueueClosedError: the queue is empty and closed.
            CancelledError: the net that waits was cancelled; no sample is lost.
            ShapeError: the samples, which are lost then, differ in shape or type.
        """
        if count < 1:
            raise NetError(f"count must be at least 1, got {count}")
        samples: list[tuple[Any, ...]] = []
        with self._lock:
            try:
                while len(samples) < count:
                    if self._samples:
                        samples.append(self._samples.popleft())
                        self.not_full.notify()
                    elif self._closed:
                        break
                    else:
                        wait(self.not_empty)
            except BaseException:  # cancelled or interrupted: put the samples back
                self._samples.extendleft(reversed(samples))
                self.not_empty.notify()
                raise
            if not samples:
                raise self._refusal("is closed, and nothing is left in it to read")
        return [self._stacked(parts) for parts in zip(*samples)]

    def _stacked(self, parts: tuple[Any, ...]) -> Any:
        kinds = {(tuple(part.shape), str(part.dtype)) for part in parts}
        if len(kinds) > 1:
            raise ShapeError(
                f"queue {self.name!r}: {len(parts)} samples of a batch must have the same shape and type, got "
                f"{sorted(kinds)}"
            )
        return np.stack(parts)
