"""An arena: memory in which the plans of a workspace place what they need during a run, one block at each location.

Only one run uses an arena at a time, and none expects to find anything in it, so all plans of a workspace have the same
one: those for several shapes, for training and for testing. On the host the address range is reserved at once, as large
as the machine's memory; the system provides a page when it is first written. So a later plan may need more without any
other being bound anew. On a GPU the block is one allocation, as large as the largest plan needs: when a plan needs
more, the plans that use the block are forgotten, and made again for the larger one when their nets run.
"""

from __future__ import annotations

import contextlib
import mmap
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from netbuilder.data.forking import new_lock
from netbuilder.engines.arrays import aligned_zeros
from netbuilder.engines.large_pages import LARGE_PAGES
from netbuilder.engines.layouts import HOST, Location, new_bytes
from netbuilder.ops.core.given_numbers import machine_memory

__all__ = ["Arena", "ArenaUser"]

Array = Any

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux: pages count as used when they are written
_LARGE = 32 << 20  # bytes of an arena that has large pages; a small one would take longer to fill with them
_GIVE_BACK = getattr(mmap, "MADV_DONTNEED", None)


class ArenaUser(Protocol):
    """A plan that uses an arena."""

    def arena_moved(self) -> None:
        """A block of the arena is replaced: free what refers to it, unless a run is using it."""


class Arena:
    """Memory for one run at a time; see the module."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._blocks: dict[Location, _HostBlock | _GpuBlock] = {}
        self._users: weakref.WeakKeyDictionary[ArenaUser, Mapping[Location, int]] = weakref.WeakKeyDictionary()

    def memory(self, nbytes: int, location: Location = HOST) -> Array:
        """Return the first ``nbytes`` bytes of a block, uint8, aligned for buffers. Their content is undefined.

        Raises:
            MemoryError: the machine, or the GPU, has less memory than that.
        """
        block = self._blocks.get(location)
        if block is None:
            block = self._blocks[location] = _HostBlock() if location == HOST else _GpuBlock(location)
        if isinstance(block, _GpuBlock) and block.nbytes < nbytes:
            block.free()
            for user, sizes in list(self._users.items()):
                if sizes.get(location):
                    del self._users[user]
                    user.arena_moved()
        return block.memory(nbytes)

    def use(self, user: ArenaUser, sizes: Mapping[Location, int]) -> None:
        """Note that a plan uses so many bytes of the blocks, for as long as the plan exists or until ``leave``."""
        self._users[user] = sizes

    def leave(self, user: ArenaUser) -> None:
        """Note that a plan does not use the arena any more, and give back what no other one uses."""
        self._users.pop(user, None)
        if self.acquire():
            try:
                self._shrink()
            finally:
                self.release()

    def _shrink(self) -> None:
        for location, block in self._blocks.items():
            block.shrink(self.nbytes_at(location))

    @contextlib.contextmanager
    def lend(self, nbytes: int, location: Location = HOST) -> Iterator[Array]:
        """Lend memory for work between runs: the arena's, or other memory if a run has it. It is freed afterwards.

        On a GPU it is other memory if the plans have a smaller block there.
        """
        if not self._has(nbytes, location) or not self.acquire():
            yield new_bytes(nbytes, location)
            return
        try:
            yield self.memory(nbytes, location)
        finally:
            self._shrink()
            self.release()

    def _has(self, nbytes: int, location: Location) -> bool:
        """Whether there is so much memory without replacing a block."""
        block = self._blocks.get(location)
        return location == HOST or (isinstance(block, _GpuBlock) and block.nbytes >= nbytes)

    @property
    def nbytes(self) -> int:
        """The bytes that the largest of the plans uses at each location, all together."""
        return sum(map(self.nbytes_at, self._blocks))

    def nbytes_at(self, location: Location) -> int:
        """Return the bytes that the largest of the plans uses at a location."""
        return max((sizes.get(location, 0) for sizes in self._users.values()), default=0)

    def acquire(self) -> bool:
        """Take the arena for a run; False if another run has it."""
        return self._lock.acquire(False)

    def release(self) -> None:
        """End the run that has the arena."""
        if self._lock.locked():  # it is free already in a process that was forked during the run
            self._lock.release()


class _HostBlock:
    """A range of addresses of the host."""

    def __init__(self) -> None:
        self._range: mmap.mmap | None = None
        self._memory: Array = None
        self._written = 0  # bytes from the beginning that a run may have written

    def memory(self, nbytes: int) -> Array:
        """See ``Arena.memory``."""
        if nbytes > machine_memory():
            raise MemoryError(f"{nbytes:,} bytes are needed at the same time, the machine has {machine_memory():,}")
        if self._memory is None:
            self._reserve()
        if self._written < _LARGE <= nbytes and self._range is not None and hasattr(self._range, "madvise"):
            with contextlib.suppress(OSError):  # a kernel without large pages
                self._range.madvise(LARGE_PAGES)
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

    def shrink(self, needed: int) -> None:
        """Give back all but the first ``needed`` bytes."""
        if self._range is None or _GIVE_BACK is None:
            if not needed:
                self._memory, self._written = None, 0
            return
        start = -(-needed // mmap.PAGESIZE) * mmap.PAGESIZE
        if self._written > start:
            length = -(-(self._written - start) // mmap.PAGESIZE) * mmap.PAGESIZE
            self._range.madvise(_GIVE_BACK, start, min(length, len(self._range) - start))
            self._written = start


class _GpuBlock:
    """An allocation on a GPU."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._memory: Array = None

    @property
    def nbytes(self) -> int:
        """The size of the block; 0 before it is allocated."""
        return 0 if self._memory is None else int(self._memory.nbytes)

    def memory(self, nbytes: int) -> Array:
        """See ``Arena.memory``; a smaller block must have been freed."""
        if self._memory is None:
            self._memory = new_bytes(nbytes, self._location)
        return self._memory[:nbytes]

    def free(self) -> None:
        """Free the block, as soon as no plan refers to it any more."""
        self._memory = None

    def shrink(self, needed: int) -> None:
        """Free the block if nothing of it is needed: it cannot become smaller while plans refer to it."""
        if not needed:
            self.free()
