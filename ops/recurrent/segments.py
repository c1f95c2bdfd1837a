"""Segments of steps: the states at their borders are kept for the backward pass, which runs each segment again.

The arrays in which a backward pass finds the values of a step then hold one segment at a time. What is computed before
the loop, and what the backward pass reads of all steps at once, it has as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from netbuilder.ops.recurrent.arena import Arena, Slot
from netbuilder.ops.recurrent.backward import BackwardPlan
from netbuilder.ops.recurrent.forward import ForwardPlan, Stored
from netbuilder.ops.recurrent.loop import BoundLoop, Loop, Stack, assign
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Segments", "Working", "whole_in_backward"]

Array = Any

_FEWEST = 4  # steps that are worth segments


@dataclass(frozen=True)
class Working:
    """Where a pass has the values of the steps that it is at.

    Args:
        arena: their memory.
        states, kept: the locations, each with the number of steps that it holds.
    """

    arena: Arena
    states: Mapping[str, tuple[Slot, int]]
    kept: Mapping[str, tuple[Slot, int]]


class Segments:
    """Where a forward pass stores what it keeps at the borders of segments.

    ``memory`` is the output that the gradient reads.

    Args:
        plan: the forward pass.
        loop: its operators, compiled: the backward pass runs the same kernels.
    """

    def __init__(self, plan: ForwardPlan, loop: Loop) -> None:
        self.plan, self.loop = plan, loop
        self.length = self._best_length()
        self.starts = range(0, plan.steps, self.length)
        self.memory = Arena()
        self._borders = {
            name: self._add((len(self.starts), plan.initial_rows[name], *slot.shape[1:]), slot)
            for name, slot in plan.states.items()
        }
        self._once = {name: self._add(slot.shape, slot) for name, slot in plan.kept_once.items()}
        self._local = {name: self._add(slot.shape, slot) for name, slot in plan.local.items()}
        projected = {each.result for each in plan.projections}
        self._projected = {name: self._add(slot.shape, slot) for name, slot in plan.kept.items() if name in projected}

    @staticmethod
    def possible(plan: ForwardPlan) -> bool:
        """Whether steps of a forward pass can run again: they draw the same numbers and have no other effects."""
        steps = not plan.one_by_one and plan.keep and plan.steps >= _FEWEST
        return steps and not plan.op.has_side_effects

    def _add(self, shape: Sequence[int], like: Slot) -> Slot:
        return self.memory.add(shape, like.dtype)

    def _best_length(self) -> int:
        """Return the length with which the borders and one segment take the least memory."""
        plan = self.plan
        border = sum(slot.nbytes // max(slot.shape[0], 1) * plan.initial_rows[n] for n, slot in plan.states.items())
        step = sum(slot.nbytes for slot in (*plan.states.values(), *plan.kept.values())) / plan.steps
        return min(max(round(math.sqrt(plan.steps * border / max(step, 1))), 1), plan.steps)

    def working(self, length: int, whole: Collection[str] = ()) -> Working:
        """Return where to have the values of so many steps at a time, of ``whole`` states and blobs those of all."""
        plan, arena = self.plan, Arena()

        def of(name: str) -> int:
            return plan.steps if name in whole else length

        states = {
            name: (arena.add((plan.initial_rows[name] + of(name), *slot.shape[1:]), slot.dtype), of(name))
            for name, slot in plan.states.items()
        }
        kept = {
            name: (arena.add((of(name), *slot.shape[1:]), slot.dtype), of(name))
            for name, slot in plan.kept.items()
            if name not in self._projected
        }
        return Working(arena, states, kept)

    def stored(self, memory: Array, working: Working, values: Array) -> Stored:
        """Return the arrays of a pass; ``values`` is the memory for ``working``."""
        kept = {name: Stack(slot.of(values), length) for name, (slot, length) in working.kept.items()}
        kept.update((name, Stack(slot.of(memory), self.plan.steps)) for name, slot in self._projected.items())
        return Stored(
            {name: Stack(slot.of(values), length) for name, (slot, length) in working.states.items()},
            kept,
            {name: slot.of(memory) for name, slot in self._once.items()},
            {name: slot.of(memory) for name, slot in self._local.items()},
        )

    def keep_borders(self, bound: BoundLoop, memory: Array, stored: Stored) -> None:
        """Append the calls that keep the states at the borders."""
        for name, slot in self._borders.items():
            borders, rows = slot.of(memory), self.plan.initial_rows[name]
            for number, start in enumerate(self.starts):
                bound.add(partial(assign, borders[number], stored.states[name].array[start : start + rows]))

    def again(
        self, inputs: Sequence[Array], memory: Array, stored: Stored, scratch: Array | None
    ) -> dict[int, BoundLoop]:
        """Return, by its last step, the calls that run each segment again.

        Args:
            inputs: the arrays of the forward operator's inputs.
            memory: what the forward pass has kept.
            stored: the arrays of the backward pass.
            scratch: ``loop.scratch`` bytes.
        """
        views, found = self.plan.step_views(inputs, stored), {}
        for number, start in enumerate(self.starts):
            bound = BoundLoop(self.loop, views, scratch)
            for name, slot in self._borders.items():
                state, rows = stored.states[name], self.plan.initial_rows[name]
                first = start % state.length
                bound.add(partial(assign, state.array[first : first + rows], slot.of(memory)[number]))
            end = min(start + self.length, self.plan.steps)
            for time in range(start, end):
                bound.step(time)
            found[end - 1] = bound
        return found


def whole_in_backward(plan: BackwardPlan) -> set[str]:
    """Return the states, and the blobs of the step net, of which a backward pass reads all steps at once."""
    read = {name for product in plan.products for name in (product.x, product.dy)}
    linked = plan.op.linked
    return {linked[name].external if name in linked else name for name in read}
