"""Sums over the processes of one host: each reads what it adds, and the sums of the others, from their memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np

from netbuilder.distributed.transport.communicator import Communicator
from netbuilder.distributed.transport.reductions import sum_rows

__all__ = ["LEAST_BYTES", "PROCESSOR", "HostSums", "host_sums"]

Array = np.ndarray[Any, np.dtype[Any]]
Wait = Callable[[Callable[[], bool], bool], None]

LEAST_BYTES = 512 << 10
"""Bytes of an array from which its sum takes longer than the ranks need to meet."""

PROCESSOR = "x86_64"
"""Processors whose stores are seen in the order in which they are made; Python has no fence for those of others."""

_IN_CACHE = 256 << 10  # bytes of all other ranks that are read at a time, and added before the next
_LEAST_PIECE = 32 << 10  # bytes of one of them
_LINE = 64  # bytes of a line of the caches: each rank writes its numbers to one of its own
_STAGE, _ADDRESS, _PROCESS = range(3)  # these numbers: stages that it has finished, its array, and its process
_TOKEN = 8  # bytes


class _Memory(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


class HostSums:
    """Sums of arrays over ranks that may read one another's memory, in the order of the ranks.

    Each rank adds its part of an array: it reads the others' values of it in pieces that stay in a cache. Then it reads
    the sums of the other parts. MPI copies more. All ranks make the same calls, in the same order.

    Args:
        shared: memory that the ranks share, of ``_LINE`` bytes for each of them.
        rank, size: as of a communicator.
    """

    def __init__(self, shared: mmap.mmap, rank: int, size: int) -> None:
        self._numbers, self._rank, self._size = memoryview(shared).cast("q"), rank, size
        self._others = [other for other in range(size) if other != rank]
        self._stage = 0
        self._pieces = np.empty((size, max(_IN_CACHE // (size - 1) // _LINE * _LINE, _LEAST_PIECE)), np.uint8)
        self._copy = ctypes.CDLL(None, use_errno=True).process_vm_readv
        self._copy.restype, of = ctypes.c_ssize_t, ctypes.POINTER(_Memory)
        self._here, self._there = _Memory(), _Memory()
        self._copy.argtypes = [ctypes.c_int, of, ctypes.c_ulong, of, ctypes.c_ulong, ctypes.c_ulong]
        self._set(_PROCESS, os.getpid())

    def show(self, array: Array) -> None:
        """Tell the others where an array is."""
        self._set(_ADDRESS, array.ctypes.data)

    def sees(self, array: Array) -> bool:
        """Whether this rank reads from the others, which have shown theirs, arrays that are equal to this one."""
        copy = np.zeros_like(array)
        try:
            for other in self._others:
                self._read(other, self._get(other, _ADDRESS), copy.ctypes.data, copy.nbytes)
                if not np.array_equal(copy, array):
                    return False
        except OSError:
            return False
        return True

    def add(self, array: Array, wait: Wait, *, bfloat16: bool = False) -> None:
        """Replace an array by its sum over the ranks.

        Args:
            array: one-dimensional, not empty, of the same size and type on all ranks.
            wait: returns when its first argument returns true; the second is whether all ranks have begun the call.
            bfloat16: see ``Communicator.allreduce``.
        """
        self.show(array)
        self._meet(wait, begun=False)
        addresses = [self._get(rank, _ADDRESS) for rank in range(self._size)]
        size, line = array.itemsize, _LINE // array.itemsize
        part = -(-array.size // (self._size * line)) * line
        cuts = [min(rank * part, array.size) for rank in range(self._size + 1)]
        try:
            self._add_own(array, cuts[self._rank], cuts[self._rank + 1], addresses, bfloat16)
            self._meet(wait, begun=True)
            for other in self._others:
                begin, end = cuts[other] * size, cuts[other + 1] * size
                self._read(other, addresses[other] + begin, addresses[self._rank] + begin, end - begin)
        except OSError:  # the other one has ended: its end, or the time limit, ends the wait of all
            wait(lambda: False, True)
            raise
        self._meet(wait, begun=True)  # the others have read what the caller may overwrite

    def _add_own(self, array: Array, start: int, stop: int, addresses: list[int], bfloat16: bool) -> None:
        """Add the values of all ranks from one element to another, in place."""
        pieces = self._pieces.view(array.dtype)
        places = [(other, addresses[other], pieces[other].ctypes.data) for other in self._others]
        for begin in range(start, stop, pieces.shape[1]):
            total = array[begin : min(begin + pieces.shape[1], stop)]
            for other, address, to in places:
                self._read(other, address + begin * array.itemsize, to, total.nbytes)
            rows = list(pieces[:, : total.size])
            if self._rank > 1:
                np.copyto(rows[self._rank], total)
            else:
                rows[self._rank] = total
            sum_rows(rows, total, bfloat16=bfloat16)

    def _read(self, other: int, address: int, to: int, nbytes: int) -> None:
        """Copy memory of another rank to an address; raise OSError if it has ended, or does not allow it."""
        process, done = self._get(other, _PROCESS), 0
        while done < nbytes:
            copied = self._copy_from(process, address + done, to + done, nbytes - done)
            if copied <= 0:
                number = ctypes.get_errno()
                raise OSError(number, f"cannot read memory of rank {other}: {os.strerror(number)}")
            done += copied

    def _copy_from(self, process: int, address: int, to: int, nbytes: int) -> int:
        """Copy memory of a process; return how many bytes were copied, or -1."""
        here, there = self._here, self._there
        here.address, here.nbytes, there.address, there.nbytes = to, nbytes, address, nbytes
        copied: int = self._copy(process, here, 1, there, 1, 0)
        return copied

    def _meet(self, wait: Wait, *, begun: bool) -> None:
        """Tell the others that this rank has finished a stage, and wait until they have."""
        self._stage += 1
        self._set(_STAGE, self._stage)
        wait(lambda: all(self._get(other, _STAGE) >= self._stage for other in self._others), begun)

    def _set(self, which: int, number: int) -> None:
        self._numbers[self._rank * (_LINE // 8) + which] = number

    def _get(self, rank: int, which: int) -> int:
        return self._numbers[rank * (_LINE // 8) + which]


def host_sums(communicator: Communicator) -> HostSums | None:
    """Return sums over the ranks of a communicator; None where not all can read one another's memory.

    All ranks call it. Rank 0 makes a file in memory, which the others open where the system lists the files of a
    process: they find it on the same host only. Nothing of it is left when the processes end.
    """
    rank, size = communicator.rank, communicator.size
    place = np.zeros(2 + _TOKEN, np.int64)  # process of rank 0, number of the file, and a part of its name
    number = _new_file(size * _LINE, place) if rank == 0 else None
    communicator.broadcast(place, 0)
    number = number if rank == 0 else _opened(place)
    found = None if number is None else HostSums(mmap.mmap(number, size * _LINE), rank, size)
    if found is not None:
        found.show(place)
    communicator.barrier()
    missing = np.array([found is None or not found.sees(place)], np.int64)
    communicator.allreduce(missing, maximum=True)
    if number is not None:
        os.close(number)  # all have opened it
    return None if missing[0] else found


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
