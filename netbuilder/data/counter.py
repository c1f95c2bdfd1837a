"""Counter: an integer that nets share; how it is stored."""

from __future__ import annotations

from netbuilder.data.forking import new_lock
from netbuilder.proto import BlobProto, ParseError, TensorProto

__all__ = ["Counter", "read_counter", "write_counter"]


class Counter:
    """An integer that several nets may change at the same time.

    Args:
        count: the initial value.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._lock = new_lock()

    @property
    def count(self) -> int:
        return self._count

    def add(self, step: int) -> int:
        """Add ``step`` and return the previous value."""
        with self._lock:
            before = self._count
            self._count = before + step
        return before

    def reset(self, count: int) -> int:
        """Set the counter to ``count`` and return the previous value."""
        with self._lock:
            before, self._count = self._count, count
        return before


def write_counter(blob: BlobProto, counter: Counter) -> None:
    """Write a counter into a record."""
    tensor = TensorProto(name=blob.name, data_type=TensorProto.INT64, dims=[1], int64_data=[counter.count])
    blob.tensor.CopyFrom(tensor)


def read_counter(blob: BlobProto) -> Counter:
    """Return the counter in a record."""
    if len(blob.tensor.int64_data) != 1:
        raise ParseError(f"a counter of {len(blob.tensor.int64_data)} numbers; it has one")
    return Counter(blob.tensor.int64_data[0])
