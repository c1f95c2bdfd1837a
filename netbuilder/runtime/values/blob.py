"""A blob: a name's value in a workspace, with its buffer, its layout and a generation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import ANY_ORDER, CompiledSegment, Segment
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.ops.engines.gpu import copy_into, to_host
from netbuilder.ops.engines.layouts import HOST, Location, convert, new_buffer
from netbuilder.runtime.values.buffer_ring import Turns

__all__ = ["Blob", "EdgeContext", "Generation"]

_POOLED = 6  # buffers of other specs that a blob keeps, so that plans for alternating shapes keep theirs


class Generation:
    """A number that rises whenever any blob of a workspace gets another buffer, shape, type or layout."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0


class EdgeContext:
    """The plan context of conversions at the edge of a plan (feeds and fetches): one thread, nothing published."""

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self.precision = "float32"
        self.image_order = ANY_ORDER
        self.device_id = 0
        self.op_def: Any = None
        self.run: Any = None

    def publish(self, output: int, key: str, value: Any) -> None:
        pass

    def published(self, input: int, key: str) -> Any:
        return None

    def demand(self, output: int, reads: Sequence[int] = ()) -> str:
        return "run"

    def is_constant(self, input: int) -> bool:
        return False

    def repeats(self, input: int) -> bool:
        return False

    def compile_segment(self, segment: Segment) -> CompiledSegment:
        raise NotImplementedError("no operator that holds a net runs at the edge of a plan")

    def does(self, optimization: str) -> bool:
        return True


_EDGE = EdgeContext()

Key = tuple[TensorSpec, Location]


