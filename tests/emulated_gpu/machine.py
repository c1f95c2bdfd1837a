"""What the emulated GPUs report, and what libraries that are emulated in Python need of it."""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

__all__ = [
    "HOST",
    "Launch",
    "Machine",
    "Touches",
    "Transfer",
    "call",
    "collective",
    "device_of_stream",
    "faults",
    "finish",
    "finish_all",
    "recorded",
    "separate_arrays",
]

HOST = -1

_COUNTED = (
    "launches", "replays", "copies", "sets", "allocations", "records", "waits", "reads", "synchronizations", "events",
    "streams",
)  # fmt: skip


class Launch(NamedTuple):
    """A kernel that the host has launched, or a call of a library; that of a graph is named "graph"."""

    name: str
    device: int


class Transfer(NamedTuple):
    """A copy; -1 is the host."""

    source: int
    target: int
    nbytes: int
    pinned: bool = False  # whether memory of the host, if that takes part, is pinned


class Machine:
    """What the host has called for while a block ran, see ``recorded``.

    Attributes:
        launches, transfers: what the GPUs were given, in order; a test may clear them.
        allocated: the device of each allocation, in order.
    """

    def __init__(self) -> None:
        self._launches: list[Launch] = []
        self._transfers: list[Transfer] = []
        self._allocated: list[int] = []
        self._before = _counts(of_thread=False)
        self._after: Counter[str] | None = None

    @property
    def counts(self) -> Counter[str]:
        """How often the host has called for each kind of thing since the block began.

        "launches" of kernels and libraries, "replays" of graphs, "copies", "sets" of memory, "allocations", "records"
        and "waits" of events by streams, "reads" and "synchronizations" for which the host waits, new "events" and
        "streams".
        """
        return (_counts(of_thread=False) if self._after is None else self._after) - self._before

    @property
    def counts_of_thread(self) -> Counter[str]:
        """What this thread has called for since it began."""
        return _counts(of_thread=True)

    @property
    def launches(self) -> list[Launch]:
        self._read()
        return self._launches

    @property
    def transfers(self) -> list[Transfer]:
        self._read()
        return self._transfers

    @property
    def allocated(self) -> list[int]:
        self._read()
        return self._allocated

    def _read(self) -> None:
        if self._after is not None:
            return
        for line in _library().emulated_read_log().decode().splitlines():
            what, first, *rest = line.split(" ", 2)
            if what == "launch":
                self._launches.append(Launch(rest[0], int(first)))
            elif what == "replay":
                self._launches.append(Launch("graph", int(first)))
            elif what == "allocate":
                self._allocated.append(int(first))
            elif what == "copy":
                second, nbytes = rest[0].split()
                source, target = (HOST if end in ("host", "pinned") else int(end) for end in (first, second))
                self._transfers.append(Transfer(source, target, int(nbytes), "pinned" in (first, second)))

    def end(self) -> None:
        self._read()
        self._after = _counts(of_thread=False)


@contextmanager
def recorded(*, access: bool = True) -> Iterator[Machine]:
    """Record what all threads call for while the block runs; blocks may not be nested.

    Args:
        access: False: GPUs cannot read each other's memory, whatever they were allowed before.
    """
    _library().emulated_deny_peers(not access)
    _library().emulated_begin_log()
    machine = Machine()
    try:
        yield machine
    finally:
        machine.end()
        _library().emulated_end_log()
        _library().emulated_deny_peers(False)


class _Range(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("size", ctypes.c_size_t), ("writes", ctypes.c_bool)]


_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@functools.cache
def _library() -> Any:
    library = ctypes.CDLL("libcuda.so.1")
    address, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
    for name in ("emulated_next_fault", "emulated_read_log"):
        getattr(library, name).restype = text
    library.emulated_allocate.argtypes = [address, size, address]
    library.emulated_release.argtypes = [address, address]
    library.emulated_finish.argtypes = library.emulated_stream_device.argtypes = [address]
    library.emulated_call.argtypes = [address, text, _CALLBACK, address, address, size]
    library.emulated_collective.argtypes = [address, size, text, _CALLBACK, address, address, address]
    return library


