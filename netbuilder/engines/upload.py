"""Copies between the host and a GPU while the GPU computes: through pinned memory, which GPUs copy by themselves."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from netbuilder.engines.gpu import GPU, StreamRole, gpu
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["Downloader", "PinnedBuffer", "PinnedRing", "Uploader"]

_STAGED = 2  # pinned buffers of a size: one is filled while the other is copied
_ALIGNMENT = 16  # bytes: at least the size of an element


class PinnedBuffer:
    """Pinned memory of the host, with an event that is complete when the last copy from it or to it is done.

    Args:
        here: the GPU.
        nbytes: its size.
    """

    __slots__ = ("_event", "_memory", "_used", "pointer")

    def __init__(self, here: GPU, nbytes: int) -> None:
        with here:
            pinned = here.xp.cuda.alloc_pinned_memory(max(nbytes, 1))
        self.pointer: int = pinned.ptr
        self._memory = np.frombuffer(pinned, np.uint8, nbytes)
        self._event = here.new_event()
        self._used = False

    def array(self, dtype: np.dtype[Any], shape: Sequence[int], start: int = 0) -> np.ndarray[Any, Any]:
        """Return an array over the memory from byte ``start`` on."""
        return np.ndarray(shape, dtype, self._memory, start)

    def used_by(self, stream: Any) -> None:
        """Note that a stream has just been given a copy from this memory or to it."""
        stream.record(self._event)
        self._used = True

    def wait(self) -> None:
        """Wait for that copy."""
        if self._used and not self._event.done:
            self._event.synchronize()
        self._used = False

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # a process that ends; or a constructor that failed
            self.wait()


class PinnedRing:
    """Pinned buffers of one size, used in turn, so that the host writes into one while another is copied.

    Args:
        here: the GPU.
        nbytes: the size of each.
        count: how many.
    """

    def __init__(self, here: GPU, nbytes: int, count: int = _STAGED) -> None:
        self._buffers = [PinnedBuffer(here, nbytes) for _ in range(count)]
        self._next = 0

    def next(self) -> PinnedBuffer:
        """Return the buffer that was used longest ago; if its copy is not done, wait for that."""
        buffer = self._buffers[self._next]
        self._next = (self._next + 1) % len(self._buffers)
        buffer.wait()
        return buffer

    def upload(self, value: Any, target: Any, stream: Any) -> None:
        """Copy a value of the host to an array on the GPU, on a stream (CuPy's); the value may change afterwards."""
        staged = self.next()
        np.copyto(staged.array(target.dtype, target.shape), value, casting="unsafe")
        target.data.copy_from_host_async(staged.pointer, target.nbytes, stream)
        staged.used_by(stream)


class Uploader:
    """Fills buffers of one GPU, on its stream for input; it must be used by one thread only.

    Args:
        number: the GPU.

    Raises:
        DeviceError: there is no such GPU.
    """

    def __init__(self, number: int) -> None:
        self._gpu = gpu(number)
        self._rings: dict[int, PinnedRing] = {}  # by size

    def new(self, spec: TensorSpec) -> Any:
        """Return a buffer for values of ``spec``.

        Its memory is that of the stream that computes, which is the last one to use it: CuPy gives freed memory to
        later work of the stream that it was allocated for.
        """
        with self._gpu as here:
            buffer = here.xp.empty(spec.shape, spec.dtype)
        here.stream(StreamRole.INPUT).wait_for(here.stream())  # which may still use the memory for something else
        return buffer

    def fill(self, buffer: Any, value: np.ndarray[Any, Any], after: Any = None, done: Any = None) -> Any:
        """Begin to copy ``value`` into a buffer; ``value`` may change when this returns.

        Args:
            buffer: from ``new``.
            value: of the buffer's shape; it is converted to the buffer's dtype.
            after: an event (``GPU.record_event``) to wait for before the buffer is overwritten.
            done: an event of the GPU (``GPU.new_event``), to be used again; None: a new one.

        Returns:
            An event that is complete when the copy is done.
        """
        with self._gpu.on(StreamRole.INPUT):
            stream = self._gpu.stream(StreamRole.INPUT).raw
            if after is not None:
                stream.wait_event(after)
            if buffer.nbytes:
                self._ring(buffer.nbytes).upload(value, buffer, stream)
            return stream.record(self._gpu.new_event() if done is None else done)

    def _ring(self, nbytes: int) -> PinnedRing:
        ring = self._rings.get(nbytes)
        if ring is None:
            ring = self._rings[nbytes] = PinnedRing(self._gpu, nbytes)
        return ring


class Downloader:
    """Reads small values of one GPU without waiting for later work of the GPU.

    Args:
        number: the GPU.

    Raises:
        DeviceError: there is no such GPU.
    """

    def __init__(self, number: int) -> None:
        self._gpu = gpu(number)
        self._free: list[PinnedBuffer] = []
        self._nbytes = 0

    def begin(self, values: Sequence[Any]) -> Callable[[], list[np.ndarray[Any, Any]]]:
        """Queue copies of values, after what the GPU computes now.

        Returns:
            A function that waits for these copies only, and returns the values. Call it at most once.
        """
        starts = [0, *accumulate(-(-value.nbytes // _ALIGNMENT) * _ALIGNMENT for value in values)]
        pinned = self._buffer(starts.pop())
        with self._gpu:
            stream = self._gpu.stream().raw
            for value, start in zip(values, starts):
                value.data.copy_to_host_async(pinned.pointer + start, value.nbytes, stream)
            pinned.used_by(stream)
        parts = [pinned.array(value.dtype, value.shape, start) for value, start in zip(values, starts)]

        def end() -> list[np.ndarray[Any, Any]]:
            pinned.wait()
            found = [part.copy() for part in parts]
            self._free.append(pinned)
            return found

        return end

    def _buffer(self, nbytes: int) -> PinnedBuffer:
        """Return pinned memory that no read in progress has."""
        if nbytes != self._nbytes:
            self._free, self._nbytes = [], nbytes
        return self._free.pop() if self._free else PinnedBuffer(self._gpu, nbytes)
