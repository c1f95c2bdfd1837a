"""An arena: one block of host memory in which the plans of a workspace place what they need during a run.

Only one run uses an arena at a time, and none expects to find anything in it, so all plans of a workspace have the
same one: those for several shapes, for training and for testing. The address range is reserved at once, as large as the
machine's memory; the system provides a page when it is first written. So a later plan may need more without any other
being bound anew.
"""

from __future__ import annotations

import contextlib
import mmap
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from netbuilder.data.forking import new_lock
from netbuilder.ops.core.given_numbers import machine_memory
from netbuilder.ops.engines.arrays import aligned_empty, aligned_zeros

__all__ = ["Arena"]

Array = Any

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux: pages count as used when they are written
_LARGE_PAGES = 14  # Linux: MADV_HUGEPAGE; a first write then provides 2 MiB
_LARGE = 32 << 20  # bytes of an arena that has large pages; a small one would take longer to fill with them
_GIVE_BACK = getattr(mmap, "MADV_DONTNEED", None)


class Arena:
    """One block of memory for one run at a time; see the module."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._range: mmap.mmap | None = None
        self._memory: Array = None
        self._written = 0  # bytes from the beginning that a run may have written
        self._users: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()

    def memory(self, nbytes: int) -> Array:
        """Return the first ``nbytes`` bytes, uint8, aligned to 64 bytes. Their content is undefined.

        Raises:
            MemoryError: the machine has less memory than that.
        """
        if nbytes > machine_memory():
            raise MemoryError(f"{nbytes:,} bytes are needed at the same time, the machine has {machine_memory():,}")
        if self._memory is None:
            self._reserve()
        if self._written < _LARGE <= nbytes and self._range is not None and hasattr(self._range, "madvise"):
            with contextlib.suppress(OSError):  # a kernel without large pages
                self._range.madvise(_LARGE_PAGES)
        if self._memory is None or self._memory.size < nbytes:  # a system that cannot reserve: plans keep the old block
            self._memory = aligned_zeros(nbytes)
        self._written = max(self._written, nbytes)
        return self._memory[:nbytes]

    def _reserve(self) -> None:
        """Reserve a range of addresses, where the system can without counting it as used."""
        if not hasattr(mmap, "MAP_ANONYMOUS"):
            return
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        try:
            self._range = mmap.mmap(-1, machine_memory(), flags=flags)
        except (OSError, ValueError, OverflowError):
            return
        self._memory = np.frombuffer(self._range, np.uint8)

    def use(self, user: object, nbytes: int) -> None:
        """Note that a plan uses the first ``nbytes`` bytes, for as long as the plan exists or until ``leave``."""
        self._users[user] = nbytes

    def leave(self, user: object) -> None:
        """Note that a plan does not use the arena any more, and give back what no other one uses."""
        self._users.pop(user, None)
        if self.acquire():
            try:
                self._shrink()
            finally:
                self.release()

    def _shrink(self) -> None:
        needed = max(self._users.values(), default=0)
        if self._range is None or _GIVE_BACK is None:
            if not needed:
                self._memory, self._written = None, 0
            return
        start = -(-needed // mmap.PAGESIZE) * mmap.PAGESIZE
        if self._written > start:
            length = -(-(self._written - start) // mmap.PAGESIZE) * mmap.PAGESIZE
            self._range.madvise(_GIVE_BACK, start, min(length, len(self._range) - start))
            self._written = start

    @contextlib.contextmanager
    def lend(self, nbytes: int) -> Iterator[Array]:
        """Lend memory for work between runs: the arena's, or other memory if a run has it. It is freed afterwards."""
        if not self.acquire():
            yield aligned_empty(nbytes)
            return
        try:
            yield self.memory(nbytes)
        finally:
            self._shrink()
            self.release()

    @property
    def nbytes(self) -> int:
        """The bytes that the largest of the plans uses."""
        return max(self._users.values(), default=0)

    def acquire(self) -> bool:
        """Take the arena for a run; False if another run has it."""
        return self._lock.acquire(False)

    def release(self) -> None:
        """End the run that has the arena."""
        if self._lock.locked():  # it is free already in a process that was forked during the run
            self._lock.release()