def _counts(*, of_thread: bool) -> Counter[str]:
    found = (ctypes.c_long * len(_COUNTED))()
    _library().emulated_counts(found, int(of_thread))
    return Counter(dict(zip(_COUNTED, found)))


def faults() -> list[str]:
    """Return what was found to be wrong since the last call, at most 20 things."""
    return [text.decode() for text in iter(_library().emulated_next_fault, None)]


# Libraries that are emulated in Python.


class Touches(NamedTuple):
    """What work of a stream touches: addresses, with numbers of bytes."""

    reads: Sequence[tuple[int, int]]
    writes: Sequence[tuple[int, int]]


_kept: list[Any] = []  # graphs may call functions as long as the process lives
_errors: list[BaseException] = []  # of functions that streams have called


def _callback(do: Callable[[], object]) -> Any:
    def quietly(_: int) -> None:
        try:
            do()
        except BaseException as error:
            _errors.append(error)

    _kept.append(_CALLBACK(quietly))
    return _kept[-1]


def _ranges(parts: Sequence[Touches]) -> Any:
    found = [(start, size, bool(writes)) for part in parts for writes, some in enumerate(part) for start, size in some]
    return (_Range * max(len(found), 1))(*found)


def _raise(status: int) -> None:
    if status:
        from cupy.cuda import runtime

        raise runtime.CUDARuntimeError(status)


def call(stream: int, name: str, do: Callable[[], object], touches: Touches) -> None:
    """Give a stream, by its address, what a library does; it computes by a function of the host. Graphs can hold it."""
    count = len(touches.reads) + len(touches.writes)
    _raise(_library().emulated_call(stream, name.encode(), _callback(do), None, _ranges([touches]), count))


def collective(streams: Sequence[int], name: str, do: Callable[[], object], touches: Sequence[Touches]) -> None:
    """Give streams what they do together: each one's work begins when all have come, and ends when it is done."""
    addresses = (ctypes.c_void_p * len(streams))(*streams)
    counts = (ctypes.c_size_t * len(streams))(*(len(each.reads) + len(each.writes) for each in touches))
    function = _callback(do)
    _raise(
        _library().emulated_collective(addresses, len(streams), name.encode(), function, None, _ranges(touches), counts)
    )


def device_of_stream(stream: int) -> int:
    """Return the device of a stream, which is given by its address; -1: there is none."""
    return int(_library().emulated_stream_device(stream))


def finish(stream: int) -> None:
    """Do what a stream has been given, though the host does not wait for it."""
    _raise(_library().emulated_finish(stream))


def finish_all() -> None:
    """Do what all streams have been given; raise what a function that they have called has raised."""
    _library().emulated_finish_all()
    if _errors:
        error = _errors[0]
        _errors.clear()
        raise error


# Memory.


class _Owner:
    """What keeps the memory of an array."""


def _allocate(size: int) -> Any:
    import cupy

    address, stream = ctypes.c_void_p(), cupy.cuda.get_current_stream().ptr
    status = _library().emulated_allocate(ctypes.byref(address), size, stream)
    if status == 2:
        raise cupy.cuda.memory.OutOfMemoryError(size, 0)
    _raise(status)
    owner = _Owner()
    release = weakref.finalize(owner, _library().emulated_release, address.value, stream)
    release.atexit = False
    memory = cupy.cuda.UnownedMemory(address.value, size, owner, cupy.cuda.runtime.getDevice())
    return cupy.cuda.MemoryPointer(memory, 0)


def separate_arrays() -> None:
    """Let CuPy take memory of its own for each array, so that accesses beyond it are noticed; its pool divides blocks.

    Like the pool, this waits for nothing when an array is freed: its stream may use the memory again.
    """
    import cupy

    cupy.cuda.set_allocator(_allocate)
