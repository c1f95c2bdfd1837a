"""Blob: the value of a name in a workspace, with its buffer and layout."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from netbuilder.data.forking import new_lock
from netbuilder.engines.gpu import copy_into, to_host
from netbuilder.engines.layouts import HOST, Location, alignment_of, convert, new_buffer
from netbuilder.ops.core.contexts import ANY_ORDER, CompiledSubgraph, Subgraph
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.proto import PROTO_CUDA
from netbuilder.runtime.values.buffer_ring import BufferRing

if TYPE_CHECKING:
    from netbuilder.runtime.values.uses import Uses

__all__ = ["HOW_TO_FILL", "Blob", "ConstantCopy", "EdgeContext", "Generation", "SharedGeneration"]

HOW_TO_FILL = "feed it, or run the net that makes it, first"
"""What to do about a blob without value, for messages."""

_POOLED = 6  # buffers a blob keeps, one per spec, so that plans for a few alternating shapes stay valid


class Generation:
    """A counter that rises whenever a blob of a workspace gets another buffer, shape, type or layout.

    Attributes:
        number: the counter.
        fed: names of blobs that were fed, or written by nets that ran once, since somebody has removed them from it.
    """

    __slots__ = ("fed", "number")

    def __init__(self) -> None:
        self.number = 0
        self.fed: set[str] = set()


class SharedGeneration(Generation):
    """The generation of a blob that several workspaces have: each of theirs rises with it."""

    __slots__ = ("_members",)

    def __init__(self, *members: Generation) -> None:
        self._members = members

    @property
    def number(self) -> int:
        return self._members[0].number

    @number.setter
    def number(self, number: int) -> None:
        for member in self._members:
            member.number += 1


class ConstantCopy:
    """A copy of a constant in the layout that kernels read: one for all plans that read it there.

    The plans hold it; it is freed with the last of them.
    """

    __slots__ = ("__weakref__", "buffer", "lock", "writes")

    def __init__(self, spec: TensorSpec, location: Location) -> None:
        self.buffer = new_buffer(spec, location)
        self.writes = -1  # the write counter of the blob when the copy was made
        self.lock = new_lock()  # held while it is made


class EdgeContext:
    """The plan context of conversions outside a plan (feeds and fetches): nothing is published, all outputs needed."""

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self.precision = "float32"
        self.allow_tf32 = False
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

    def ends_early(self, output: int, reads: Sequence[int]) -> bool:
        return False

    def may_be_read_by(self, output: int, op_type: str) -> bool:
        return False

    def compile_subgraph(self, subgraph: Subgraph) -> CompiledSubgraph:
        raise NotImplementedError("an operator with subgraphs cannot run outside a plan")

    def enabled(self, optimization: str) -> bool:
        return True

    def uses_engine(self, name: str) -> bool:
        return True


_EDGE = EdgeContext()


class Hider(Protocol):
    """A net that computes blobs without making them observable."""

    name: str

    def keep(self, name: str) -> bool:
        """Make a blob observable from the next run on; False if the net does not."""

    @property
    def not_kept(self) -> Collection[str]:
        """Blobs that ``keep`` was called for, but with which the net cannot keep to its memory budget."""


def _no_net() -> None:
    return None


Key = tuple[TensorSpec, Location]


class Blob:
    """The value of a name: an array in ``buffer`` as ``spec`` says, or any Python object (``spec`` None).

    The blob owns its buffers, one per spec, so that a plan compiled for some shapes finds its buffer again after a run
    with other shapes. ``lazy``, where set, computes the value in plain layout; a plan sets it for an output that it
    does not write, for example because the operator was fused with the next one.
    """

    __slots__ = (
        "_buffers", "_copies", "_generation", "_hider", "_rings", "buffer", "fixed", "hidden_by", "lazy", "location",
        "name", "owner", "pinned", "read_by", "ring", "spec", "used_by", "watched", "writes",
    )  # fmt: skip

    def __init__(self, name: str, generation: Generation) -> None:
        self.name = name
        self.buffer: Any = None
        self.spec: TensorSpec | None = None
        self.location: Location = HOST
        self.lazy: Callable[[], Any] | None = None
        self.owner: object = None  # the net that chose the layout
        self.hidden_by = ""  # the net that last computed the value without keeping it: the blob is not observable there
        self._hider: Callable[[], Hider | None] = _no_net
        self.writes = 0  # write counter: rises whenever the value may have changed
        self.watched = False  # plans hold copies of the value, so each write raises the generation
        self.read_by: list[Blob] = []  # blobs with a deferred value computed from this buffer
        self.ring: BufferRing | None = None  # the ring that ``buffer`` belongs to, if any
        self.pinned = False  # a plan is bound to this buffer; do not rotate buffers
        self.fixed = False  # the memory belongs together with that of other blobs, so the value is not moved any more
        self._rings: dict[Key, BufferRing] = {}
        self._buffers: dict[Key, Any] = {}
        self.used_by: tuple[Uses, ...] = ()  # of the workspaces that have this blob, if they are several
        self._copies: weakref.WeakValueDictionary[Key, ConstantCopy] | None = None
        self._generation = generation

    def share_with(self, generation: Generation, uses: Sequence[Uses]) -> None:
        """Be a blob of another workspace, too, whose generation is given; ``uses``: those of both workspaces."""
        self._generation = SharedGeneration(self._generation, generation)
        self.used_by = tuple(dict.fromkeys([*self.used_by, *uses]))

    def constant_copy(self, spec: TensorSpec, location: Location) -> ConstantCopy:
        """Return the copy of this constant in the layout of ``spec`` that plans share; one of them fills it."""
        if self._copies is None:
            self._copies = weakref.WeakValueDictionary()
        found = self._copies.get((spec, location))
        if found is None:
            found = self._copies[(spec, location)] = ConstantCopy(spec, location)
        return found

    def buffer_for(self, spec: TensorSpec, location: Location = HOST) -> Any:
        """Return this blob's buffer for values of ``spec``, allocated at the first call; its value is unchanged."""
        key = (spec, location)
        buffer = self._buffers.get(key)
        if buffer is None:
            if len(self._buffers) >= _POOLED:
                for old, other in self._buffers.items():
                    if other is not self.buffer:
                        del self._buffers[old]
                        break
            buffer = self._buffers[key] = new_buffer(spec, location)
        return buffer

    def reserve(self, spec: TensorSpec, buffer: Any) -> None:
        """Let ``buffer_for`` return this memory of the host for values of ``spec``, for which it has none yet."""
        self._buffers.setdefault((spec, HOST), buffer)

    def has_buffer_for(self, spec: TensorSpec) -> bool:
        """Whether the blob has a buffer on the host for values of ``spec``."""
        return (spec, HOST) in self._buffers

    def ring_for(self, spec: TensorSpec, location: Location = HOST) -> BufferRing:
        """Return the ring of buffers for values of ``spec``, made at the first call."""
        key = (spec, location)
        ring = self._rings.get(key)
        if ring is None:
            unused = [old for old, other in self._rings.items() if other is not self.ring]
            for old in unused[: max(0, len(self._rings) + 1 - _POOLED)]:
                del self._rings[old]
            ring = self._rings[key] = BufferRing(spec, location)
        return ring

    def swap(self, ring: BufferRing, index: int) -> None:
        """Make a buffer of ``ring``, which the caller has acquired and filled, the blob's value.

        The value is copied only if the blob is pinned; the buffer is then released at once.
        """
        buffer = ring.buffers[index]
        if self.pinned:
            self.store(buffer, ring.location)
            ring.release(index)
            return
        self.mark_written()
        self.flush_readers()
        if self.ring is ring:
            ring.release(ring.index)
            ring.index, self.buffer = index, buffer
            self._written()
            return
        ring.index = index
        self.bind(ring.spec, buffer, ring.location, ring=ring)

    def pin(self) -> None:
        """Keep the value in its present buffer from now on: no ring may swap it."""
        if self._rings:
            self.pinned, self.ring = True, None

    def bind(
        self,
        spec: TensorSpec,
        buffer: Any,
        location: Location = HOST,
        lazy: Callable[[], Any] | None = None,
        *,
        ring: BufferRing | None = None,
    ) -> None:
        """Make ``buffer`` the value.

        Args:
            spec: what the buffer holds.
            buffer: where the value is, or will be written.
            location: of the buffer.
            lazy: computes the value in plain layout, if the buffer is not written.
            ring: the ring that the buffer belongs to, if any.
        """
        if spec.known is not None:  # `known` holds for one run only; do not store it
            spec = TensorSpec(spec.shape, spec.dtype, spec.layout)
        if buffer is not self.buffer or spec != self.spec or lazy is not self.lazy or ring is not self.ring:
            self._generation.number += 1
        self._leave_ring(ring)
        self.buffer, self.spec, self.location, self.lazy, self.hidden_by = buffer, spec, location, lazy, ""

    def _leave_ring(self, ring: BufferRing | None = None) -> None:
        if self.ring is not None:
            self.ring.release(self.ring.index)
        self.ring = ring

    def hide(self, net: Hider) -> None:
        """Drop the value: this net computes it and does not make it observable."""
        self._leave_ring()
        if self.hidden_by != net.name:
            self._generation.number += 1
        self.buffer, self.spec, self.location, self.lazy, self.hidden_by = None, None, HOST, None, net.name
        self._hider = weakref.ref(net)

    def empty(self) -> None:
        """Drop the value, which an operator that failed, or one after it, should have computed."""
        self._leave_ring()
        self._generation.number += 1
        self.buffer, self.spec, self.location, self.lazy, self.hidden_by = None, None, HOST, None, ""

    @property
    def is_empty(self) -> bool:
        """Whether there is no value."""
        return self.spec is None and self.buffer is None

    def why_empty(self) -> str:
        """Return why there is no value, and what to do about it, for messages that begin with the blob's name.

        A net that does not make the blob observable does so from its next run on.
        """
        if self.hidden_by:
            net, kept = self._hider(), ""
            if net is not None and net.keep(self.name):
                kept = "; from its next run on, the net keeps it"
            elif net is not None and self.name in net.not_kept:
                kept = "; a run that keeps it needs more than the memory budget: give a larger one"
            return (
                f"is not observable in net {self.hidden_by!r}, which computes it without keeping it; create the net "
                f"with observable=[{self.name!r}], or with observable='all' to keep every blob{kept}"
            )
        return f"holds no value; {HOW_TO_FILL}"

    def notify_on_write(self) -> None:
        """Raise the generation at each write from now on, so that plans with copies of the value renew them."""
        if not self.watched:
            self.watched = True
            self._generation.number += 1

    def mark_written(self) -> None:
        """Note that the value may have changed."""
        self.writes += 1
        if self.watched:
            self._generation.number += 1

    def flush_readers(self, but: Collection[int] = ()) -> None:
        """Compute, before this buffer is overwritten, the deferred values of other blobs that read it.

        Args:
            but: ids of blobs whose deferred values are to stay as they are.
        """
        if self.read_by:
            for blob in self.read_by:
                if id(blob) not in but:
                    blob.materialize()
            self.read_by = []

    def _written(self) -> None:
        if self.lazy is not None:
            self.lazy = None
            self._generation.number += 1

    def store(self, value: Any, location: Location | None = None, *, adopt: bool = False) -> None:
        """Set the value: arrays are copied into the blob's buffer, any other object is stored as it is.

        A blob that already has this shape and type keeps its buffer, location and layout, except a layout that rounds.

        Args:
            adopt: nobody will change the array, so it can be the buffer itself, if it is read-only.
        """
        self.mark_written()
        self.flush_readers()
        if isinstance(value, (str, bytes)):
            value = np.array(value.encode() if isinstance(value, str) else value, object)
        if not _is_array(value):
            self._written()
            if value is not self.buffer or self.spec is not None:
                self._generation.number += 1
            self._leave_ring()
            self.buffer, self.spec, self.location, self.hidden_by = value, None, HOST, ""
            return
        if value.dtype.kind in "SU" or value.dtype == STRING and any(isinstance(item, str) for item in value.flat):
            value = _as_bytes(value)
        target = location or (HOST if isinstance(value, np.ndarray) else (1, value.device.id))
        if value.dtype == STRING:
            self.bind(TensorSpec(value.shape, STRING), value.copy())
            return
        dtype = value.dtype if value.dtype.isnative else value.dtype.newbyteorder("=")
        current = self.spec
        if current is not None and current.shape == value.shape and current.dtype == dtype and not current.rounds:
            if (location is None or location == self.location) and not _is_adopted(self.buffer):
                self._written()
                if current.layout is not None:
                    plain = _plain_at(value, current.plain, self.location)
                    convert(plain, current.plain, current, _EDGE, self.buffer, self.location)
                else:
                    copy_into(self.buffer, value)
                return
        spec = TensorSpec(value.shape, dtype)
        ring = self._rings.get((spec, target)) if not self.pinned else None
        if ring is not None:  # plans for this spec read the ring's buffers
            index = ring.acquire()
            copy_into(ring.buffers[index], value)
            self.swap(ring, index)
            return
        if adopt and target == HOST and _can_adopt(value):
            self.bind(spec, value)
            return
        buffer = self.buffer_for(spec, target)
        copy_into(buffer, value)
        self.bind(spec, buffer, target)

    def own_value(self) -> None:
        """Copy an array that was adopted into a buffer of the blob's own, since it will be written to."""
        if _is_adopted(self.buffer):
            assert self.spec is not None
            buffer = self.buffer_for(self.spec)
            copy_into(buffer, self.buffer)
            self.bind(self.spec, buffer)

    def share(self, buffer: Any, location: Location) -> Any:
        """Make memory that other blobs use too the value; later values of its shape and type are written there.

        Returns the array that the blob now has: its present one if that is the same memory, so that plans stay valid.
        """
        spec = TensorSpec(tuple(buffer.shape), buffer.dtype)
        self.fixed = True
        if self.spec == spec and self.location == location and self.lazy is None and _same(self.buffer, buffer):
            self.mark_written()
            return self.buffer
        self.mark_written()
        self.flush_readers()
        self._buffers[(spec, location)] = buffer
        self.bind(spec, buffer, location)
        return buffer

    def relayout(self, layout: Any, *, threads: int = 1) -> None:
        """Convert the value to another layout; feeds and plans use that layout from now on."""
        if self.spec is None or self.spec.layout == layout:
            return
        target = self.spec.with_layout(layout)
        value = _plain_at(self.plain(), self.spec.plain, self.location)
        self._buffers.clear()  # one copy of a parameter is enough
        buffer = self.buffer_for(target, self.location)
        convert(value, self.spec.plain, target, EdgeContext(threads), buffer, self.location)
        self.bind(target, buffer, self.location)

    def at(self, location: Location) -> Any:
        """Return the value in plain order at a location; a copy if it is stored elsewhere."""
        value = self.plain()
        if location == self.location:
            return value
        assert self.spec is not None
        return _copy_at(value, self.spec.plain, location)

    def materialize(self) -> None:
        """Compute a deferred value, if the blob has one, and write it into the buffer."""
        if self.lazy is not None:
            assert self.spec is not None
            value, spec = self.lazy(), self.spec
            if spec.layout is None:
                copy_into(self.buffer, value)
            else:
                plain = _plain_at(value, spec.plain, self.location)
                convert(plain, spec.plain, spec, _EDGE, self.buffer, self.location)
            self.mark_written()
            self._written()

    def plain(self) -> Any:
        """Return the value in plain order, at its location; the buffer itself if that is plain."""
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
    """Whether two contiguous arrays of the same shape and type are the same memory."""
    name = "__cuda_array_interface__" if hasattr(a, "__cuda_array_interface__") else "__array_interface__"
    return bool(getattr(a, name)["data"][0] == getattr(b, name, {"data": [None]})["data"][0])


