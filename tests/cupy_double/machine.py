"""A machine with GPUs that are not there: devices, streams, events and memory, and who has to wait for whom.

Calls take effect when they are issued, as if every GPU were through with its work at once. Whether a program would
be right on GPUs that take their time is told from clocks: each stream counts what it was given and knows how far the
streams that it has waited for had come. Work that touches memory which another stream uses, without having waited
for it, is a ``Race``.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["CUDARuntimeError", "Launch", "Machine", "Memory", "Race", "Stream", "Transfer"]

HOST = -1
_POINTERS = 4096

Stamp = tuple[int, int]  # a stream's number, and how many calls it had been given
Clock = dict[int, int]  # for each stream, up to which call its work is known to be done


class CUDARuntimeError(RuntimeError):
    """What CUDA's runtime refuses."""


class Race(AssertionError):
    """Work that does not wait for what it needs."""


@dataclass(frozen=True)
class Launch:
    """A piece of work given to a GPU, and the devices on which the arrays lie that it touches."""

    name: str
    device: int
    touches: frozenset[int]


@dataclass(frozen=True)
class Transfer:
    """A copy between devices; -1 is the host."""

    source: int
    target: int
    nbytes: int


class Stream:
    """The part of a stream that orders work; a null stream here waits for no other, so nothing hides behind it."""

    def __init__(self, machine: Machine, device: int, number: int) -> None:
        self.machine = machine
        self.device = device
        self.number = number
        self.clock: Clock = {}
        self.calls = 0

    def __str__(self) -> str:
        return f"stream {self.number} of GPU {self.device}"

    @property
    def ptr(self) -> int:
        return _POINTERS + self.number

    def issue(self) -> Stamp:
        """Count one more call; it comes after all that the host has waited for."""
        merge(self.clock, self.machine.host_clock)
        self.calls += 1
        self.clock[self.number] = self.calls
        return self.number, self.calls


def merge(clock: Clock, other: Clock) -> None:
    for stream, calls in other.items():
        if clock.get(stream, 0) < calls:
            clock[stream] = calls


def _is_past(stamp: Stamp, clock: Clock) -> bool:
    return clock.get(stamp[0], 0) >= stamp[1]


class Memory:
    """An allocation: its device, the stream that it was made for, and who used it last."""

    def __init__(self, machine: Machine, device: int, stream: Stream, nbytes: int) -> None:
        self.device = device
        self.nbytes = nbytes
        self.written: Stamp | None = None
        self.read: Clock = {}
        self._machine = machine
        self._stream = stream

    def __del__(self) -> None:
        """Note memory that its stream may use again while another one is still at work in it."""
        with self._machine.lock:
            known = dict(self._stream.clock)
            merge(known, self._machine.host_clock)
            for stamp in (*self.read.items(), *([self.written] if self.written else ())):
                if not _is_past(stamp, known):
                    self._machine.faults.append(
                        f"{self.nbytes} bytes of GPU {self.device} were freed for {self._stream} while stream "
                        f"{stamp[0]} was using them"
                    )


class Machine:
    """GPUs, and the records that tests look at.

    Args:
        devices: how many GPUs.
        peers: whether they can read each other's memory.

    Attributes:
        launches, transfers: what the GPUs were given, in order.
        pointers: the memory at each address that a program has asked for.
        allocated: the device of each allocation, in order.
        faults: what went wrong where nobody could be told.
    """

    def __init__(self, devices: int, *, peers: bool = True) -> None:
        self.devices = devices
        self.peers = peers
        self.launches: list[Launch] = []
        self.transfers: list[Transfer] = []
        self.allocated: list[int] = []
        self.faults: list[str] = []
        self.host_clock: Clock = {}
        self.lock = threading.RLock()
        self.pointers: weakref.WeakValueDictionary[int, Memory] = weakref.WeakValueDictionary()
        self._streams: list[Stream] = []
        self._null = [self.new_stream(device) for device in range(devices)]
        self._thread = threading.local()

    # The state of a thread: its current device, and its current stream on each.

    @property
    def device(self) -> int:
        return getattr(self._thread, "device", 0)

    def set_device(self, number: int) -> None:
        if not 0 <= number < self.devices:
            raise CUDARuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
        self._thread.device = number

    @contextmanager
    def on(self, number: int) -> Iterator[None]:
        before = self.device
        self.set_device(number)
        try:
            yield
        finally:
            self.set_device(before)

    def stack(self, device: int) -> list[Stream]:
        """Return the streams that a thread has made current on a device; the last one is."""
        stacks: dict[int, list[Stream]] = self._thread.__dict__.setdefault("stacks", {})
        return stacks.setdefault(device, [self._null[device]])

    @property
    def stream(self) -> Stream:
        return self.stack(self.device)[-1]

    def new_stream(self, device: int) -> Stream:
        with self.lock:
            stream = Stream(self, device, len(self._streams))
            self._streams.append(stream)
        return stream

    def stream_at(self, pointer: int) -> Stream:
        """Return the stream that CUDA knows by a pointer."""
        return self._streams[pointer - _POINTERS]

    # Work.

    def allocate(self, nbytes: int) -> Memory:
        with self.lock:
            self.allocated.append(self.device)
            return Memory(self, self.device, self.stream, nbytes)

    def launch(
        self, name: str, reads: Iterable[Memory], writes: Iterable[Memory], stream: Stream | None = None
    ) -> None:
        """Give work to a stream, by default the current one.

        Raises:
            Race: it does not come after what another stream does with the same memory.
        """
        reads, writes = list(reads), list(writes)
        with self.lock:
            stream = stream or self.stream
            stamp = stream.issue()
            for memory in (*reads, *writes):
                self._require(memory.written, stream, name, "written")
            for memory in writes:
                for used in memory.read.items():
                    self._require(used, stream, name, "read")
            for memory in reads:
                memory.read[stamp[0]] = stamp[1]
            for memory in writes:
                memory.written, memory.read = stamp, {}
            touches = frozenset(memory.device for memory in (*reads, *writes))
            self.launches.append(Launch(name, stream.device, touches))

    def _require(self, stamp: Stamp | None, stream: Stream, name: str, what: str) -> None:
        if stamp is not None and not _is_past(stamp, stream.clock):
            fault = f"{name} on {stream} does not wait for {self._streams[stamp[0]]}, which has {what} the same memory"
            self.faults.append(fault)
            raise Race(fault)

    def moved(self, source: int, target: int, nbytes: int) -> None:
        with self.lock:
            self.transfers.append(Transfer(source, target, nbytes))

    # Waiting.

    def synchronize_stream(self, stream: Stream) -> None:
        with self.lock:
            merge(self.host_clock, stream.clock)

    def synchronize_device(self, device: int) -> None:
        with self.lock:
            for stream in self._streams:
                if stream.device == device:
                    merge(self.host_clock, stream.clock)