class Blob:
    """A name's value: an array in ``buffer`` as ``spec`` says, or any Python object (``spec`` None).

    Buffers belong to the blob, one per spec, so that a plan compiled for some shapes finds its own again after a run
    with others. ``lazy``, where set, computes the value in plain layout: a plan left it unwritten because it fused
    the operator away.
    """

    __slots__ = (
        "_buffers", "_generation", "_turning", "buffer", "fixed", "hidden_by", "lazy", "location", "name", "owner",
        "read_by", "spec", "turns", "watched", "writes",
    )  # fmt: skip

    def __init__(self, name: str, generation: Generation) -> None:
        self.name = name
        self.buffer: Any = None
        self.spec: TensorSpec | None = None
        self.location: Location = HOST
        self.lazy: Callable[[], Any] | None = None
        self.owner: object = None  # the net that chose the layout
        self.hidden_by = ""  # the net that has made the value last, and does not keep it
        self.writes = 0  # how often the value was set, or may have been, since somebody watches
        self.watched = False  # plans hold copies of the value
        self.read_by: list[Blob] = []  # blobs whose ``lazy`` may read this one's buffer
        self.turns: Turns | None = None  # whose buffer the value lies in
        self.fixed = False  # a plan cannot do with turns
        self._turning: dict[Key, Turns] = {}
        self._buffers: dict[Key, Any] = {}
        self._generation = generation

    def buffer_for(self, spec: TensorSpec, location: Location = HOST) -> Any:
        """Return this blob's buffer for values of ``spec``, made at the first call; the blob itself is unchanged."""
        key = (spec, location)
        buffer = self._buffers.get(key)
        if buffer is None:
            if len(self._buffers) >= _POOLED:
                for old, held in self._buffers.items():
                    if held is not self.buffer:
                        del self._buffers[old]
                        break
            buffer = self._buffers[key] = new_buffer(spec, location)
        return buffer

    def turning(self, spec: TensorSpec, location: Location = HOST) -> Turns:
        """Return the buffers for values of ``spec`` that lie there by turns, made at the first call."""
        key = (spec, location)
        turns = self._turning.get(key)
        if turns is None:
            old = [kept for kept, held in self._turning.items() if held is not self.turns]
            for kept in old[: max(0, len(self._turning) + 1 - _POOLED)]:
                del self._turning[kept]
            turns = self._turning[key] = Turns(spec, location)
        return turns

    def turn(self, turns: Turns, index: int) -> None:
        """Make a buffer of ``turns``, which the caller has taken and filled, the blob's value.

        Nothing is copied, unless a plan needs the value in one place; then the buffer is given back at once.
        """
        buffer = turns.buffers[index]
        if self.fixed:
            self.store(buffer, turns.location)
            turns.give(index)
            return
        self.touch()
        self.settle()
        if self.turns is turns:
            turns.give(turns.index)
            turns.index, self.buffer = index, buffer
            self._written()
            return
        turns.index = index
        self.bind(turns.spec, buffer, turns.location, turns=turns)

    def fix(self) -> None:
        """Let the value lie where it lies now, whatever turns there are."""
        if self._turning:
            self.fixed, self.turns = True, None

    def bind(
        self,
        spec: TensorSpec,
        buffer: Any,
        location: Location = HOST,
        lazy: Callable[[], Any] | None = None,
        *,
        turns: Turns | None = None,
    ) -> None:
        """Make ``buffer`` the value, one of ``turns`` if given, or ``lazy`` what computes it in plain layout."""
        if spec.known is not None:  # true of this run alone
            spec = TensorSpec(spec.shape, spec.dtype, spec.layout)
        if buffer is not self.buffer or spec != self.spec or lazy is not self.lazy or turns is not self.turns:
            self._generation.number += 1
        self._end_turn(turns)
        self.buffer, self.spec, self.location, self.lazy, self.hidden_by = buffer, spec, location, lazy, ""

    def _end_turn(self, turns: Turns | None = None) -> None:
        if self.turns is not None:
            self.turns.give(self.turns.index)
        self.turns = turns

    def hide(self, net: str) -> None:
        """Forget the value: the net of this name makes it, and keeps it to itself."""
        self._end_turn()
        if self.hidden_by != net:
            self._generation.number += 1
        self.buffer, self.spec, self.location, self.lazy, self.hidden_by = None, None, HOST, None, net

    @property
    def is_empty(self) -> bool:
        """Whether there is no value."""
        return self.spec is None and self.buffer is None

    def why_empty(self) -> str:
        """Say why there is no value, and what to do about it."""
        if self.hidden_by:
            return (
                f"is not observable in net {self.hidden_by!r}, which makes it and does not keep it; create the net "
                f"with observable=[{self.name!r}], or with observable=None to keep every blob"
            )
        return "holds no value; feed it, or run the net that makes it, first"

    def watch(self) -> None:
        """Have plans looked at again whenever the value may have changed: they hold copies of it."""
        if not self.watched:
            self.watched = True
            self._generation.number += 1

    def touch(self) -> None:
        """Note that the value may have changed."""
        self.writes += 1
        if self.watched:
            self._generation.number += 1

    def settle(self, but: Collection[int] = ()) -> None:
        """Before the buffer is written: write what others left to be computed from it, but for those (by id)."""
        for blob in self.read_by:
            if id(blob) not in but:
                blob.materialize()
        self.read_by = []

    def _written(self) -> None:
        if self.lazy is not None:
            self.lazy = None
            self._generation.number += 1

    def store(self, value: Any, location: Location | None = None) -> None:
        """Set the value: arrays are copied into the blob's buffer, any other object is kept as it is.

        A blob that has the same shape and type already keeps its buffer, its place and its layout; not so a layout
        that rounds.
        """
        self.touch()
        self.settle()
        if isinstance(value, (str, bytes)):
            value = np.array(value.encode() if isinstance(value, str) else value, object)
        if not _is_array(value):
            self._written()
            if value is not self.buffer or self.spec is not None:
                self._generation.number += 1
            self._end_turn()
            self.buffer, self.spec, self.location, self.hidden_by = value, None, HOST, ""
            return
        if value.dtype.kind in "SU" or value.dtype == STRING and any(isinstance(item, str) for item in value.flat):
            value = _as_bytes(value)
        target = location or (HOST if isinstance(value, np.ndarray) else (1, value.device.id))
        if value.dtype == STRING:
            self.bind(TensorSpec(value.shape, STRING), value.copy())
            return
        spec = TensorSpec(value.shape, value.dtype.newbyteorder("=") if not value.dtype.isnative else value.dtype)
        current = self.spec
        if current is not None and current.plain == spec and not current.rounds:
            if location is None or location == self.location:
                self._written()
                if current.layout is not None:
                    plain = np.ascontiguousarray(to_host(value), spec.dtype)
                    convert(plain, spec, current, _EDGE, self.buffer)
                else:
                    copy_into(self.buffer, value)
                return
        turns = self._turning.get((spec, target)) if not self.fixed else None
        if turns is not None:  # the plans for this spec read there
            index = turns.take()
            copy_into(turns.buffers[index], value)
            self.turn(turns, index)
            return
        buffer = self.buffer_for(spec, target)
        copy_into(buffer, value)
        self.bind(spec, buffer, target)

    def share(self, buffer: Any, location: Location) -> Any:
        """Make memory that other blobs use too the value, and write values of its shape and type there from now on.

        Returns the array kept: the one before if it is the same memory, so that plans stay as they are.
        """
        spec = TensorSpec(tuple(buffer.shape), buffer.dtype)
        if self.spec == spec and self.location == location and self.lazy is None and _same(self.buffer, buffer):
            self.touch()
            return self.buffer
        self.touch()
        self.settle()
        self._buffers[(spec, location)] = buffer
        self.bind(spec, buffer, location)
        return buffer

    def relayout(self, layout: Any) -> None:
        """Move the value into another layout, which from now on is the one that feeds and plans find."""
        if self.spec is None or self.spec.layout == layout:
            return
        target = self.spec.with_layout(layout)
        value = self.plain()
        self._buffers.clear()  # one copy of a parameter is enough
        buffer = self.buffer_for(target)
        convert(np.ascontiguousarray(value), self.spec.plain, target, _EDGE, buffer)
        self.bind(target, buffer)

    def at(self, location: Location) -> Any:
        """Return the value in plain order at a place, a copy if it lies elsewhere."""
        value = self.plain()
        if location == self.location:
            return value
        assert self.spec is not None
        copy = new_buffer(self.spec.plain, location)
        copy_into(copy, value)
        return copy

    def materialize(self) -> None:
        """Write a value that a plan left to be computed on demand."""
        if self.lazy is not None:
            assert self.spec is not None
            value, layout = self.lazy(), self.spec.layout
            if layout is None:
                copy_into(self.buffer, value)
            else:
                convert(np.ascontiguousarray(value), self.spec.plain, self.spec, _EDGE, self.buffer)
            self.touch()
            self._written()

    def plain(self) -> Any:
        """Return the value in plain order, where it lies; not a copy if it is plain already."""
        if self.lazy is not None:
            return self.lazy()
        if self.spec is not None and self.spec.layout is not None:
            return convert(self.buffer, self.spec, self.spec.plain, _EDGE, location=self.location)
        return self.buffer

    def fetch(self) -> Any:
        """Return a copy of the value on the host: an array, or the object."""
        value = self.plain()
        if self.spec is None:
            return value
        host = to_host(value)
        if host.dtype == STRING and host.ndim == 0:
            return host[()]
        return host if host is not self.buffer else host.copy()


def _same(a: Any, b: Any) -> bool:
    """Say whether arrays of one shape and type, contiguous, are the same memory."""
    name = "__cuda_array_interface__" if hasattr(a, "__cuda_array_interface__") else "__array_interface__"
    return bool(getattr(a, name)["data"][0] == getattr(b, name, {"data": [None]})["data"][0])


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or hasattr(value, "__cuda_array_interface__")


def _as_bytes(value: Any) -> Any:
    result = np.empty(value.shape, object)
    for index in np.ndindex(value.shape):
        item = value[index]
        result[index] = item.encode() if isinstance(item, str) else bytes(item)
    return result
