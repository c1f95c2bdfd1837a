"""Operators that keep less for their gradients, which compute the rest again: recurrent nets in segments of steps.

Both kernels of such a pair, the operator's and its gradient's, are replaced; see ``ops.core.extensions.Checkpoints``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from netbuilder.ops.core.contexts import Prepared
from netbuilder.ops.core.extensions import Checkpoints
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime.plan.values import Step, Value

__all__ = ["CheckpointedPair", "checkpointed_pairs", "with_checkpoints"]


@dataclass(frozen=True, eq=False)
class CheckpointedPair:
    """An operator's step and its gradient's, and those that keep less between them.

    Args:
        forward, backward: the steps of the plan.
        value: what the operator keeps.
        instead: the step in place of ``forward``.
        instead_backward: the one in place of ``backward``.
        smaller: the value in place of ``value``.
    """

    forward: Step
    backward: Step
    value: Value
    instead: Step
    instead_backward: Step
    smaller: Value


def checkpointed_pairs(
    steps: Sequence[Step], values: Collection[Value], apart: Collection[Value]
) -> list[CheckpointedPair]:
    """Return the pairs of a plan.

    Args:
        steps: of the plan.
        values: those that are in the arena.
        apart: ids of those that are read after the steps have run.
    """
    own = set(values).difference(apart)
    found = []
    for index, forward in enumerate(steps):
        checkpoints = forward.prepared.get(Checkpoints)
        if checkpoints is None or checkpoints.output is None:
            continue
        value = forward.outputs[checkpoints.output]
        if value is None or value not in own:
            continue
        readers = [i for i, step in enumerate(steps) if value in step.inputs]
        if len(readers) == 1:
            pair = _pair(steps, index, readers[0], value)
            found += [pair] if pair is not None else []
    return found


def _pair(steps: Sequence[Step], index: int, reader: int, value: Value) -> CheckpointedPair | None:
    forward, backward = steps[index], steps[reader]
    mine, others = forward.prepared.get(Checkpoints), backward.prepared.get(Checkpoints)
    if mine is None or mine.output is None or others is None or others.input is None:
        return None
    first = mine.make(None)
    second = others.make(first) if first is not None and backward.inputs[others.input] is value else None
    if first is None or second is None:
        return None
    smaller = replace(value, spec=first.outputs[mine.output])
    outputs: list[Value | None] = [smaller if output is value else output for output in forward.outputs]
    inputs = _inputs(steps, index, reader, second, others.input, smaller)
    if inputs is None:
        return None
    instead = replace(forward, prepared=first, outputs=outputs)
    smaller.producer = instead
    instead_backward = replace(backward, prepared=second, inputs=inputs)
    return CheckpointedPair(forward, backward, value, instead, instead_backward, smaller)


def _inputs(
    steps: Sequence[Step], index: int, reader: int, kernel: Prepared, kept: int, smaller: Value
) -> list[Value | None] | None:
    """Return the inputs of the gradient's other kernel; None if one of them is not there any more."""
    forward, backward = steps[index], steps[reader]
    given = dict(zip(forward.node.inputs, forward.inputs))
    inputs: list[Value | None] = []
    for number, spec in enumerate(kernel.inputs):
        value = backward.inputs[number]
        if number == kept:
            value = smaller
        elif spec is None:
            value = None
        elif value is None:
            value = given.get(backward.node.inputs[number])
            if value is None or value.spec != spec or _overwritten(value, steps[index:reader]):
                return None
        inputs.append(value)
    return inputs


def _overwritten(value: Value, steps: Sequence[Step]) -> bool:
    """Whether one of these steps writes another value into the same buffer."""
    for output in (output for step in steps for output in step.outputs if output is not None):
        if output.shares is value or output.name == value.name and output.version > value.version:
            return True
    return False


def with_checkpoints(
    steps: Sequence[Step], values: Sequence[Value], pairs: Sequence[CheckpointedPair], chosen: Collection[int]
) -> tuple[list[Step], list[Value]]:
    """Return the steps and values of a plan in which some pairs keep less, and make these steps the values' producers.

    Args:
        steps, values: of the plan.
        pairs: all pairs of the plan.
        chosen: the numbers of those that keep less.
    """
    steps_instead: dict[Step, Step] = {}
    values_instead: dict[Value, Value] = {}
    for number, pair in enumerate(pairs):
        both = [(pair.forward, pair.instead), (pair.backward, pair.instead_backward)]
        if number in chosen:
            steps_instead.update((step, instead) for step, instead in both)
            values_instead[pair.value] = pair.smaller
        for before, after in both:
            for value in before.outputs:
                if value is not None:
                    value.producer = after if number in chosen else before
    made = [steps_instead.get(step, step) for step in steps]
    return made, [values_instead.get(value, value) for value in values]
