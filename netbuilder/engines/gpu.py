"""GPUs: their streams, synchronization between them, and copies between GPUs and the host.

Each GPU has three streams, which run at the same time: one computes, one exchanges values with other GPUs, one receives
input. Work of one stream runs in the order of its launch, and freed memory can be reused at once. Synchronization is
needed only where a value goes from one stream to another: the later work waits for an event, on the GPU. Events are
made once and used again. The host waits when it reads.

A capture (``netbuilder.engines.cuda.capture``) replaces the streams for the thread that captures.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from netbuilder.data.forking import after_fork, new_lock
from netbuilder.engines.arrays import array_module, gpu_count
from netbuilder.proto import PROTO_CUDA, DeviceError

__all__ = [
    "GPU",
    "Stream",
    "StreamRole",
    "Streams",
    "after_reads",
    "begin_copy",
    "copy_into",
    "gpu",
    "gpu_of",
    "here",
    "to_host",
]


class StreamRole(enum.Enum):
    """What a stream of a GPU is for."""

    COMPUTE = "compute"
    EXCHANGE = "exchange"  #: copies from other GPUs, and collectives
    INPUT = "input"  #: batches, from the host


class Stream:
    """A stream of a GPU, with the event by which other streams wait for it.

    Attributes:
        raw: CuPy's stream.
    """

    __slots__ = ("_event", "raw")

    def __init__(self, xp: Any, device: Any) -> None:
        with device:  # streams and events belong to the device that they are made on
            self.raw = xp.cuda.Stream(non_blocking=True)
            self._event = xp.cuda.Event(disable_timing=True)

    def wait_for(self, other: Stream) -> None:
        """Make later work of this stream wait for the work that the other one has now."""
        # Another thread may record the event in between: then this waits for that work, too.
        self.raw.wait_event(other.raw.record(other._event))


Streams = Mapping[StreamRole, Stream]


class _OfThread(threading.local):
    """What a thread uses in place of a GPU's own streams, and of the one that computes."""

    streams: Streams | None = None
    computing: Stream | None = None


class GPU:
    """A GPU and its streams.

    Inside ``with gpu(0):``, which may be nested, this thread's CuPy calls use the stream that computes.

    Attributes:
        id: its number.
        memory: how many bytes it has.
        xp: cupy.
    """

    __slots__ = ("__weakref__", "_computing", "_device", "_of_thread", "_streams", "id", "memory", "xp")

    def __init__(self, xp: Any, number: int) -> None:
        self.xp = xp
        self.id = number
        self._device = xp.cuda.Device(number)
        self._streams = self.new_streams(*StreamRole)
        self._computing = self._streams[StreamRole.COMPUTE]
        self._of_thread = _OfThread()
        self.memory: int = self._device.mem_info[1]

    def __repr__(self) -> str:
        return f"GPU({self.id})"

    def __enter__(self) -> GPU:
        self._device.__enter__()
        (self._of_thread.computing or self._computing).raw.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._computing.raw.__exit__(*error)  # which ends the use of the stream that was entered last
        self._device.__exit__(*error)

    def stream(self, role: StreamRole = StreamRole.COMPUTE) -> Stream:
        """Return a stream; in a thread that captures, that of the capture."""
        return (self._of_thread.streams or self._streams)[role]

    @contextmanager
    def on(self, role: StreamRole) -> Iterator[GPU]:
        """Inside ``with gpu(0).on(role):`` this thread's CuPy calls use that stream; so does ``with gpu(0):`` in it."""
        own = self._of_thread
        before, own.computing = own.computing, self.stream(role)
        try:
            with self:
                yield self
        finally:
            own.computing = before

    @contextmanager
    def using(self, streams: Streams) -> Iterator[GPU]:
        """Inside, this thread uses other streams in place of the GPU's own."""
        own = self._of_thread
        before = own.streams, own.computing
        own.streams, own.computing = streams, streams[StreamRole.COMPUTE]
        try:
            with self:
                yield self
        finally:
            own.streams, own.computing = before

    def new_streams(self, *roles: StreamRole) -> Streams:
        """Return new streams for these roles."""
        return {role: Stream(self.xp, self._device) for role in roles}

    def new_event(self) -> Any:
        """Return an event of this GPU."""
        with self._device:
            return self.xp.cuda.Event(disable_timing=True)

    def wait_for(self, other: GPU) -> None:
        """Make what this GPU computes later wait for what the other GPU computes now."""
        self.stream().wait_for(other.stream())

    def record_event(self, event: Any = None) -> Any:
        """Return an event that is complete when the GPU has computed what it has to compute now.

        Args:
            event: from ``new_event``, to be used again; None: a new one.
        """
        return self.stream().raw.record(self.new_event() if event is None else event)

    def receive(self, buffer: Any, value: Any, other: GPU, event: Any = None) -> Any:
        """Copy memory from another GPU, on the stream for exchange, after what both GPUs compute now.

        Args:
            buffer: where to copy it, on this GPU.
            value: a contiguous array on the other GPU.
            other: that GPU.
            event: from ``new_event``, to be used again; None: a new one.

        Returns:
            An event that is complete when the copy is done.
        """
        exchange = self.stream(StreamRole.EXCHANGE)
        for owner in (other, self):
            exchange.wait_for(owner.stream())
        with self.on(StreamRole.EXCHANGE):
            buffer.data.copy_from_device_async(value.data, value.nbytes)
        return exchange.raw.record(self.new_event() if event is None else event)

    def begin_exchange(self, ready: Any) -> Any:
        """Return the stream for exchange (CuPy's), whose later work waits for an event.

        Args:
            ready: from ``record_event``: what has to be computed before.
        """
        exchange = self.stream(StreamRole.EXCHANGE).raw
        exchange.wait_event(ready)
        return exchange

    def end_exchange(self, done: Any) -> None:
        """Record an event that is complete when the stream for exchange has finished the work that it has now."""
        self.stream(StreamRole.EXCHANGE).raw.record(done)

    def wait_until(self, event: Any) -> None:
        """Make what this GPU computes later wait for an event."""
        self.stream().raw.wait_event(event)

    def synchronize(self) -> None:
        """Wait until the GPU has computed all that it had to compute."""
        self.stream().raw.synchronize()


