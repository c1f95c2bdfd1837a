"""Sums through memory that all ranks of a host share: each adds a part of the values, and the others copy the sums."""

from __future__ import annotations

import mmap
import os
import platform
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from netbuilder.distributed.transport.communicator import Communicator
from netbuilder.distributed.transport.reductions import sum_rows
from netbuilder.engines.large_pages import LARGE_PAGES

__all__ = ["LEAST_BYTES", "PROCESSOR", "SharedSums", "share_memory"]

Array = np.ndarray[Any, np.dtype[Any]]
Wait = Callable[[Callable[[], bool], bool], None]

LEAST_BYTES = 128 << 10
"""Bytes of an array from which its sum takes longer than the ranks need to meet."""

_AT_ONCE = 4 << 20
"""Bytes of a piece: with much less the ranks meet more often, with more the values leave the caches meanwhile."""
_IN_CACHE = 256 << 10  # bytes that are added, and then copied, at a time
_LINE = 64  # bytes of a line of the caches: two ranks do not write to the same one
_TOKEN = 8  # bytes
PROCESSOR = "x86_64"
"""Processors whose stores are seen in the order in which they are made; Python has no fence for those of others."""


class SharedSums:
    """Sums of arrays over ranks that share memory, in the order of the ranks.

    Each rank has memory in which it alone writes: room for a part of each rank, twice. An array is processed in pieces,
    in stages after which the ranks meet. In one stage a rank copies the others' parts of a piece into its memory, adds
    its own part of the piece before, and copies the others' sums of the piece before that. All ranks make the same
    calls, in the same order.

    Args:
        memory: the shared memory, of ``bytes_for(size)`` bytes; zero at first.
        rank, size: as of a communicator.
    """

    def __init__(self, memory: Any, rank: int, size: int) -> None:
        self._rank, self._size, self._part = rank, size, _part_bytes(size)
        self._others = [other for other in range(size) if other != rank]
        numbers = np.frombuffer(memory, np.uint8)
        self._memory = numbers[size * _LINE :].reshape(size, 2, size, self._part)
        self._finished = memoryview(memory)[: size * _LINE].cast("q")  # stages that each rank has finished
        self._places = [other * _LINE // 8 for other in self._others]
        self._stage = self._piece = 0  # numbers, over all calls

    @staticmethod
    def bytes_for(size: int) -> int:
        """Return the bytes of memory for so many ranks."""
        return size * (_LINE + 2 * size * _part_bytes(size))

    def add(self, array: Array, wait: Wait, *, bfloat16: bool = False) -> None:
        """Replace an array by its sum over the ranks.

        Args:
            array: one-dimensional, not empty, of the same size and type on all ranks.
            wait: returns when its first argument returns true; the second is whether all ranks have begun the call.
            bfloat16: see ``Communicator.allreduce``.
        """
        most, line = self._part * self._size, _LINE // array.itemsize
        part = -(-array.size // (-(-array.nbytes // most) * self._size * line)) * line
        pieces = [array[start : start + part * self._size] for start in range(0, array.size, part * self._size)]
        first, count = self._piece, len(pieces)
        self._piece += count
        for stage in range(count + 2):
            if stage > 0:
                self._meet(wait, stage > 1)
            if stage < count:
                self._give(pieces[stage], first + stage, part)
            if 0 < stage <= count:
                self._add_own(pieces[stage - 1], first + stage - 1, part, bfloat16)
            if stage > 1:
                self._take(pieces[stage - 2], first + stage - 2, part)

    def _meet(self, wait: Wait, begun: bool) -> None:
        """Tell the others that this rank has finished a stage, and wait until they have."""
        self._stage += 1
        finished, stage = self._finished, self._stage
        finished[self._rank * _LINE // 8] = stage
        wait(lambda: all(finished[place] >= stage for place in self._places), begun)

    def _at(self, owner: int, number: int, part: int, like: Array) -> Array:
        """Return where a rank has the values, like these, of a rank's part of a piece."""
        return self._memory[owner, number % 2, part].view(like.dtype)[: like.size]

    def _give(self, piece: Array, number: int, part: int) -> None:
        for other in self._others:
            values = piece[other * part : (other + 1) * part]
            np.copyto(self._at(self._rank, number, other, values), values)

    def _add_own(self, piece: Array, number: int, part: int, bfloat16: bool) -> None:
        own = piece[self._rank * part : (self._rank + 1) * part]
        total = self._at(self._rank, number, self._rank, own)
        rows = [self._at(other, number, self._rank, own) for other in self._others]
        rows.insert(self._rank, own)
        step = _IN_CACHE // own.itemsize
        for start in range(0, own.size, step):
            here = slice(start, start + step)
            sum_rows([row[here] for row in rows], total[here], bfloat16=bfloat16)
            np.copyto(own[here], total[here])

    def _take(self, piece: Array, number: int, part: int) -> None:
        for other in self._others:
            values = piece[other * part : (other + 1) * part]
            np.copyto(values, self._at(other, number, other, values))


def _part_bytes(size: int) -> int:
    return -(-_AT_ONCE // (size * _LINE)) * _LINE


def share_memory(communicator: Communicator) -> SharedSums | None:
    """Return sums through memory that all ranks of a communicator share; None where they do not, or cannot.

    All ranks call it. Rank 0 makes a file in memory, which the others open where the system lists the files of a
    process: they find it on the same host only. Nothing of it is left when the processes end.
    """
    rank, nbytes = communicator.rank, SharedSums.bytes_for(communicator.size)
    place = np.zeros(2 + _TOKEN, np.int64)  # process, number of the file, and a part of its name
    number = _new_file(nbytes, place) if rank == 0 else None
    communicator.broadcast(place, 0)
    number = number if rank == 0 else _opened(place)
    memory = None if number is None else _mapped(number, nbytes)
    missing = np.array([memory is None], np.int64)
    communicator.allreduce(missing, maximum=True)
    if number is not None:
        os.close(number)  # all have opened it
    return None if memory is None or missing[0] else SharedSums(memory, rank, communicator.size)


def _new_file(nbytes: int, place: Array) -> int | None:
    """Make a file in memory; return its number, having written to ``place`` where others find it."""
    if not hasattr(os, "memfd_create") or platform.machine() != PROCESSOR:
        return None
    token = secrets.token_bytes(_TOKEN)
    try:
        number = os.memfd_create(_name(token))
    except OSError:
        return None
    os.truncate(number, nbytes)
    place[:] = [os.getpid(), number, *token]
    return number


def _name(token: bytes) -> str:
    return f"netbuilder-{token.hex()}"


def _opened(place: Array) -> int | None:
    """Open the file of rank 0; None if it is not on this host, or may not be opened."""
    process, number, *token = place.tolist()
    path = f"/proc/{process}/fd/{number}"
    try:
        if _name(bytes(token)) in os.readlink(path) and _network(process) == _network("self"):
            return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        pass
    return None


def _network(process: int | str) -> str:
    """Return what stands for the network of a process: hosts that share a kernel have one each."""
    return os.readlink(f"/proc/{process}/ns/net")


def _mapped(number: int, nbytes: int) -> mmap.mmap | None:
    try:
        memory = mmap.mmap(number, nbytes)
    except OSError:
        return None
    with suppress(OSError):  # the kernel has no large pages for it
        memory.madvise(LARGE_PAGES)
    return memory
