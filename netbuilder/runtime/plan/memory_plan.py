"""Memory of what a plan needs during a run: values that nobody can fetch, scratch, what kernels keep for others.

Each of these has a lifetime, from the step that writes it to the last step that reads it, and an offset in the arena of
its location: the workspace has one arena on the host and one on each GPU. Those that are not needed at the same time
overlap. Steps of several lanes run at the same time, so a lifetime is in terms of what has happened before: see
``Schedule``. Where a kernel may overwrite an input that nobody reads after it, it does, unless it would have to copy.
Values that a kernel processes as one (``Together``) are next to each other, and are there as long as any of
them is needed, unless the arena would become larger by more than a hundredth. So are those that a kernel joins
(``Joined``): they are where the result has them.

Some values have memory of their own: texts, and those from which deferred outputs are computed after the run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import field
from typing import Any, NamedTuple

from netbuilder.engines.arrays import as_flat
from netbuilder.engines.buffer_rows import row_starts
from netbuilder.engines.layouts import HOST, Location, alignment_of, new_buffer, new_bytes
from netbuilder.graph.lifetimes import Lifetime, live_bytes, load_of, pack_into_arena
from netbuilder.graph.memory_budget import Shortfall
from netbuilder.ops.core.extensions import CopiesInPlace, Joined, KeptForGradient, KeptMemory
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime.plan.binding import buffer_of
from netbuilder.runtime.plan.joined_values import group
from netbuilder.runtime.plan.schedule import Schedule, dependencies
from netbuilder.runtime.plan.values import Step, Value

__all__ = ["MemoryPlan", "Place", "Placed", "Provide", "arena_bytes", "arena_load", "assign", "pack"]

Array = Any
Provide = Callable[[int, Location], Array]

_MANY = 2000  # lifetimes; of more, the smallest do not share memory, so that packing takes no longer
_TINY = 0.005  # of the bytes that are needed at the same time: what those that do not share may take together
_TOGETHER = 12_000  # lifetimes that are packed together; of more, those of each device are packed by themselves
_GROWTH = 1.01  # times the bytes of an arena in which no values need to be next to each other, at most


@dataclass(frozen=True)
class Placed:
    """Something in the arena: what it is called, when it is needed, where it is.

    Args:
        what: the name of the blob, or of what else it is.
        start, end: the first and the last step that needs it.
        offset, nbytes: where it is in the arena, and its size.
        scratch: whether it is the scratch memory of a step, and not a value.
        location: of the arena.
    """

    what: str
    start: int
    end: int
    offset: int
    nbytes: int
    scratch: bool = False
    location: Location = HOST


@dataclass
class MemoryPlan:
    """Where a plan has its memory.

    Args:
        arenas: the bytes of the arena at each location where there is one.
        placed: what is in the arenas.
        alone: bytes of the values that have memory of their own.
        work, work_again: the estimated work of the steps, and of those besides that compute values again.
        whole: with a memory budget, the bytes that a run would need if nothing were computed again.
        shortfall: the budget that no plan keeps to; then nothing has been assigned.
        scratch: the scratch memory of each step.
        cleared: for a step, the buffers with padding that it fills with zeros before its kernel runs.
    """

    arenas: dict[Location, int] = field(default_factory=dict)
    placed: list[Placed] = field(default_factory=list)
    alone: int = 0
    work: float = 0.0
    work_again: float = 0.0
    whole: int = 0
    shortfall: Shortfall | None = None
    scratch: dict[Step, Array] = field(default_factory=dict)
    cleared: dict[Step, list[Array]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """The bytes of all arenas."""
        return sum(self.arenas.values())

    @property
    def live(self) -> int:
        """The bytes of what is needed at the same time, at most: no arenas for this order of steps can be smaller."""
        return sum(map(self.live_at, self.arenas))

    def live_at(self, location: Location) -> int:
        """The same for the arena at one location."""
        lives = [
            Lifetime(each.what, each.start, each.end, nbytes=each.nbytes)
            for each in self.placed
            if each.location == location
        ]
        return live_bytes(lives, alignment=alignment_of(location))


def assign(
    values: Sequence[Value],
    steps: Sequence[Step],
    provide: Provide | None = None,
    *,
    reuse: bool = True,
    scratch: bool = True,
    apart: Collection[Value] = (),
    rows: Sequence[Sequence[Value]] = (),
    join: bool = True,
) -> MemoryPlan:
    """Assign a buffer to each of ``values``, to what kernels keep for others, and scratch memory to each step.

    Args:
        values: the values of a plan that have no buffer yet.
        steps: the steps of the plan, in order.
        provide: returns so many bytes at a location for all that shares memory there; None: new ones.
        reuse: whether values may share memory.
        scratch: whether steps get their scratch memory here.
        apart: values that are read after the steps have run, and so share memory with no other.
        rows: values of the host that should be next to each other, in this order.
        join: whether values that kernels join may be where the result has them.

    Raises:
        MemoryError: the machine, or a GPU, has not that much memory.
    """
    plan = MemoryPlan()
    if reuse:
        storage = _storage(values)
        lives = _sharing(storage, steps, apart, scratch, join)
        _share(plan, _packed(lives, [[storage.get(v) for v in row] for row in rows], steps), steps, provide)
    else:
        storage = {value: _Storage(_spec(value), [value]) for value in values}
        if scratch:
            _scratch_by_lane(plan, steps)
    for alone in {id(each): each for each in storage.values()}.values():
        if alone.values[0].buffer is None:
            alone.bind(new_buffer(alone.spec, alone.values[0].location))
            plan.alone += alone.spec.nbytes
    return plan


def _scratch_by_lane(plan: MemoryPlan, steps: Sequence[Step]) -> None:
    most: dict[tuple[int, Location], int] = {}
    for step in steps:
        place = step.lane, step.location
        most[place] = max(most.get(place, 0), step.prepared.scratch)
    memory = {place: new_bytes(nbytes, place[1]) for place, nbytes in most.items() if nbytes}
    plan.alone += sum(most.values())
    for step in steps:
        if step.prepared.scratch:
            plan.scratch[step] = memory[step.lane, step.location][: step.prepared.scratch]


_Packed = tuple[list[tuple[Lifetime[Any], int]], dict[Location, int]]
"""Lifetimes with their offsets, and the size of each arena."""


def _share(plan: MemoryPlan, packed: _Packed, steps: Sequence[Step], provide: Provide | None) -> None:
    """Give all storage that is needed during the run alone its memory in the arena of its location."""
    placed, plan.arenas = packed
    arenas = {location: (provide or new_bytes)(nbytes, location) for location, nbytes in plan.arenas.items()}
    for life, begin in placed:
        location = _place(life).location
        end = min(life.end, len(steps) - 1)  # where other lanes need it to the end, the lifetime ends after all steps
        for part, start in life.key.parts if isinstance(life.key, _Row) else [(life, 0)]:
            offset, key = begin + start, part.key
            key.place(plan, arenas[location][offset : offset + part.nbytes], steps[part.start])
            if isinstance(life.key, _Row) and key in life.key.composed:
                continue
            plan.placed.append(
                Placed(key.what, life.start, end, offset, part.nbytes, isinstance(key, _Scratch), location)
            )


def _packed(lives: list[Lifetime[Any]], rows: Sequence[Sequence[_Storage | None]], steps: Sequence[Step]) -> _Packed:
    """Pack lifetimes, with storage in rows as far as that takes hardly any more memory."""
    in_rows = _with_rows(lives, rows)
    found = pack(in_rows, steps)
    if len(in_rows) == len(lives):
        return found
    least = sum(int(load_of(block, alignment_of(place.location)).max()) for place, block in _blocks(lives).items())
    if sum(found[1].values()) <= _GROWTH * least:
        return found
    without = pack(lives, steps)
    return found if sum(found[1].values()) <= _GROWTH * sum(without[1].values()) else without


def _with_rows(lives: list[Lifetime[Any]], rows: Sequence[Sequence[_Storage | None]]) -> list[Lifetime[Any]]:
    """Return the lifetimes with those of each row joined to one, except where more would be needed at the peak."""
    life_of: dict[Any, Lifetime[Any]] = {life.key: life for life in lives if isinstance(life.key, _Storage)}
    blocks = _blocks(lives) if rows else {}
    loads = {place: load_of(block, alignment_of(place.location)) for place, block in blocks.items()}
    most = {place: _GROWTH * load.max() for place, load in loads.items()}
    joined: dict[int, Lifetime[Any]] = {}  # by the id of each of its parts
    for row in rows:
        parts = [life_of[each] for each in row if each is not None and each in life_of]
        places = {_place(part) for part in parts}
        if len({*map(id, parts)}.difference(joined)) < len(row) or len(places) > 1:
            continue
        (place,) = places
        *starts, nbytes = row_starts([part.nbytes for part in parts])
        begin, end = min(part.start for part in parts), max(part.end for part in parts)
        life = Lifetime(_Row([*zip(parts, starts)]), begin, end, place, nbytes)
        load = loads[place] - load_of(parts, alignment_of(HOST), len(loads[place]))[: len(loads[place])]
        load[begin : end + 1] += _aligned(nbytes, alignment_of(HOST))
        if load.max() <= most[place]:
            loads[place] = load
            joined.update((id(part), life) for part in parts)
    return [*(life for life in lives if id(life) not in joined), *{id(life): life for life in joined.values()}.values()]


class Place(NamedTuple):
    """A block of an arena: what steps of one lane write first there, at one location."""

    location: Location
    lane: int


def _place(life: Lifetime[Any]) -> Place:
    assert isinstance(life.place, Place)
    return life.place


def arena_load(values: Sequence[Value], steps: Sequence[Step], apart: Collection[Value]) -> dict[Place, Any]:
    """Return, for each block of the arenas, how many bytes are needed at each step; the arguments are as in ``assign``.

    Nothing is assigned.
    """
    blocks = _blocks(_sharing(_storage(values), steps, apart, scratch=True))
    return {place: load_of(block, alignment_of(place.location), len(steps)) for place, block in blocks.items()}


def arena_bytes(values: Sequence[Value], steps: Sequence[Step], apart: Collection[Value]) -> int:
    """Return the size of the arenas that ``assign`` would need; nothing is assigned."""
    return sum(pack(_sharing(_storage(values), steps, apart, scratch=True), steps)[1].values())


def _blocks(lives: Sequence[Lifetime[Any]]) -> dict[Place, list[Lifetime[Any]]]:
    blocks: dict[Place, list[Lifetime[Any]]] = {}
    for life in lives:
        blocks.setdefault(_place(life), []).append(life)
    return blocks


def _sharing(
    storage: dict[Value, _Storage], steps: Sequence[Step], apart: Collection[Value], scratch: bool, join: bool = True
) -> list[Lifetime[Any]]:
    """Return the lifetimes of all that shares memory; storage that overwrites other storage is joined with it."""

    def memory_of(value: Value) -> int:
        return id(storage[value]) if value in storage else id(buffer_of(value))

    several = any(step.lane for step in steps)
    schedule = Schedule(steps, dependencies(steps, memory_of) if several else None)
    lives = _lifetimes(storage, steps, schedule)
    for life in lives.values():
        life.nbytes = life.key.nbytes
    joined = [] if several or not join else _joined(storage, lives, steps, apart)
    _overwrite(storage, lives, steps)
    sharing: list[Lifetime[Any]] = [
        life for life in lives.values() if life.key.may_share and not any(v in apart for v in life.key.values)
    ]
    sharing += joined
    if scratch:
        for index, step in enumerate(steps):
            if step.prepared.scratch:
                place = Place(step.location, step.lane)
                sharing.append(Lifetime(_Scratch(step), index, index, place, step.prepared.scratch))
    return sharing + _kept_for_gradients(steps, schedule)


def _kept_for_gradients(steps: Sequence[Step], schedule: Schedule) -> list[Lifetime[Any]]:
    """Return the lifetimes of what kernels keep for others."""
    touched: dict[int, tuple[KeptMemory, list[int]]] = {}
    for index, step in enumerate(steps):
        kept = step.prepared.get(KeptForGradient)
        for each in kept.memory if kept is not None else ():
            touched.setdefault(id(each), (each, []))[1].append(index)
    found: list[Lifetime[Any]] = []
    for each, indices in touched.values():
        first = steps[indices[0]]
        place = Place(first.location, first.lane)
        end = schedule.end(first.lane, indices)
        found.append(Lifetime(_ForGradient(each, first), indices[0], end, place, each.nbytes))
    return found


def pack(lives: Sequence[Lifetime[Any]], steps: Sequence[Step]) -> _Packed:
    """Give lifetimes their offsets; lanes have blocks of their own."""
    placed: list[tuple[Lifetime[Any], int]] = []
    ends: dict[Location, int] = {}
    for place, block in _blocks(lives).items():
        alignment, begin = alignment_of(place.location), ends.get(place.location, 0)
        if len(block) > _MANY:
            block, tiny = _without_tiny(block, alignment)
            for life in tiny:
                placed.append((life, begin))
                begin += _aligned(life.nbytes, alignment)
        if len(block) > _TOGETHER:
            parts: dict[Any, list[Lifetime[Any]]] = {}
            for life in block:
                parts.setdefault(steps[life.start].node.first.device, []).append(life)
        else:
            parts = {None: block}
        for part in parts.values():
            offsets, nbytes = pack_into_arena(part, alignment=alignment)
            placed += [(life, begin + offset) for life, offset in zip(part, offsets)]
            begin += _aligned(nbytes, alignment)
        ends[place.location] = begin
    return placed, ends


def _without_tiny(lives: Sequence[Lifetime[Any]], alignment: int) -> tuple[list[Lifetime[Any]], list[Lifetime[Any]]]:
    """Split lifetimes into those that are packed, and the smallest, which together are a small part of the peak.

    The time of packing grows with the square of their number, and most values of a net with many devices are small.
    """
    allowed = _TINY * live_bytes(lives, alignment=alignment)
    by_size = sorted(lives, key=lambda life: life.nbytes)
    count, total = 0, 0
    while count < len(by_size) and total + _aligned(by_size[count].nbytes, alignment) <= allowed:
        total += _aligned(by_size[count].nbytes, alignment)
        count += 1
    return by_size[count:], by_size[:count]


def _aligned(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment


@dataclass(slots=True, eq=False)
class _Scratch:
    """The scratch memory of a step."""

    step: Step

    @property
    def what(self) -> str:
        return f"scratch of {self.step.what}"

    def place(self, plan: MemoryPlan, buffer: Array, step: Step) -> None:
        plan.scratch[step] = buffer


@dataclass(slots=True, eq=False)
class _ForGradient:
    """What the kernel of a step keeps for that of its gradient."""

    kept: KeptMemory
    step: Step

    @property
    def what(self) -> str:
        return f"kept by {self.step.what} for its gradient"

    def place(self, plan: MemoryPlan, buffer: Array, step: Step) -> None:
        self.kept.place(buffer)


@dataclass(slots=True, eq=False)
class _Row:
    """Storage that is next to each other: the lifetime of each, and where it begins; and which of it is others."""

    parts: list[tuple[Lifetime[_Storage], int]]
    composed: Collection[_Storage] = ()


@dataclass(slots=True, eq=False)
class _Storage:
    """Values in one buffer: of one spec, or plain ones with as many elements of one type."""

    spec: TensorSpec
    values: list[Value]

    @property
    def what(self) -> str:
        return self.values[0].name

    @property
    def nbytes(self) -> int:
        return int(self.spec.nbytes)

    @property
    def may_share(self) -> bool:
        return self.spec.dtype != STRING

    def bind(self, buffer: Array) -> None:
        views = {self.spec.shape: buffer}
        for value in self.values:
            shape = _spec(value).shape
            if shape not in views:
                views[shape] = buffer.reshape(shape)
            value.buffer = views[shape]

    def place(self, plan: MemoryPlan, buffer: Array, step: Step) -> None:
        layout = self.spec.layout
        if layout is None:
            self.bind(as_flat(buffer, self.spec.dtype).reshape(self.spec.shape))
            return
        self.bind(buffer)
        if not layout.filled and self.nbytes != self.spec.size * layout.itemsize:
            plan.cleared.setdefault(step, []).append(buffer)


def _spec(value: Value) -> TensorSpec:
    assert value.spec is not None
    return value.spec


def _alike(a: TensorSpec, b: TensorSpec) -> bool:
    """Whether values of two specs can have one buffer: the specs are equal but for the shape of plain values."""
    return a == b or (a.layout is None and b.layout is None and (a.size, a.dtype) == (b.size, b.dtype))


def _storage(values: Iterable[Value]) -> dict[Value, _Storage]:
    """Return the storage of each value; values that overwrite one another have one together."""
    storage: dict[Value, _Storage] = {}
    for value in values:
        before = storage.get(value.shares) if value.shares is not None else None
        if before is not None and before.spec == value.spec:
            before.values.append(value)
            storage[value] = before
        else:
            storage[value] = _Storage(_spec(value), [value])
    return storage


def _lifetimes(
    storage: dict[Value, _Storage], steps: Sequence[Step], schedule: Schedule
) -> dict[_Storage, Lifetime[_Storage]]:
    """Return the lifetime of each storage, in the lane of the step that writes it first."""
    touched: dict[_Storage, list[int]] = {}
    for index, step in enumerate(steps):
        for value in (*step.inputs, *step.outputs):
            if value in storage:
                touched.setdefault(storage[value], []).append(index)
    result = {}
    for each, indices in touched.items():
        lane = steps[indices[0]].lane
        place = Place(each.values[0].location, lane)
        result[each] = Lifetime(each, indices[0], schedule.end(lane, indices), place)
    return result


def _joined(
    storage: dict[Value, _Storage],
    lives: dict[_Storage, Lifetime[_Storage]],
    steps: Sequence[Step],
    apart: Collection[Value],
) -> list[Lifetime[Any]]:
    """Take lifetimes of values that kernels join out of ``lives``; return those of the rows that they are, instead.

    Such storage overwrites nothing, and nothing overwrites it: it is written before it is joined, and not afterwards.
    """
    joins = _joins(storage, lives, steps, apart)
    if not joins:
        return []
    blocks = _blocks([life for life in lives.values() if life.key.may_share])
    loads = {place: load_of(block, alignment_of(place.location), len(steps)) for place, block in blocks.items()}
    alignment = max(alignment_of(place.location) for place in blocks)
    rows: list[Lifetime[Any]] = []
    for each in group(joins, lambda key: key.nbytes, alignment):
        inside = [lives[key] for key in each.offsets]
        place = _place(inside[0])
        begin, end = min(life.start for life in inside), max(life.end for life in inside)
        load = loads[place] - load_of(inside, alignment, len(loads[place]))[: len(loads[place])]
        load[begin : end + 1] += _aligned(each.nbytes, alignment)
        if load.max() <= _GROWTH * loads[place].max():
            loads[place] = load
            row = _Row([(lives.pop(key), start) for key, start in each.offsets.items()], each.composed)
            rows.append(Lifetime(row, begin, end, place, each.nbytes))
    return rows


def _joins(
    storage: dict[Value, _Storage],
    lives: dict[_Storage, Lifetime[_Storage]],
    steps: Sequence[Step],
    apart: Collection[Value],
) -> list[tuple[_Storage, list[_Storage]]]:
    """Return the storage of what kernels join, and of its parts, where the parts may be stored in the whole."""
    written: dict[_Storage, int] = {}  # by which step last
    for index, step in enumerate(steps):
        written.update((storage[value], index) for value in step.outputs if value in storage)

    def may_be_stored(each: _Storage | None, before: int) -> bool:
        if each is None or each not in lives or written.get(each, before) >= before or not each.may_share:
            return False
        layout = each.spec.layout
        padded = layout is not None and not layout.filled and each.nbytes != each.spec.size * layout.itemsize
        return not padded and not any(value in apart for value in each.values)

    joins: list[tuple[_Storage, list[_Storage]]] = []
    for index, step in enumerate(steps):
        if step.prepared.get(Joined):
            whole, *parts = (storage.get(value) for value in (step.outputs[0], *step.inputs) if value is not None)
            if whole is not None and may_be_stored(whole, index + 1) and lives[whole].start == index:
                found = [each for each in parts if each is not None and may_be_stored(each, index)]
                if len(found) == len(parts) and len({_place(lives[each]) for each in (whole, *found)}) == 1:
                    joins.append((whole, found))
    return joins


def _overwrite(
    storage: dict[Value, _Storage], lives: dict[_Storage, Lifetime[_Storage]], steps: Sequence[Step]
) -> None:
    """Let an output have the storage of an input that is not needed any more, where the kernel may overwrite it."""
    for index, step in enumerate(steps):
        if not step.prepared.inplace or step.prepared.get(CopiesInPlace):
            continue
        ins = [storage.get(value) if value is not None else None for value in step.inputs]
        outs = [storage.get(value) if value is not None else None for value in step.outputs]
        for i, j in step.prepared.inplace:
            before, after = (ins[i] if i < len(ins) else None), (outs[j] if j < len(outs) else None)
            if before not in lives or after not in lives or before is after or ins.count(before) > 1 or before in outs:
                continue
            first, then = lives[before], lives[after]
            if first.end != index or then.start != index or first.place != then.place:
                continue
            if not _alike(before.spec, after.spec) or before.values[0].location != after.values[0].location:
                continue
            before.values += after.values
            first.end = then.end
            del lives[after]
            storage.update((value, before) for value in after.values)
            outs = [before if other is after else other for other in outs]
