"""Steps bound to the buffers of their values, and the errors of their calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from netbuilder.ops.core.instructions import PartFailed, describe, located
from netbuilder.ops.engines.gpu import copy_into
from netbuilder.ops.engines.layouts import new_buffer
from netbuilder.runtime.plan.values import Step, Value

__all__ = ["bind_step", "buffer_of", "needs_detour", "step_failed"]

Call = Callable[[], object]


def buffer_of(value: Value) -> Any:
    """Return the buffer of a value: the plan's, or that of the blob which held it before."""
    if value.buffer is None and value.blob is not None:
        return value.blob.buffer
    return value.buffer


def needs_detour(step: Step, j: int) -> bool:
    """Whether output ``j`` has the buffer of an input that its kernel may not overwrite."""
    out = step.outputs[j]
    if out is None:
        return False
    return any(
        value is not None and value.buffer is out.buffer and (i, j) not in step.prepared.inplace
        for i, value in enumerate(step.inputs)
    )


def bind_step(step: Step, scratch: Any, instead: Mapping[int, Any], detours: dict[int, Any] | None = None) -> Call:
    """Bind a step to its buffers.

    Args:
        step: the step; a kernel that may not overwrite what it reads writes elsewhere, and is followed by a copy.
        scratch: memory for its kernel.
        instead: what to read in place of some of the buffers, by their ids.
        detours: where to find, or keep, the buffers in which such kernels write, by the ids of the values.
    """
    ins = [None if value is None else buffer_of(value) for value in step.inputs]
    ins = [instead.get(id(buffer), buffer) for buffer in ins]
    outs: list[Any] = []
    copied: list[tuple[Any, Any]] = []
    detours = {} if detours is None else detours
    for j, value in enumerate(step.outputs):
        if value is None:
            outs.append(None)
        elif needs_detour(step, j):
            assert value.spec is not None
            if id(value) not in detours:
                detours[id(value)] = new_buffer(value.spec, value.location)
            outs.append(detours[id(value)])
            copied.append((value.buffer, outs[-1]))
        else:
            outs.append(value.buffer)
    call = step.prepared.bind(ins, outs, scratch)
    return _with_copies(call, copied, step.prepared.split) if copied else call


def _with_copies(call: Call, copied: Sequence[tuple[Any, Any]], split: bool) -> Call:
    def run() -> None:
        call()
        for buffer, aside in copied:
            copy_into(buffer, aside)

    def begin() -> Call:
        return _with_copies(cast(Call, call()), copied, split=False)

    return begin if split else run


def step_failed(
    net_name: str, step: Step, error: BaseException, extra: str = "", *, in_subgraph: bool = False
) -> BaseException:
    """Return the error that says where a step failed: in which net, at which operator, or copy for it.

    Args:
        net_name: the net.
        step: what failed.
        error: how.
        extra: what is to be said besides, after the operator.
        in_subgraph: the net is held by an operator, whose own place is still to be added.
    """
    part = step.node.first
    if isinstance(error, PartFailed) and error.__cause__ is not None:
        part, error = error.part, error.__cause__
    where = describe(net_name, part) + extra
    if step.moves:
        where += f" ({step.what})"
    return located(where, error, in_subgraph=in_subgraph)
