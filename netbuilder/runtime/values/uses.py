"""Who uses a workspace: two threads that would touch the same values at the same time get an error."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from netbuilder.data.forking import renew_after_fork
from netbuilder.data.waiting import threads_of_this_run
from netbuilder.proto import NetError
from netbuilder.runtime.values.blob import Blob

__all__ = ["FEED", "FETCH", "RUN", "Use", "Uses", "this_plan", "this_thread", "together", "using"]

_together: ContextVar[object] = ContextVar("netbuilder_together", default=None)

this_thread = threading.get_ident
this_plan = _together.get

FEED, FETCH, RUN = "feeds", "fetches", "runs net"


class _Net(Protocol):
    """A net that runs."""

    name: str

    def touched_blobs(self) -> tuple[Collection[Blob], Collection[Blob]]:
        """Return the blobs that it reads, and those that it writes."""


Use = tuple[int, object, str, Any]
"""The thread; the plan that it runs for; what it does: ``FEED``, ``FETCH`` or ``RUN``; the blob or net."""


@contextmanager
def together() -> Iterator[None]:
    """In the block, threads that it starts (with its context) may touch the same values: they run for one plan."""
    before = _together.set(_together.get() or object())
    try:
        yield
    finally:
        _together.reset(before)


class Uses:
    """The runs, feeds and fetches that are in progress in a workspace, and in those that share blobs with it.

    A use begins and ends like this, in line, since it must cost a step next to nothing::

        use, now = (this_thread(), this_plan(), FEED, blob), uses.now
        now.append(use)
        try:
            if now[0] is not use:
                uses.check(use)
            ...
        finally:
            now.remove(use)
    """

    def __init__(self) -> None:
        self.now: list[Use] = []
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the other threads, which do not exist in a forked process."""
        self.now[:] = [use for use in self.now if use[0] == this_thread()]

    def check(self, use: Use) -> None:
        """Check a use against those that began before it.

        Raises:
            NetError: another thread uses the same values, and one of the two changes them.
        """
        thread, plan, _, _ = use
        for other in list(self.now):
            if other is use:
                return  # those that began later find this one
            if other[0] == thread or plan is not None and other[1] is plan or other[0] in threads_of_this_run():
                continue
            if common := _conflict(use, other):
                raise _refusal(use, other, common)


@contextmanager
def using(all_uses: Sequence[Uses], what: str, target: Any) -> Iterator[None]:
    """Note, for the body of a ``with``, a use of a blob that several workspaces have.

    Raises:
        NetError: see ``Uses.check``.
    """
    use = this_thread(), this_plan(), what, target
    for uses in all_uses:
        uses.now.append(use)
    try:
        for uses in all_uses:
            uses.check(use)
        yield
    finally:
        for uses in all_uses:
            uses.now.remove(use)


def _conflict(use: Use, other: Use) -> Blob | None:
    """Return a blob that both uses touch and one of them changes; objects that threads may share do not count."""
    reads, writes = _touched(use)
    other_reads, other_writes = _touched(other)
    known = {id(blob): blob for blob in (*reads, *writes)}
    changed = {id(blob) for blob in writes}
    for blob in other_writes:
        if id(blob) in known and not _is_object(blob):
            return blob
    return next((blob for blob in other_reads if id(blob) in changed and not _is_object(blob)), None)


def _touched(use: Use) -> tuple[Collection[Blob], Collection[Blob]]:
    _, _, what, target = use
    if what == FEED:
        return (), (target,)
    if what == FETCH:
        return (target,), ()
    net: _Net = target
    return net.touched_blobs()


def _is_object(blob: Blob) -> bool:
    return blob.spec is None and blob.buffer is not None


def _refusal(use: Use, other: Use, blob: Blob) -> NetError:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    here, there = (f"thread {names.get(each[0], str(each[0]))!r} {_words(each)}" for each in (use, other))
    shared = f"; both touch blob {blob.name!r}" if RUN in (use[2], other[2]) else ""
    return NetError(
        f"{here} while {there}{shared}. Threads that use one workspace at the same time would mix their values: give "
        "each thread a workspace of its own, or call a Predictor, which serves several threads, or hold a lock from "
        "the feed to the fetch"
    )


def _words(use: Use) -> str:
    _, _, what, target = use
    return f"{what} {target.name!r}" if what == RUN else f"{what} blob {target.name!r}"
