"""A meeting of all ranks of a run in a store."""

from __future__ import annotations

from netbuilder.distributed.stores.store import Store
from netbuilder.proto.errors import StoreTimeoutError

__all__ = ["Meeting"]

_ALL, _COME, _FAILURE = "all", "come", "failure"  # keys


class Meeting:
    """Ranks that wait until all have come to one point. A rank makes a few requests, however many there are.

    Args:
        store: one that all ranks see, with a prefix that no other meeting has.
        size, rank: the number of ranks, and that of this one.
    """

    def __init__(self, store: Store, size: int, rank: int) -> None:
        self._store, self._size, self._rank = store, size, rank

    def enter(self, failure: str = "") -> None:
        """Come to the meeting.

        Args:
            failure: why this rank cannot go on, with its number: the meeting ends at once, for all.
        """
        if failure:
            self._store.set(_FAILURE, failure.encode())
            self._store.set(_ALL, failure.encode())
        self._store.set(f"at/{self._rank}", b"")
        if self._store.add(_COME) >= self._size:
            self._store.set(_ALL, self._store.peek(_FAILURE) or b"")

    def wait(self, seconds: float) -> str | None:
        """Return "" when all have come, or the failure of one; None if neither is so after this time."""
        try:
            return self._store.get(_ALL, seconds).decode()
        except StoreTimeoutError:
            return None

    def missing(self) -> list[int]:
        """Return the ranks that have not come; a request for each rank."""
        return [rank for rank in range(self._size) if self._store.peek(f"at/{rank}") is None]
