"""Kernels in two halves: one begins the work and returns at once, the other waits for it, as late as the plan can.

A step of such a kernel (``Prepared.split``) only begins. A second step waits: before the first step that reads what the
kernel writes or that overwrites what it reads or writes, and in the lane of that one; else at the end of the plan. The
steps between the two run while the work is done: by a library's thread, another process, or a GPU.

A copy that the plan puts in between GPUs is such a kernel. It begins as soon as its value is there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from netbuilder.ops.core.contexts import Call
from netbuilder.runtime.plan.values import Step, StepKind, Value

__all__ = ["Begun", "with_waits"]


_COPIES = (StepKind.REORDER, StepKind.TRANSFER)


class Begun:
    """A call in two halves, and what it has begun until that is waited for.

    Args:
        call: begins, and returns the call that waits.
    """

    __slots__ = ("_call", "_wait")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._wait: object = None

    def begin(self) -> None:
        self._wait = self._call()

    def wait(self) -> None:
        """Wait for what has been begun, if anything."""
        wait, self._wait = self._wait, None
        if callable(wait):
            wait()


def with_waits(steps: Sequence[Step]) -> list[Step]:
    """Return the steps of a plan with those that wait for kernels in two halves."""
    if not any(step.prepared.split for step in steps):
        return list(steps)
    steps = _begun_early(steps)
    waits: dict[int, list[Step]] = defaultdict(list)  # place of a step -> those that wait before it
    for place, step in enumerate(steps):
        if step.prepared.split:
            until = _first_touch(step, place, steps)
            lane = steps[until].lane if until < len(steps) else step.lane
            wait = Step(step.node, step.prepared, step.inputs, step.outputs, lane, StepKind.WAIT, step)
            waits[until].append(wait)
    return [each for place in range(len(steps) + 1) for each in (*waits[place], *steps[place : place + 1])]


def _begun_early(steps: Sequence[Step]) -> list[Step]:
    """Return the steps with copies in two halves right after those that make their values, in the lanes of these."""
    early: dict[int, list[Step]] = defaultdict(list)  # step -> the copies of what it makes
    moved = set()
    for step in steps:
        source = step.inputs[0] if step.inputs else None
        if (
            step.prepared.split
            and step.kind is StepKind.TRANSFER
            and source is not None
            and source.producer is not None
        ):
            step.lane = source.producer.lane
            early[id(source.producer)].append(step)
            moved.add(id(step))
    return [each for step in steps if id(step) not in moved for each in (step, *early[id(step)])]


def _first_touch(step: Step, place: int, steps: Sequence[Step]) -> int:
    """Return the place of the first step after ``place`` that needs the whole of ``step`` done."""
    made = {id(value) for value in step.outputs if value is not None}
    # A copy that the plan put in is no version of its name: nothing else writes to its memory.
    outputs = set() if step.kind in _COPIES else _names(step.outputs)
    inputs = _names(step.inputs)
    for later in range(place + 1, len(steps)):
        other = steps[later]
        if any(id(value) in made for value in other.inputs if value is not None):
            return later
        writes = set() if other.kind in _COPIES else _names(other.outputs)
        if not writes.isdisjoint(outputs | inputs) or not _names(other.inputs).isdisjoint(outputs):
            return later
        if any(name in outputs for part in other.node.parts for name in part.control):
            return later
    return len(steps)


def _names(values: Sequence[Value | None]) -> set[str]:
    return {value.name for value in values if value is not None}
