"""Calls of a plan that tell an observer, after each operator, what it has read and written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

from netbuilder.engines.gpu import to_host
from netbuilder.engines.layouts import Location, convert
from netbuilder.ops.core.extensions import SplitKernel
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.ops.core.operator_event import OnOperator, OperatorEvent, ReadValue
from netbuilder.runtime.plan.binding import buffer_of
from netbuilder.runtime.plan.values import Step, StepKind, Value
from netbuilder.runtime.values.blob import EdgeContext

__all__ = ["event_of", "observed_call"]

Call = Callable[[], object]


def observed_call(net: str, step: Step, call: Call, on_operator: OnOperator, number: int = -1) -> Call:
    """Return a call that runs ``call`` and then calls ``on_operator``; copies that the plan inserted are unchanged.

    Args:
        net: name of the net.
        step: the step, whose values have their buffers.
        call: its call.
        on_operator: the observer.
        number: the step of a recurrent net, or -1.
    """
    split = step.prepared.get(SplitKernel) is not None
    begins = split and step.kind is not StepKind.WAIT  # its outputs are written when the wait is over
    if step.moves or begins:
        return call
    event = event_of(net, step, number)

    def run() -> None:
        call()
        on_operator(event)

    return run


def event_of(net: str, step: Step, number: int = -1) -> OperatorEvent:
    """Return the event of a step; its values are read from the buffers that the step has now."""
    outputs = list(_readers(step.outputs))
    written = {id(buffer_of(value)) for value in step.outputs if value is not None}
    kept = (value for value in step.inputs if value is not None and id(buffer_of(value)) not in written)
    again = step.kind is StepKind.RECOMPUTE
    return OperatorEvent(net, tuple(step.node.parts), list(_readers(kept)), outputs, number, again)


def _readers(values: Iterable[Value | None]) -> Iterable[tuple[str, ReadValue]]:
    for value in values:
        if value is not None and value.spec is not None and value.spec.dtype != STRING:
            yield value.name, partial(_plain, buffer_of(value), value.spec, value.location)


def _plain(buffer: Any, spec: TensorSpec, location: Location) -> np.ndarray[Any, Any]:
    if spec.layout is not None:
        buffer = convert(buffer, spec, spec.plain, EdgeContext(), location=location)
    return to_host(buffer)
