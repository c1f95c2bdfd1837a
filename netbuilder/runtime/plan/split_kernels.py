"""Split kernels: a call begins the work and returns at once; a second call waits for it, as late as the plan can.

The step of such a kernel (``SplitKernel``) only begins the work. A second step waits, in the lane and before the
first step that reads an output of the kernel or overwrites one of its inputs or outputs; if there is none, at the end
of the plan. The steps between the two run while the work is done by a library's thread, another process, or a GPU.

A copy between GPUs that the plan inserts is a split kernel. It begins as soon as its value is written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from netbuilder.ops.core.contexts import Call
from netbuilder.ops.core.extensions import SplitKernel
from netbuilder.runtime.plan.values import Step, StepKind, Value

__all__ = ["SplitCall", "add_waits"]

_COPIES = (StepKind.REORDER, StepKind.TRANSFER)


class SplitCall:
    """The two calls of a split kernel.

    Args:
        call: begins the work, and returns the call that waits for it.
    """

    __slots__ = ("_call", "_wait")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._wait: object = None

    def begin(self) -> None:
        self._wait = self._call()

    def wait(self) -> None:
        """Wait for the work, if any has begun."""
        wait, self._wait = self._wait, None
        if callable(wait):
            wait()


def add_waits(steps: Sequence[Step]) -> list[Step]:
    """Return the steps of a plan with a waiting step added for each split kernel.

    Of several waits in a row the work that was begun last comes first: it mostly ends last, so that the thread sleeps
    until all of it is done. Waking it for each would cost the threads that do the work more than 0.1 ms.
    """
    if not any(step.prepared.get(SplitKernel) for step in steps):
        return list(steps)
    steps = _begin_copies_early(steps)
    waits: dict[int, list[Step]] = defaultdict(list)  # index of a step -> the waits before it
    for index, step in enumerate(steps):
        if step.prepared.get(SplitKernel):
            until = _first_dependent(step, index, steps)
            lane = steps[until].lane if until < len(steps) else step.lane
            wait = Step(step.node, step.prepared, step.inputs, step.outputs, lane, StepKind.WAIT, step)
            waits[until].append(wait)
    return [each for index in range(len(steps) + 1) for each in (*reversed(waits[index]), *steps[index : index + 1])]


def _begin_copies_early(steps: Sequence[Step]) -> list[Step]:
    """Return the steps with each split copy moved right after the step that makes its value, into that step's lane."""
    early: dict[Step, list[Step]] = defaultdict(list)  # step -> the copies of its outputs
    moved = set()
    for step in steps:
        source = step.inputs[0] if step.inputs else None
        if (
            step.prepared.get(SplitKernel)
            and step.kind is StepKind.TRANSFER
            and source is not None
            and source.producer is not None
        ):
            step.lane = source.producer.lane
            early[source.producer].append(step)
            moved.add(step)
    return [each for step in steps if step not in moved for each in (step, *early[step])]


def _first_dependent(step: Step, index: int, steps: Sequence[Step]) -> int:
    """Return the index of the first step after ``index`` that needs ``step`` to be complete; ``len(steps)`` if none."""
    made = {value for value in step.outputs if value is not None}
    # A copy that the plan inserted is not a version of its name: nothing else writes to its memory.
    outputs = set() if step.kind in _COPIES else _names(step.outputs)
    inputs = _names(step.inputs)
    for later in range(index + 1, len(steps)):
        other = steps[later]
        if any(value in made for value in other.inputs if value is not None):
            return later
        writes = set() if other.kind in _COPIES else _names(other.outputs)
        if not writes.isdisjoint(outputs | inputs) or not _names(other.inputs).isdisjoint(outputs):
            return later
        queued = _queue(step) and _queue(step) == _queue(other)
        if not queued and any(name in outputs for part in other.node.parts for name in part.control):
            return later
    return len(steps)


def _queue(step: Step) -> str:
    split = step.prepared.get(SplitKernel)
    return split.queue if split is not None else ""


def _names(values: Sequence[Value | None]) -> set[str]:
    return {value.name for value in values if value is not None}
