"""BufferRing: several buffers for one blob, so that the next value is written while the present one is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from netbuilder.data.forking import new_lock
from netbuilder.engines.gpu import gpu
from netbuilder.engines.layouts import HOST, Location, new_buffer
from netbuilder.engines.upload import Uploader
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["BufferRing", "bind_each_buffer"]


Call = Callable[[], object]


class BufferRing:
    """Buffers of one spec and location; one of them holds a blob's value while the others are filled.

    Whoever fills a buffer acquires it first and hands it to the blob (``Blob.swap``); the blob releases it when it gets
    another value. A plan binds the calls that read the blob once for each buffer, at the first run with that buffer,
    so that swapping buffers needs no new plan.

    Attributes:
        index: the buffer that holds the blob's value, or held it last.
    """

    __slots__ = ("_filled", "_free", "_lock", "_released", "buffers", "index", "location", "spec")

    def __init__(self, spec: TensorSpec, location: Location) -> None:
        self.spec = spec
        self.location = location
        self.buffers: list[Any] = []
        self.index = 0
        self._free: list[int] = []
        self._released: dict[int, Any] = {}  # events, of buffers on a GPU
        self._filled: dict[int, Any] = {}
        self._lock = new_lock()

    def acquire(self, make: Callable[[TensorSpec], Any] | None = None) -> int:
        """Return the index of a free buffer, which belongs to the caller until it is released.

        Args:
            make: allocates a buffer, if none is free.
        """
        with self._lock:
            if self._free:
                return self._free.pop()
        buffer = new_buffer(self.spec, self.location) if make is None else make(self.spec)
        with self._lock:
            self.buffers.append(buffer)
            return len(self.buffers) - 1

    def after(self, index: int) -> Any:
        """Return the event after which a buffer on a GPU may be overwritten; None: at once."""
        return self._released.get(index)

    def fill(self, index: int, value: Any, uploader: Uploader) -> None:
        """Begin to copy a value into a buffer on a GPU; ``wait_until_filled`` goes before its first use."""
        done = uploader.fill(self.buffers[index], value, self.after(index), self._filled.get(index))
        self._filled[index] = done

    def wait_until_filled(self, index: int) -> None:
        """Make what the GPU computes later wait until a buffer is filled."""
        if index in self._filled:
            gpu(self.location[1]).wait_until(self._filled[index])

    def release(self, index: int) -> None:
        """Release a buffer; what the GPU computes now may still read it, so ``fill`` waits for that."""
        if self.location != HOST:
            self._released[index] = gpu(self.location[1]).record_event(self._released.get(index))
        with self._lock:
            self._free.append(index)


class _Switch:
    """One call for each buffer of a ring; the call for the present buffer runs."""

    __slots__ = ("_bind", "_calls", "_ring")

    def __init__(self, ring: BufferRing, bind: Callable[[Any], Call]) -> None:
        self._ring = ring
        self._bind = bind
        self._calls: dict[int, Call] = {}

    def __call__(self) -> object:
        index = self._ring.index
        call = self._calls.get(index)
        if call is None:
            call = self._calls[index] = self._bind(self._ring.buffers[index])
        return call()


def bind_each_buffer(rings: Mapping[int, BufferRing], bind: Callable[[Mapping[int, Any]], Call]) -> Call:
    """Return a call that reads the present buffers of its inputs' rings: bound once for each combination of buffers.

    Args:
        rings: the rings of inputs, by the id of their present buffer.
        bind: binds the call; its argument says which buffers to use in place of the present ones, by their ids.
    """
    if not rings:
        return bind({})
    (key, ring), *others = rings.items()

    def bound(buffer: Any) -> Call:
        return bind_each_buffer(dict(others), lambda instead: bind({**instead, key: buffer}))

    switch = _Switch(ring, bound)
    # Bind eagerly, so that a binding error is raised at compile time.
    switch._calls[ring.index] = bound(ring.buffers[ring.index])
    return switch
