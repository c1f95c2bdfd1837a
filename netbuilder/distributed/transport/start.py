"""The start of a run: its ranks meet in a store before they connect, as engines name no rank that does not come."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from netbuilder.distributed.stores.meeting import Meeting
from netbuilder.distributed.stores.store import Store
from netbuilder.distributed.transport.time_limits import time_limits
from netbuilder.proto import DeviceError, DistributedError, StoreTimeoutError

__all__ = ["QUIET", "meet"]

_LOOK = 0.25  # seconds between two looks at which ranks have ended
QUIET = 20.0
"""Seconds after which a rank that waits for others to come says for which."""

_log = logging.getLogger("netbuilder")


def meet(store: Store, size: int, rank: int, name: str = "world", failure: str = "") -> None:
    """Wait until all ranks have come here.

    Args:
        store: one that all ranks see, with a prefix of this run.
        size, rank: the number of ranks, and that of this one.
        name: of what they connect for, unlike that of another call.
        failure: why this rank cannot connect; all ranks raise it.

    Raises:
        StoreTimeoutError: some have not come; the message names them.
        DeviceError: a rank cannot connect.
        DistributedError: a rank has ended.
    """
    meeting = Meeting(store.with_prefix(name), size, rank)
    meeting.enter(failure and f"CreateCommonWorld: rank {rank} of {size} cannot connect: {failure}")
    limit, begin, warned = time_limits().first, time.monotonic(), False
    while (outcome := meeting.wait(_LOOK)) is None:
        if store.peek("ended") is not None:
            if ended := [each for each in meeting.missing() if store.peek(f"ended/{each}") is not None]:
                raise DistributedError(f"CreateCommonWorld: rank {_listed(ended)} of {size} has ended without one")
        if limit is None or (waited := time.monotonic() - begin) <= (limit if warned else min(limit / 2, QUIET)):
            continue
        text = (
            f"CreateCommonWorld: rank {rank} of {size} has waited {waited:.3g} s for rank "
            f"{_listed(meeting.missing())}, which has not begun to make a common world"
        )
        if waited > limit:
            raise StoreTimeoutError(text)
        _log.warning("%s; it gives up after %g s", text, limit)
        warned = True
    if outcome:
        raise DeviceError(outcome)


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
