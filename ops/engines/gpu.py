"""GPUs: their streams, synchronization between them, and copies between GPUs and the host.

All kernels that the process runs on a GPU go to one stream, so they run in the order of their launch, and freed memory
can be reused at once. Synchronization is needed only where a value goes from one GPU to another: the copy waits for the
owner's earlier work, and the owner's later work waits for the copy. A plan's copies have a stream of their own on the
receiving GPU, so that both GPUs compute at the same time (``begin_copy``). The host waits when it reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from netbuilder.data.forking import after_fork, new_lock
from netbuilder.ops.engines.arrays import array_module, gpu_count
from netbuilder.proto import PROTO_CUDA, DeviceError

__all__ = ["GPU", "adopt", "begin_copy", "copy_into", "gpu", "gpu_of", "here", "to_host"]


class GPU:
    """A GPU and its stream. Inside ``with gpu(0):``, which may be nested, this thread's CuPy calls use that stream.

    Attributes:
        id: its number.
        xp: cupy.
    """

    __slots__ = ("_copies", "_device", "_stream", "id", "xp")

    def __init__(self, xp: Any, number: int) -> None:
        self.xp = xp
        self.id = number
        self._device = xp.cuda.Device(number)
        with self._device:
            self._stream = xp.cuda.Stream()
            self._copies = xp.cuda.Stream(non_blocking=True)

    def __repr__(self) -> str:
        return f"GPU({self.id})"

    def __enter__(self) -> GPU:
        self._device.__enter__()
        self._stream.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.__exit__(*error)
        self._device.__exit__(*error)

    def wait_for(self, other: GPU) -> None:
        """Make later work of this GPU wait for the work that the other GPU has now."""
        with other._device:  # an event belongs to the device that it was made on
            event = other._stream.record(self.xp.cuda.Event(disable_timing=True))
        self._stream.wait_event(event)

    def record_event(self) -> Any:
        """Return an event that is complete when the GPU has finished the work that it has now."""
        with self._device:
            return self._stream.record(self.xp.cuda.Event(disable_timing=True))

    def receive(self, buffer: Any, value: Any, other: GPU) -> Any:
        """Copy memory from another GPU, on the copy stream, after the work that both GPUs have now.

        Returns:
            An event that is complete when the copy is done.
        """
        for owner in (other, self):
            self._copies.wait_event(owner.record_event())
        with self._device, self._copies:
            buffer.data.copy_from_device_async(value.data, value.nbytes)
            return self._copies.record(self.xp.cuda.Event(disable_timing=True))

    def new_event(self) -> Any:
        """Return an event of this GPU, for ``begin_exchange`` or ``end_exchange``."""
        with self._device:
            return self.xp.cuda.Event(disable_timing=True)

    def begin_exchange(self, ready: Any) -> Any:
        """Return the stream of exchanges, whose later work waits for the work that the GPU has now.

        Args:
            ready: an event of this GPU, recorded anew.
        """
        with self._device:
            self._stream.record(ready)
        self._copies.wait_event(ready)
        return self._copies

    def end_exchange(self, done: Any) -> None:
        """Record an event that is complete when the stream of exchanges has finished the work that it has now."""
        with self._device:
            self._copies.record(done)

    def wait_until(self, event: Any) -> None:
        """Make later work of this GPU wait for an event."""
        self._stream.wait_event(event)

    def synchronize(self) -> None:
        """Wait until the GPU has finished all its work."""
        self._stream.synchronize()


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
                    "device option, or build the net with Parallelize_CPU"
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
        with here:
            buffer[...] = here.xp.asarray(np.asarray(value, buffer.dtype))
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


def begin_copy(buffer: Any, value: Any) -> Callable[[], None]:
    """Begin to copy an array to a contiguous buffer of its shape and dtype on another GPU.

    Returns:
        A call that makes both GPUs wait for the copy. Before it, do not read the buffer or overwrite the array.
    """
    here, there = gpu(buffer.device.id), gpu(value.device.id)
    with there:
        value = there.xp.ascontiguousarray(value)
    done = here.receive(buffer, value, there)

    def wait(kept: Any = value) -> None:  # keeps a contiguous copy alive until the owner waits
        here.wait_until(done)
        there.wait_until(done)

    return wait


def adopt(value: Any) -> Any:
    """Return a copy of an array on a GPU that CuPy or another library made, on any stream."""
    xp = array_module(PROTO_CUDA)
    array = value if isinstance(value, xp.ndarray) else xp.asarray(value)
    array.device.synchronize()
    with gpu(array.device.id) as there:
        copy = array.copy()
    there.synchronize()  # after this the owner may overwrite the array
    return copy
