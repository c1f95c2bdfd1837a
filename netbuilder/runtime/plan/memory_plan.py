"""Memory of a plan's own values: values that are not needed at the same time share it.

Values that only one lane uses, whose steps run in order, have offsets in that lane's arena. Values that several lanes
use, and those whose layout has padding (which has to stay zero), have buffers of their own. A kernel overwrites an
input that is not needed any more, where it can.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from netbuilder.graph.lifetimes import Lifetime, lifetimes, pack_into_arena
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.ops.engines.arrays import aligned_zeros, as_flat
from netbuilder.ops.engines.layouts import HOST, new_buffer
from netbuilder.runtime.plan.values import Step, Value

__all__ = ["assign"]


def assign(values: Sequence[Value], steps: Sequence[Step], *, reuse: bool, apart: Collection[int] = ()) -> None:
    """Assign a buffer to each of ``values``.

    Args:
        values: the values of a plan that have none yet.
        steps: the steps of the plan, in order.
        reuse: whether values may share memory.
        apart: ids of values that are read after the steps have run, and so share memory with no other.
    """
    if reuse:
        storage = _storage(values)
        _share(storage, steps, apart)
    else:
        storage = {id(value): _Storage(_spec(value), [value]) for value in values}
    for alone in storage.values():
        if alone.values[0].buffer is None:
            alone.bind(new_buffer(alone.spec, alone.values[0].location))


def _share(storage: dict[int, _Storage], steps: Sequence[Step], apart: Collection[int]) -> None:
    """Assign an offset in the arena of a lane to all storage that only this lane uses."""
    lives = lifetimes(
        (step.lane, [storage[id(v)] for v in (*step.inputs, *step.outputs) if id(v) in storage]) for step in steps
    )
    _overwrite(storage, lives, steps)
    arenas: dict[Hashable, list[Lifetime[_Storage]]] = {}
    for life in lives.values():
        if life.place is not None and life.key.may_share and not any(id(v) in apart for v in life.key.values):
            life.nbytes = life.key.spec.nbytes
            arenas.setdefault(life.place, []).append(life)
    for of_lane in arenas.values():
        offsets, nbytes = pack_into_arena(of_lane)
        arena = aligned_zeros(nbytes)
        for life, offset in zip(of_lane, offsets):
            life.key.bind(_view(arena[offset : offset + life.nbytes], life.key.spec))


@dataclass(slots=True, eq=False)
class _Storage:
    """Values in one buffer."""

    spec: TensorSpec
    values: list[Value]

    def bind(self, buffer: Any) -> None:
        for value in self.values:
            value.buffer = buffer

    @property
    def may_share(self) -> bool:
        spec = self.spec
        if self.values[0].location != HOST or spec.dtype == STRING:
            return False
        return spec.layout is None or spec.nbytes == spec.size * spec.layout.itemsize


def _spec(value: Value) -> TensorSpec:
    assert value.spec is not None
    return value.spec


def _storage(values: Iterable[Value]) -> dict[int, _Storage]:
    """Return the storage of each value, by its id; a value that overwrites another has the same storage."""
    storage: dict[int, _Storage] = {}
    for value in values:
        before = storage.get(id(value.shares)) if value.shares is not None else None
        if before is not None and before.spec == value.spec:
            before.values.append(value)
            storage[id(value)] = before
        else:
            storage[id(value)] = _Storage(_spec(value), [value])
    return storage


def _overwrite(storage: dict[int, _Storage], lives: dict[_Storage, Lifetime[_Storage]], steps: Sequence[Step]) -> None:
    """Give an output the storage of an input that is not needed after the step, where the kernel may overwrite it."""
    for index, step in enumerate(steps):
        if not step.prepared.inplace:
            continue
        ins = [storage.get(id(value)) for value in step.inputs]
        outs = [storage.get(id(value)) for value in step.outputs]
        for i, j in step.prepared.inplace:
            before, after = ins[i], outs[j]
            if before is None or after is None or before is after or ins.count(before) > 1 or before in outs:
                continue
            first, then = lives[before], lives[after]
            if first.end != index or then.start != index or first.place is None or first.place != then.place:
                continue
            if before.spec != after.spec or before.values[0].location != after.values[0].location:
                continue
            before.values += after.values
            first.end = then.end
            del lives[after]
            storage.update((id(value), before) for value in after.values)
            outs = [before if other is after else other for other in outs]


def _view(memory: Any, spec: TensorSpec) -> Any:
    return memory if spec.layout is not None else as_flat(memory, spec.dtype).reshape(spec.shape)
