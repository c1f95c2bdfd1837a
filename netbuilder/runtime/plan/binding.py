"""Binding a step to the buffers of its values, and naming the operator at which a call failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from netbuilder.engines.gpu import copy_into
from netbuilder.engines.layouts import new_buffer
from netbuilder.ops.core.extensions import SplitKernel
from netbuilder.ops.core.instructions import PartFailed, describe, located
from netbuilder.runtime.plan.values import Step, Value

__all__ = ["after_clearing", "bind_step", "buffer_of", "needs_temporary", "step_failed"]

Call = Callable[[], object]


def buffer_of(value: Value) -> Any:
    """Return the buffer of a value: the one the plan assigned, or that of the blob an external value comes from."""
    if value.buffer is None and value.blob is not None:
        return value.blob.buffer
    return value.buffer


def needs_temporary(step: Step, j: int) -> bool:
    """Whether output ``j`` shares the buffer of an input that the kernel may not overwrite."""
    out = step.outputs[j]
    if out is None:
        return False
    return any(
        value is not None and value.buffer is out.buffer and (i, j) not in step.prepared.inplace
        for i, value in enumerate(step.inputs)
    )


def bind_step(
    step: Step, scratch: Any, instead: Mapping[int, Any], temporaries: dict[Value, Any] | None = None
) -> Call:
    """Bind a step to its buffers.

    Args:
        step: the step. Where an output shares the buffer of an input that the kernel may not overwrite, the kernel
            writes to a temporary, which is then copied.
        scratch: scratch memory for the kernel.
        instead: buffers to read in place of others, by the ids of those.
        temporaries: the temporaries, by value; missing ones are added.
    """
    ins = [None if value is None else buffer_of(value) for value in step.inputs]
    ins = [instead.get(id(buffer), buffer) for buffer in ins]
    outs: list[Any] = []
    copies: list[tuple[Any, Any]] = []
    temporaries = {} if temporaries is None else temporaries
    for j, value in enumerate(step.outputs):
        if value is None:
            outs.append(None)
        elif needs_temporary(step, j):
            assert value.spec is not None
            if value not in temporaries:
                temporaries[value] = new_buffer(value.spec, value.location)
            outs.append(temporaries[value])
            copies.append((value.buffer, outs[-1]))
        else:
            outs.append(value.buffer)
    call = step.prepared.bind(ins, outs, scratch)
    return _with_copies(call, copies, split=step.prepared.get(SplitKernel) is not None) if copies else call


def _with_copies(call: Call, copies: Sequence[tuple[Any, Any]], split: bool) -> Call:
    def run() -> None:
        call()
        for buffer, temporary in copies:
            copy_into(buffer, temporary)

    def begin() -> Call:
        return _with_copies(cast(Call, call()), copies, split=False)

    return begin if split else run


def after_clearing(buffers: Sequence[Any], call: Call) -> Call:
    """Return a call that fills buffers with zeros first: kernels read zeros in the padding, and may not write it."""

    def run() -> object:
        for buffer in buffers:
            buffer.fill(0)
        return call()

    return run


def step_failed(
    net_name: str, step: Step, error: BaseException, extra: str = "", *, in_subgraph: bool = False
) -> BaseException:
    """Return the error to raise for a failed step: it names the net, the operator, and the copy if the step is one.

    Args:
        net_name: the net.
        step: the step that failed.
        error: what its call raised.
        extra: text to add after the operator.
        in_subgraph: the net is a subgraph of an operator, which will add its own position.
    """
    part = step.node.first
    if isinstance(error, PartFailed) and error.__cause__ is not None:
        part, error = error.part, error.__cause__
    where = describe(net_name, part) + extra
    if step.moves:
        where += f" ({step.what})"
    return located(where, error, in_subgraph=in_subgraph)
