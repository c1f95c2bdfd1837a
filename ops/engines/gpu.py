"""GPUs: the stream that each works on, how they wait for one another, and copies between them and the host.

All that the process computes on a GPU goes to one stream, so it runs in the order in which it was given, and memory
that is freed can be used again at once. Only where a value goes from one GPU to another must one wait: the copy for
what the owner was told to do before, and what the owner is told to do next for the copy. A plan's copies have a stream
of their own on the GPU that receives, so that both GPUs compute meanwhile (``begin_copy``). The host waits where it
reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from netbuilder.data.forking import after_fork, new_lock
from netbuilder.ops.engines.arrays import array_module, gpu_count
from netbuilder.proto import PROTO_CUDA, DeviceError

__all__ = ["GPU", "adopt", "begin_copy", "copy_into", "gpu", "to_host"]


class GPU:
    """A GPU and its stream. Inside ``with gpu(0):`` CuPy's calls of this thread go there; it may be nested.

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
        """Let what this GPU is given from now on begin when the other is through with all it has been given."""
        with other._device:  # an event belongs to the device that it was made on
            event = other._stream.record(self.xp.cuda.Event(disable_timing=True))
        self._stream.wait_event(event)

    def mark(self) -> Any:
        """Return an event that has come when the GPU is through with all it has been given up to now."""
        with self._device:
            return self._stream.record(self.xp.cuda.Event(disable_timing=True))

    def receive(self, buffer: Any, value: Any, other: GPU) -> Any:
        """Let a stream of its own copy memory from another GPU, after all that both have been given up to now.

        Returns:
            The event that has come when the copy is done.
        """
        for owner in (other, self):
            self._copies.wait_event(owner.mark())
        with self._device, self._copies:
            buffer.data.copy_from_device_async(value.data, value.nbytes)
            return self._copies.record(self.xp.cuda.Event(disable_timing=True))

    def wait_until(self, event: Any) -> None:
        """Let what this GPU is given from now on begin when an event has come."""
        self._stream.wait_event(event)

    def synchronize(self) -> None:
        """Wait until the GPU is through with all it has been given."""
        self._stream.synchronize()


_made: dict[int, GPU] = {}
_lock = new_lock()
_used_before_fork = False


@after_fork
def _forked() -> None:
    """A driver that was used before a fork serves the parent only."""
    global _used_before_fork
    _used_before_fork = _used_before_fork or bool(_made)
    _made.clear()


def gpu(number: int) -> GPU:
    """Return the GPU of this number; its stream is made at the first call.

    Raises:
        DeviceError: no GPU can be used, or none has this number.
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


def to_host(array: Any) -> np.ndarray[Any, Any]:
    """Return ``array`` as a NumPy array; one on a GPU is copied, when the GPU is through with it."""
    if isinstance(array, np.ndarray):
        return array
    if not hasattr(array, "__cuda_array_interface__"):
        return np.asarray(array)
    with gpu(array.device.id):
        host: np.ndarray[Any, Any] = array.get()
    return host


def copy_into(buffer: Any, value: Any) -> None:
    """Copy an array into a buffer of its shape, from where it lies to where the buffer lies.

    A buffer on a GPU is contiguous. GPUs need not be able to read each other's memory.
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
    with here:  # a copy of memory; `buffer[...] = value` may be a kernel, for which the GPUs must be peers
        buffer.data.copy_from_device_async(value.data, value.nbytes)
    there.wait_for(here)


def begin_copy(buffer: Any, value: Any) -> Callable[[], None]:
    """Begin to copy an array to a contiguous buffer of its shape and dtype on another GPU.

    Returns:
        A call that lets both GPUs wait for the copy: until then the buffer may not be read, nor the array overwritten.
    """
    here, there = gpu(buffer.device.id), gpu(value.device.id)
    with there:
        value = there.xp.ascontiguousarray(value)
    done = here.receive(buffer, value, there)

    def wait(kept: Any = value) -> None:  # a contiguous copy is not to be freed before the owner waits
        here.wait_until(done)
        there.wait_until(done)

    return wait


def adopt(value: Any) -> Any:
    """Return a copy of an array that others made on a GPU, by CuPy or another library, on whatever stream."""
    xp = array_module(PROTO_CUDA)
    array = value if isinstance(value, xp.ndarray) else xp.asarray(value)
    array.device.synchronize()
    with gpu(array.device.id) as there:
        copy = array.copy()
    there.synchronize()  # from here on its owner may overwrite it
    return copy
