"""Memory of a plan's own values: those that are not alive at the same time share it.

A value is alive from the step that writes it to the last one that reads it. Values of one lane, whose steps run in
order, are laid out by a scan over their lives; others, and those whose layout has padding (which has to stay zero),
have memory of their own. Where a kernel may overwrite an input that nobody needs any more, it does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from netbuilder.ops.engines.arrays import aligned_zeros, as_flat
from netbuilder.ops.engines.layouts import HOST, new_buffer
from netbuilder.ops.operator import STRING, TensorSpec
from netbuilder.runtime.values import Step, Value

__all__ = ["place"]


def place(values: Sequence[Value], steps: Sequence[Step], *, reuse: bool, apart: Collection[int] = ()) -> None:
    """Give each of ``values`` its buffer.

    Args:
        values: those that have none yet.
        steps: of the plan, in order.
        reuse: whether values may share memory.
        apart: identities of values that are read after the steps have run.
    """
    if not reuse:
        for value in values:
            assert value.spec is not None
            value.buffer = new_buffer(value.spec, value.location)
        return
    lives = _lives(values, steps)
    _overwrite(lives, steps)
    found = {id(life): life for life in lives.values()}.values()
    shared = [life for life in found if life.may_share and not any(id(value) in apart for value in life.values)]
    sharing = {id(life) for life in shared}
    for life in found:
        if id(life) not in sharing:
            life.bind(new_buffer(life.spec, life.values[0].location))
    by_lane: dict[int, list[_Life]] = {}
    for life in shared:
        by_lane.setdefault(next(iter(life.lanes)), []).append(life)
    for lives_of_lane in by_lane.values():
        _scan(lives_of_lane)


@dataclass(slots=True, eq=False)
class _Life:
    """Values in one buffer, and the steps from the first that writes one to the last that reads one."""

    spec: TensorSpec
    values: list[Value]
    start: int = -1
    end: int = -1
    lanes: set[int] = field(default_factory=set)

    def at(self, index: int, step: Step) -> None:
        if self.start < 0:
            self.start = index
        self.end = index
        self.lanes.add(step.lane)

    def bind(self, buffer: Any) -> None:
        for value in self.values:
            value.buffer = buffer

    @property
    def may_share(self) -> bool:
        spec = self.spec
        if len(self.lanes) != 1 or self.values[0].location != HOST or spec.dtype == STRING:
            return False
        return spec.layout is None or spec.nbytes == spec.size * spec.layout.itemsize


def _lives(values: Iterable[Value], steps: Sequence[Step]) -> dict[int, _Life]:
    """Return the life of each value; values that overwrite one another have one together."""
    lives: dict[int, _Life] = {}
    for value in values:
        assert value.spec is not None
        before = lives.get(id(value.shares)) if value.shares is not None else None
        if before is not None and before.spec == value.spec:
            before.values.append(value)
            lives[id(value)] = before
        else:
            lives[id(value)] = _Life(value.spec, [value])
    for index, step in enumerate(steps):
        for touched in (*step.inputs, *step.outputs):
            if touched is not None and id(touched) in lives:
                lives[id(touched)].at(index, step)
    return lives


def _overwrite(lives: dict[int, _Life], steps: Sequence[Step]) -> None:
    """Join the life of an output to that of an input that ends there, where the kernel may overwrite it."""
    for index, step in enumerate(steps):
        ins = [None if value is None else lives.get(id(value)) for value in step.inputs]
        outs = [None if value is None else lives.get(id(value)) for value in step.outputs]
        for i, j in step.prepared.inplace:
            before, after = ins[i], outs[j]
            if before is None or after is None or before is after or before.end != index or after.start != index:
                continue
            if before.spec != after.spec or before.lanes != after.lanes or len(before.lanes) != 1:
                continue
            if ins.count(before) > 1 or before in outs or before.values[0].location != after.values[0].location:
                continue
            before.values += after.values
            before.end = after.end
            for value in after.values:
                lives[id(value)] = before
            outs[j] = before


@dataclass(slots=True, eq=False)
class _Block:
    """Memory that lives share one after the other."""

    nbytes: int
    lives: list[_Life]
    free_from: int


def _scan(lives: list[_Life]) -> None:
    """Lay out lives of one lane: each takes the smallest free block that holds it, or the largest one, made larger."""
    blocks: list[_Block] = []
    for life in sorted(lives, key=lambda life: life.start):
        need = life.spec.nbytes
        free = [block for block in blocks if block.free_from <= life.start]
        fitting = [block for block in free if block.nbytes >= need]
        if fitting:
            block = min(fitting, key=lambda block: block.nbytes)
        elif free:
            block = max(free, key=lambda block: block.nbytes)
            block.nbytes = need
        else:
            block = _Block(need, [], 0)
            blocks.append(block)
        block.lives.append(life)
        block.free_from = life.end + 1
    for block in blocks:
        memory = aligned_zeros(block.nbytes)
        for life in block.lives:
            life.bind(_view(memory, life.spec))


def _view(memory: Any, spec: TensorSpec) -> Any:
    part = memory[: spec.nbytes]
    return part if spec.layout is not None else as_flat(part, spec.dtype).reshape(spec.shape)
