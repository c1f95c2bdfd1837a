"""Which steps can be part of a CUDA graph."""

from __future__ import annotations

from collections.abc import Collection

from netbuilder.engines.layouts import HOST
from netbuilder.ops.core.extensions import Capturable
from netbuilder.runtime.plan.plain_kernels import PLAIN
from netbuilder.runtime.plan.values import Step, StepKind

__all__ = ["why_not_captured"]


def why_not_captured(step: Step, fixed: Collection[str] = ()) -> str:
    """Return why a step cannot be in a CUDA graph; "" if it can.

    Args:
        step: the step.
        fixed: names of values on the host that are the same in each run, such as the number of a recurrent step.
    """
    location, capturable = step.location, step.prepared.get(Capturable)
    numbers_from = capturable.numbers_from if capturable is not None else ()
    read = [value for i, value in enumerate(step.inputs) if i not in numbers_from]
    values = [value for value in (*read, *step.outputs) if value is not None and value.name not in fixed]
    others = {value.location for value in values} - {location}
    if step.kind is StepKind.TRANSFER:
        if location == HOST:
            return "it copies a value to the host, which waits for it"
        return f"it copies a value from {'the host' if HOST in others else 'another GPU'}"
    if step.waits_for is not None and step.waits_for.kind is StepKind.TRANSFER:
        return "it waits for a value of another GPU"
    if location == HOST:
        return "it runs on the host"
    if step.prepared.name == PLAIN:
        return "its plain kernel allocates memory, and may read values on the host"
    if capturable is None:
        return f"its kernel {step.prepared.name!r} is not marked as capturable"
    if others:
        return "it reads or writes values that are stored elsewhere"
    return ""
