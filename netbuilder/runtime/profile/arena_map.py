"""What is in the arenas during the steps of a plan, and when it needs the most."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from netbuilder.engines.layouts import HOST, Location, alignment_of
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime.execute.executable import Plan
from netbuilder.runtime.plan.memory_plan import Placed
from netbuilder.runtime.plan.values import Step, StepKind
from netbuilder.runtime.profile.call import device_text, step_text

__all__ = ["ArenaMap", "ArenaValue", "arena_map", "arena_maps"]


@dataclass(frozen=True)
class ArenaValue:
    """A value in the arena, or the scratch memory of a step.

    Args:
        name: of the blob; "" for scratch memory.
        kind: "forward", "backward", "recompute" (made a second time), "copy" (inserted by the plan, mostly in another
            layout) or "scratch".
        made_by: type and first output of the operator that needs it first; it makes the value.
        device: of that operator.
        line: of the user's program that added the operator.
        start, end: the first and the last step that needs it.
        offset, nbytes: where it is.
    """

    name: str
    kind: str
    made_by: str
    device: str
    line: str
    start: int
    end: int
    offset: int
    nbytes: int

    @property
    def title(self) -> str:
        """What it is, in a few words."""
        return self.name or f"scratch memory of {self.made_by}"


@dataclass(frozen=True)
class ArenaMap:
    """The arena at one location during the steps of a plan.

    Args:
        nbytes: size of the plan's part of the arena.
        steps: type and first output of each step.
        values: what is in the arena, the largest first.
        load: bytes that are needed during each step.
        gpu: the number of the GPU that it is on; None: it is on the host.
        plan: the number of the plan, from 1 on.
    """

    nbytes: int
    steps: Sequence[str]
    values: Sequence[ArenaValue]
    load: Sequence[int]
    gpu: int | None = None
    plan: int = 1

    @property
    def peak(self) -> int:
        """The first step that needs the most; 0 if nothing is in the arena."""
        return int(np.argmax(self.load)) if len(self.load) else 0

    @property
    def live(self) -> int:
        """The bytes that are needed at the same time, at most."""
        return int(max(self.load, default=0))

    def alive(self, step: int) -> list[ArenaValue]:
        """Return what is needed during a step, the largest first."""
        return [value for value in self.values if value.start <= step <= value.end]


def arena_maps(plans: Sequence[Plan]) -> list[ArenaMap]:
    """Return what plans have in each arena, in order; nothing has to have run."""
    return [
        dataclasses.replace(arena_map(plan, location), plan=number)
        for number, plan in enumerate(plans, start=1)
        for location in sorted(plan.memory.arenas) or [HOST]
    ]


def arena_map(plan: Plan, location: Location = HOST) -> ArenaMap:
    """Return what a plan has in the arena at a location."""
    there = [placed for placed in plan.memory.placed if placed.location == location]
    values = [_described(placed, plan.steps[placed.start]) for placed in there]
    change = np.zeros(len(plan.steps) + 1, np.int64)
    alignment = alignment_of(location)
    for value in values:
        needed = -(-value.nbytes // alignment) * alignment
        change[value.start] += needed
        change[value.end + 1] -= needed
    return ArenaMap(
        plan.memory.arenas.get(location, 0),
        [step_text(step) for step in plan.steps],
        sorted(values, key=lambda value: (-value.nbytes, value.start)),
        np.cumsum(change)[:-1].tolist(),
        None if location == HOST else location[1],
    )


def _described(placed: Placed, step: Step) -> ArenaValue:
    instruction = step.node.first
    return ArenaValue(
        "" if placed.scratch else placed.what,
        _kind(placed, step),
        step_text(step),
        device_text(instruction.device),
        instruction.op_def.debug_info,
        placed.start,
        placed.end,
        placed.offset,
        placed.nbytes,
    )


def _kind(placed: Placed, step: Step) -> str:
    if placed.scratch:
        return "scratch"
    if step.kind is StepKind.RECOMPUTE:
        return "recompute"
    if step.kind not in (StepKind.COMPUTE, StepKind.REST):
        return "copy"
    return "backward" if any(part.op_def.is_gradient_op for part in step.node.parts) else "forward"
