"""A machine with GPUs that are not there: devices, streams, events and memory, and who has to wait for whom.

Calls take effect when they are issued, as if every GPU were through with its work at once. Whether a program would
be right on GPUs that take their time is told from clocks: each stream counts what it was given and knows how far the
streams that it has waited for had come. Work that touches memory which another stream uses, without having waited
for it, is a ``Race``.

What a captured stream is given is kept, not done; a graph does it as often as it is launched. Copies from pinned memory
check, when the host knows them to be done, that nobody has overwritten it; copies to it arrive then.
"""

from __future__ import annotations

import threading
import weakref
import zlib
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

__all__ = ["CUDARuntimeError", "Graph", "Launch", "Machine", "Memory", "Race", "Region", "Stream", "Transfer"]

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
    replayed: bool = False  # by a graph, not by a call of the host


@dataclass(frozen=True)
class Transfer:
    """A copy between devices; -1 is the host."""

    source: int
    target: int
    nbytes: int
    pinned: bool = field(default=False, compare=False)  # from or to pinned memory of the host


class Region(NamedTuple):
    """A part of an allocation: the addresses at which it begins and ends."""

    memory: Memory
    start: int
    end: int


class _Uses:
    """Who has used which part of an allocation last: parts in order, none of which overlap, with a stamp each."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.stamps: list[Stamp] = []

    def _between(self, start: int, end: int) -> tuple[int, int]:
        return bisect_right(self._ends, start), bisect_left(self._starts, end)

    def of(self, start: int, end: int) -> list[Stamp]:
        first, last = self._between(start, end)
        return self.stamps[first:last]

    def note(self, start: int, end: int, stamp: Stamp | None) -> None:
        """Replace what is known of a part; by nothing, if there is no stamp."""
        first, last = self._between(start, end)
        parts = [] if stamp is None or start == end else [(start, end, stamp)]
        if first < last:
            if self._starts[first] < start:
                parts.insert(0, (self._starts[first], start, self.stamps[first]))
            if end < self._ends[last - 1]:
                parts.append((end, self._ends[last - 1], self.stamps[last - 1]))
        self._starts[first:last] = [part[0] for part in parts]
        self._ends[first:last] = [part[1] for part in parts]
        self.stamps[first:last] = [part[2] for part in parts]


@dataclass
class _InFlight:
    """A copy from or to pinned memory that the host does not know to be done."""

    stamp: Stamp
    host: Any  # the pinned memory, bytes
    digest: int = 0  # of what is copied to the GPU
    arrives: bytes | None = None  # what is copied to the host


@dataclass
class _Node:
    """What a captured stream was given: work, or a wait for what other streams of the capture had been given."""

    stream: int
    name: str
    reads: list[Region]
    writes: list[Region]
    do: Callable[[], object] | None
    after: Clock


class Capture:
    """A capture in progress: the streams that take part, and what they were given."""

    def __init__(self, origin: Stream) -> None:
        self.origin = origin
        self.thread = threading.get_ident()
        self.streams = {origin.number: origin}
        self.clocks: dict[int, Clock] = {origin.number: {}}  # of each stream: what comes before its next work
        self.nodes: list[_Node] = []
        self.invalid = False

    def add(self, stream: Stream, name: str, reads: list[Region], writes: list[Region], do: Any) -> None:
        clock = self.clocks[stream.number]
        self.nodes.append(_Node(stream.number, name, reads, writes, do, dict(clock)))
        clock[stream.number] = len(self.nodes)

    def join(self, stream: Stream, clock: Clock) -> None:
        """Let a stream take part, or wait for another one that does."""
        if stream.number not in self.clocks:
            self.streams[stream.number], self.clocks[stream.number] = stream, {}
            stream.capture = self
        merge(self.clocks[stream.number], clock)

    @property
    def unjoined(self) -> list[int]:
        """The streams with work for which the origin does not wait."""
        last = {node.stream: index for index, node in enumerate(self.nodes, 1)}
        known = self.clocks[self.origin.number]
        return [number for number, index in last.items() if known.get(number, 0) < index]


class Stream:
    """The part of a stream that orders work; a null stream here waits for no other, so nothing hides behind it."""

    def __init__(self, machine: Machine, device: int, number: int) -> None:
        self.machine = machine
        self.device = device
        self.number = number
        self.clock: Clock = {}
        self.calls = 0
        self.capture: Capture | None = None

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
    """An allocation: its device, the stream that it was made for, and who used which part of it last.

    Attributes:
        storage: what keeps its bytes.
    """

    def __init__(self, machine: Machine, device: int, stream: Stream, nbytes: int) -> None:
        self.device = device
        self.nbytes = nbytes
        self.address = 0  # of its first byte, once an array has it
        self.storage: Any = None
        self.written = _Uses()
        self.read: dict[int, _Uses] = defaultdict(_Uses)  # by the stream
        self._machine = machine
        self._stream = stream

    def __del__(self) -> None:
        """Note memory that its stream may use again while another one is still at work in it."""
        if merge is None:
            return  # the interpreter is ending
        with self._machine.lock:
            known = dict(self._stream.clock)
            merge(known, self._machine.host_clock)
            for stamp in (stamp for uses in (*self.read.values(), self.written) for stamp in uses.stamps):
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
        allocated: the device of each allocation, in order.
        faults: what went wrong where nobody could be told.
        counts: how often the host has called for each kind of thing: "launches", "replays" (of graphs), "copies",
            "allocations", "records" and "waits" of events by streams, "reads" and "synchronizations" for which the host
            waits, new "events" and "streams".
    """

    def __init__(self, devices: int, *, peers: bool = True) -> None:
        self.devices = devices
        self.peers = peers
        self.launches: list[Launch] = []
        self.transfers: list[Transfer] = []
        self.allocated: list[int] = []
        self.faults: list[str] = []
        self.counts: Counter[str] = Counter()
        self.host_clock: Clock = {}
        self.lock = threading.RLock()
        self._in_flight: list[_InFlight] = []
        self._pinned: dict[int, Any] = {}  # address -> memory
        self._streams: list[Stream] = []
        self._memories: weakref.WeakSet[Memory] = weakref.WeakSet()
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

    def count(self, what: str) -> None:
        self.counts[what] += 1
        self.counts_of_thread[what] += 1

    @property
    def counts_of_thread(self) -> Counter[str]:
        """What this thread has called for, see ``counts``."""
        found: Counter[str] = self._thread.__dict__.setdefault("counts", Counter())
        return found

    # Captures.

    @property
    def captures(self) -> list[Capture]:
        """The captures that this thread has begun."""
        found: list[Capture] = self._thread.__dict__.setdefault("captures", [])
        return found

    def refuse_in_capture(self, stream: Stream | None = None) -> None:
        """Raise an error if this thread captures, or if the stream is captured: that capture is of no use any more."""
        found = [*self.captures, *([stream.capture] if stream is not None and stream.capture is not None else [])]
        for capture in found:
            capture.invalid = True
        if found:
            raise CUDARuntimeError(
                "cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing"
            )

    def begin_capture(self, stream: Stream) -> None:
        with self.lock:
            if stream in self._null:
                raise RuntimeError("cannot capture on the default (legacy) stream")
            if stream.capture is not None:
                raise CUDARuntimeError("cudaErrorIllegalState: the operation cannot be performed in the present state")
            stream.capture = Capture(stream)
            self.captures.append(stream.capture)

    def end_capture(self, stream: Stream) -> Graph:
        with self.lock:
            capture = stream.capture
            if capture is None or capture.origin is not stream:
                raise CUDARuntimeError("cudaErrorIllegalState: the stream is not one that begins a capture")
            if capture.thread != threading.get_ident():
                raise CUDARuntimeError("cudaErrorStreamCaptureWrongThread: the capture was begun by another thread")
            self.captures.remove(capture)
            for each in capture.streams.values():
                each.capture = None
            if capture.invalid:
                raise CUDARuntimeError("cudaErrorStreamCaptureInvalidated: operation failed due to a previous error")
            if capture.unjoined:
                raise CUDARuntimeError("cudaErrorStreamCaptureUnjoined: capturing stream has unjoined work")
            return Graph(self, capture)

    def wait(self, stream: Stream, clock: Clock, capture: Capture | None, captured: Clock) -> None:
        """Make a stream wait for an event, which was recorded in a capture or outside of all."""
        with self.lock:
            self.count("waits")
            if capture is not None and capture is not stream.capture and stream.capture is not None:
                stream.capture.invalid = capture.invalid = True
                raise CUDARuntimeError("cudaErrorStreamCaptureMerge: an event of another capture")
            if capture is not None and capture.origin.capture is not capture:
                raise CUDARuntimeError("cudaErrorCapturedEvent: the event was recorded in a capture that is over")
            if stream.capture is not None and capture is None:
                stream.capture.invalid = True
                raise CUDARuntimeError("cudaErrorStreamCaptureIsolation: the event was recorded outside of the capture")
            if capture is not None:
                capture.join(stream, captured)
            else:
                merge(stream.clock, clock)

    # Work.

    def allocate(self, nbytes: int) -> Memory:
        with self.lock:
            self.refuse_in_capture()
            self.count("allocations")
            self.allocated.append(self.device)
            memory = Memory(self, self.device, self.stream, nbytes)
            self._memories.add(memory)
            return memory

    def region_at(self, address: int, nbytes: int) -> Region:
        """Return the part of an allocation that begins at an address."""
        with self.lock:
            for memory in self._memories:
                if memory.address <= address and address + nbytes <= memory.address + memory.nbytes:
                    return Region(memory, address, address + nbytes)
        raise CUDARuntimeError(f"cudaErrorIllegalAddress: {address:#x} is in no memory of a GPU")

    def launch(
        self,
        name: str,
        reads: Iterable[Region],
        writes: Iterable[Region],
        stream: Stream | None = None,
        do: Callable[[], object] | None = None,
        *,
        replayed: bool = False,
    ) -> Stamp:
        """Give work to a stream, by default the current one, and do it; a captured stream keeps it.

        Raises:
            Race: it does not come after what another stream does with the same memory.
        """
        reads, writes = list(reads), list(writes)
        with self.lock:
            stream = stream or self.stream
            if not replayed:
                self.count("launches")
            if stream.capture is not None:
                if do is None:
                    self.refuse_in_capture(stream)
                stream.capture.add(stream, name, reads, writes, do)
                return stream.number, 0
            stamp = stream.issue()
            for memory, start, end in (*reads, *writes):
                for written in memory.written.of(start, end):
                    self._require(written, stream, name, "written")
            for memory, start, end in writes:
                for uses in memory.read.values():
                    for read in uses.of(start, end):
                        self._require(read, stream, name, "read")
            for memory, start, end in reads:
                memory.read[stream.number].note(start, end, stamp)
            for memory, start, end in writes:  # which follows whatever was in these parts before
                for uses in memory.read.values():
                    uses.note(start, end, None)
                memory.written.note(start, end, stamp)
            touches = frozenset(region.memory.device for region in (*reads, *writes))
            self.launches.append(Launch(name, stream.device, touches, replayed))
            if do is not None:
                with np.errstate(all="ignore"):
                    do()
            return stamp

    def _require(self, stamp: Stamp, stream: Stream, name: str, what: str) -> None:
        if not _is_past(stamp, stream.clock):
            fault = f"{name} on {stream} does not wait for {self._streams[stamp[0]]}, which has {what} the same memory"
            self.faults.append(fault)
            raise Race(fault)

    def moved(self, source: int, target: int, nbytes: int, *, pinned: bool = False) -> None:
        with self.lock:
            self.count("copies")
            self.transfers.append(Transfer(source, target, nbytes, pinned))

    # Pinned memory.

    def pin(self, address: int, memory: Any) -> None:
        with self.lock:
            self._pinned[address] = memory

    def pinned_part(self, address: int, nbytes: int) -> Any:
        """Return pinned memory as bytes; None if it is not pinned."""
        with self.lock:
            for start, memory in self._pinned.items():
                if start <= address and address + nbytes <= start + memory.size:
                    return memory[address - start : address - start + nbytes]
        return None

    def uploading(self, stamp: Stamp, host: Any) -> None:
        """Note that a GPU copies from pinned memory, which must not change before the host knows that it is done."""
        with self.lock:
            self._in_flight.append(_InFlight(stamp, host, zlib.crc32(host)))

    def downloading(self, stamp: Stamp, host: Any, value: bytes) -> None:
        """Note that a GPU copies to pinned memory; the value is there when the host knows that it is."""
        with self.lock:
            host[...] = 0xFF
            self._in_flight.append(_InFlight(stamp, host, arrives=value))

    def settle(self, *, all: bool = False) -> None:
        """Let the copies arrive that the host knows to be done now."""
        with self.lock:
            done = [each for each in self._in_flight if all or _is_past(each.stamp, self.host_clock)]
            self._in_flight = [each for each in self._in_flight if each not in done]
            for each in done:
                if each.arrives is not None:
                    each.host[...] = np.frombuffer(each.arrives, np.uint8)
                elif zlib.crc32(each.host) != each.digest:
                    fault = "pinned memory was overwritten while a GPU was copying it"
                    self.faults.append(fault)
                    if not all:
                        raise Race(fault)

    # Waiting.

    def known(self, clock: Clock) -> None:
        """Note that the host has waited for this."""
        with self.lock:
            merge(self.host_clock, clock)
            self.settle()

    def synchronize_stream(self, stream: Stream, what: str = "synchronizations") -> None:
        with self.lock:
            self.refuse_in_capture(stream)
            self.count(what)
            self.known(stream.clock)

    def synchronize_device(self, device: int) -> None:
        with self.lock:
            self.refuse_in_capture()
            self.count("synchronizations")
            for stream in self._streams:
                if stream.device == device:
                    self.refuse_in_capture(stream)
                    self.known(stream.clock)


class Graph:
    """What a capture has kept; a launch does it, in the order and on as many streams as it was given."""

    def __init__(self, machine: Machine, capture: Capture) -> None:
        self._machine = machine
        self._nodes = capture.nodes
        self._origin = capture.origin
        others = [each for number, each in capture.streams.items() if number != capture.origin.number]
        self._streams = {each.number: machine.new_stream(each.device) for each in others}

    def __len__(self) -> int:
        return len(self._nodes)

    def launch(self, stream: Stream) -> None:
        machine = self._machine
        with machine.lock:
            if stream.capture is not None:
                machine.refuse_in_capture(stream)
            if stream.device != self._origin.device:
                raise CUDARuntimeError("cudaErrorInvalidResourceHandle: invalid resource handle")
            machine.count("replays")
            before = dict(stream.clock)
            stamps: list[Stamp] = []
            for node in self._nodes:
                at = self._streams.get(node.stream, stream)
                merge(at.clock, before)
                for number in node.after.values():
                    merge(at.clock, dict([stamps[number - 1]]))
                stamps.append(machine.launch(node.name, node.reads, node.writes, at, node.do, replayed=True))
            merge(stream.clock, dict(stamps[-1:]))
            for each in self._streams.values():
                merge(stream.clock, each.clock)
