"""Heartbeats of processes in a store: which of them still run, and what each did last."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable

from netbuilder.distributed.stores.store import Store
from netbuilder.proto.errors import DistributedError, NetError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.threads import Thread

__all__ = ["Heartbeat", "Heartbeats", "LastSign"]

_CLOSING = 1.0  # seconds to wait for the thread, which may be waiting for a store that does not answer


class Heartbeat:
    """Puts a heartbeat of this process into a store, again and again, until it is closed.

    Args:
        store: one that all ranks see, with a prefix of this run.
        rank: of this process.
        doing: returns what the process does at present, such as the operator and its blob; called in another thread.
        interval: seconds between two signs.
    """

    def __init__(
        self, store: Store, rank: int, doing: Callable[[], str] = lambda: "", *, interval: float = 2.0
    ) -> None:
        if not interval > 0:
            raise NetError(f"Heartbeat: interval must be a positive number of seconds, got {interval!r}")
        self._store, self._rank, self._doing, self._interval = store, rank, doing, interval
        self._closed = threading.Event()
        self._beat(0)
        self.thread = Thread(target=self._run, name="heartbeat", daemon=True)
        self.thread.start()

    def close(self) -> None:
        """Send no more signs; the last one stays in the store."""
        self._closed.set()
        self.thread.join(_CLOSING)

    def _run(self) -> None:
        count = 0
        while not self._closed.wait(self._interval):
            count += 1
            try:
                self._beat(count)
            except DistributedError:
                return  # whoever needs the store itself says so

    def _beat(self, count: int) -> None:
        self._store.set(f"heartbeat/{self._rank}", json.dumps({"count": count, "doing": self._doing()}).encode())

    def __enter__(self) -> Heartbeat:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@dataclass(frozen=True)
class LastSign:
    """What is known of a rank.

    Args:
        age: seconds since its last sign came, at most; None: it has never sent one.
        doing: what it did then.
    """

    age: float | None
    doing: str = ""


class Heartbeats:
    """Reads the heartbeats of all ranks; ages are by the clock of this process, so hosts' clocks may differ.

    Args:
        store: as for ``Heartbeat``.
        size: number of ranks.
    """

    def __init__(self, store: Store, size: int) -> None:
        self._store, self._size = store, size
        self._seen: dict[int, tuple[int, float]] = {}

    def look(self) -> list[LastSign]:
        """Return the last sign of each rank; an age counts from the first call that has seen the sign."""
        return [self._look_at(rank) for rank in range(self._size)]

    def silent(self, seconds: float, among: Iterable[int] | None = None) -> list[int]:
        """Return the ranks that have sent no sign for longer than this, or never.

        Args:
            seconds: since the last sign.
            among: which ranks; None: all.
        """
        signs = {rank: self._look_at(rank) for rank in (range(self._size) if among is None else among)}
        return [rank for rank, sign in signs.items() if sign.age is None or sign.age > seconds]

    def _look_at(self, rank: int) -> LastSign:
        text, now = self._store.peek(f"heartbeat/{rank}"), time.monotonic()
        if text is None:
            return LastSign(None)
        sign = json.loads(text)
        count, since = self._seen.get(rank, (-1, now))
        if count != sign["count"]:
            since = now
            self._seen[rank] = sign["count"], now
        return LastSign(now - since, sign["doing"])