def _plain_at(value: Any, spec: TensorSpec, location: Location) -> Any:
    """Return an array as a contiguous one of ``spec`` at a location; the array itself if it is one."""
    if location == HOST:
        return np.ascontiguousarray(to_host(value), spec.dtype)
    there = not isinstance(value, np.ndarray) and (PROTO_CUDA, value.device.id) == location
    if there and value.dtype == spec.dtype and value.flags.c_contiguous:
        return value
    return _copy_at(value, spec, location)


def _copy_at(value: Any, spec: TensorSpec, location: Location) -> Any:
    copy = new_buffer(spec, location)
    copy_into(copy, value)
    return copy


def _is_adopted(buffer: Any) -> bool:
    """Whether a buffer is an array that was given to the blob; its own memory can be written to."""
    return isinstance(buffer, np.ndarray) and not buffer.flags.writeable


def _can_adopt(value: Any) -> bool:
    """Whether an array can be a buffer as it is."""
    flags = value.flags
    fits = flags.c_contiguous and not flags.writeable and value.dtype.isnative
    return bool(fits and value.ctypes.data % alignment_of(HOST) == 0)


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or hasattr(value, "__cuda_array_interface__")


def _as_bytes(value: Any) -> Any:
    result = np.empty(value.shape, object)
    for index in np.ndindex(value.shape):
        item = value[index]
        result[index] = item.encode() if isinstance(item, str) else bytes(item)
    return result
