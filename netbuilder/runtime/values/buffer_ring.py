"""Turns: buffers that a blob's value lies in one after the other, without a new plan at each change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from netbuilder.data.forking import new_lock
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.engines.gpu import gpu
from netbuilder.ops.engines.layouts import HOST, Location, new_buffer

__all__ = ["Turns", "bind_turning"]

Call = Callable[[], object]


class Turns:
    """Buffers of one spec and place; a blob's value lies in one of them, and others are filled meanwhile.

    Whoever fills a buffer takes it first, hands it to the blob (``Blob.turn``), and the blob gives it back when it
    gets another value. A plan binds the calls that read the blob once for each buffer, at the first run with it.

    Attributes:
        index: the buffer that the blob's value lies in, or lay in last.
    """

    __slots__ = ("_free", "_lock", "_marks", "buffers", "index", "location", "spec")

    def __init__(self, spec: TensorSpec, location: Location) -> None:
        self.spec = spec
        self.location = location
        self.buffers: list[Any] = []
        self.index = 0
        self._free: list[int] = []
        self._marks: dict[int, Any] = {}
        self._lock = new_lock()

    def take(self, make: Callable[[TensorSpec], Any] | None = None) -> int:
        """Return the index of a buffer that nobody uses, which is the caller's from now on.

        Args:
            make: makes a buffer where there is none to be had.
        """
        with self._lock:
            if self._free:
                return self._free.pop()
        buffer = new_buffer(self.spec, self.location) if make is None else make(self.spec)
        with self._lock:
            self.buffers.append(buffer)
            return len(self.buffers) - 1

    def after(self, index: int) -> Any:
        """Return the event after which a buffer on a GPU may be overwritten; None: now."""
        return self._marks.get(index)

    def give(self, index: int) -> None:
        """Give a buffer back, which the GPU may still have to read for what it has been given."""
        if self.location != HOST:
            self._marks[index] = gpu(self.location[1]).mark()
        with self._lock:
            self._free.append(index)


class _Switch:
    """A call for each buffer of some turns; the one for the buffer of the moment runs."""

    __slots__ = ("_bind", "_calls", "_turns")

    def __init__(self, turns: Turns, bind: Callable[[Any], Call]) -> None:
        self._turns = turns
        self._bind = bind
        self._calls: dict[int, Call] = {}

    def __call__(self) -> object:
        index = self._turns.index
        call = self._calls.get(index)
        if call is None:
            call = self._calls[index] = self._bind(self._turns.buffers[index])
        return call()


def bind_turning(turning: Mapping[int, Turns], bind: Callable[[Mapping[int, Any]], Call]) -> Call:
    """Return a call that is bound for all buffers that its inputs may lie in.

    Args:
        turning: the turns of inputs, by the id of the buffer of the moment.
        bind: binds the call; it is given which buffers to take instead of those of the moment, by their ids.
    """
    if not turning:
        return bind({})
    (key, turns), *others = turning.items()

    def bound(buffer: Any) -> Call:
        return bind_turning(dict(others), lambda instead: bind({**instead, key: buffer}))

    switch = _Switch(turns, bound)
    switch._calls[turns.index] = bound(turns.buffers[turns.index])  # what cannot be bound says so now
    return switch