after_reads: list[Callable[[int], None]] = []
"""Functions of the number of a GPU that are called when the host has waited for it to read a value."""

_made: dict[int, GPU] = {}
_lock = new_lock()
_used_before_fork = False


@after_fork
def _forked() -> None:
    """Drop the GPUs: after a fork, a CUDA driver that was in use works only in the parent."""
    global _used_before_fork
    _used_before_fork = _used_before_fork or bool(_made)
    _made.clear()


def gpu(number: int) -> GPU:
    """Return the GPU of this number; its stream is made at the first call.

    Raises:
        DeviceError: no GPU can be used, or there is none with this number.
    """
    found = _made.get(number)
    if found is None:
        if _used_before_fork:
            raise DeviceError(
                f"GPU {number} cannot be used here: this process was forked from one that had used GPUs; start it with "
                "multiprocessing.get_context('spawn') instead, or fork before GPUs are first used"
            )
        with _lock:
            xp, present = array_module(PROTO_CUDA), gpu_count()
            if not 0 <= number < present:
                raise DeviceError(
                    f"there is no GPU {number}; this machine has GPUs {list(range(present))}: name one of them in the "
                    "device option, or build the net for the CPU (Parallelize_CPU, cpu_device=True)"
                )
            found = _made.get(number) or _made.setdefault(number, GPU(xp, number))
    return found


def gpu_of(array: Any) -> int | None:
    """Return the number of the GPU that an array is on; None: it is on the host."""
    return int(array.device.id) if hasattr(array, "__cuda_array_interface__") else None


def here(array: Any, number: int) -> Any:
    """Return an array, on the host or on any GPU, as an array on a GPU: itself, or a copy."""
    if gpu_of(array) == number:
        return array
    with gpu(number) as receiver:
        copy = receiver.xp.empty(array.shape, array.dtype)
    copy_into(copy, array)
    return copy


def to_host(array: Any) -> np.ndarray[Any, Any]:
    """Return ``array`` as a NumPy array; an array on a GPU is copied when the GPU has finished earlier work."""
    if isinstance(array, np.ndarray):
        return array
    if not hasattr(array, "__cuda_array_interface__"):
        return np.asarray(array)
    with gpu(array.device.id):
        host: np.ndarray[Any, Any] = array.get()
    for check in after_reads:
        check(array.device.id)
    return host


def copy_into(buffer: Any, value: Any) -> None:
    """Copy an array into a buffer of its shape; both may be on the host or on any GPU.

    A buffer on a GPU must be contiguous. GPUs need not be able to access each other's memory.
    """
    if isinstance(buffer, np.ndarray):
        np.copyto(buffer, to_host(value), casting="same_kind")
        return
    here = gpu(buffer.device.id)
    if isinstance(value, np.ndarray):
        given = np.asarray(value, buffer.dtype)
        with here:
            if given.shape == buffer.shape:
                buffer.set(given)
            else:
                buffer[...] = here.xp.asarray(given)
            if _is_pinned(here, given):  # the GPU copies it by itself, and the caller may change it afterwards
                here.synchronize()
        return
    there = gpu(value.device.id)
    if there is here:
        with here:
            buffer[...] = value
        return
    if value.shape != buffer.shape:
        raise ValueError(f"a value of shape {value.shape} does not fit a buffer of shape {buffer.shape}")
    with there:
        value = there.xp.ascontiguousarray(value, dtype=buffer.dtype)
    here.wait_for(there)
    with here:  # a memory copy; `buffer[...] = value` may run a kernel, which needs peer access
        buffer.data.copy_from_device_async(value.data, value.nbytes)
    there.wait_for(here)


def _is_pinned(here: GPU, array: np.ndarray[Any, Any]) -> bool:
    """Whether memory of the host is pinned: then the call that begins a copy of it returns before the copy is made."""
    if array.base is None or not array.nbytes:
        return False  # NumPy's own memory
    runtime = here.xp.cuda.runtime
    return bool(runtime.pointerGetAttributes(array.ctypes.data).type == runtime.memoryTypeHost)


def begin_copy(buffer: Any, value: Any, event: Any = None) -> Callable[[], None]:
    """Begin to copy an array to a contiguous buffer of its shape and dtype on another GPU.

    Args:
        buffer: where to copy it.
        value: the array.
        event: of the buffer's GPU (``GPU.new_event``), to be used again by the next such copy; None: a new one.

    Returns:
        A call that makes both GPUs wait for the copy. Before it, do not read the buffer or overwrite the array.
    """
    here, there = gpu(buffer.device.id), gpu(value.device.id)
    with there:
        value = there.xp.ascontiguousarray(value)
    done = here.receive(buffer, value, there, event)

    def wait(kept: Any = value) -> None:  # keeps a contiguous copy alive until the owner waits
        here.wait_until(done)
        there.wait_until(done)

    return wait
