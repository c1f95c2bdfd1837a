"""Steps whose shapes depend on data: the operators of a step net run one after another, on the arrays of the moment."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

from netbuilder.ops.contexts import RunContext
from netbuilder.ops.recurrent_links import Recurrent
from netbuilder.ops.recurrent_steps import StepOperator, placed
from netbuilder.ops.registry import CPU, GPU, plain_kernel
from netbuilder.proto import NetError, OperatorError, ShapeError

__all__ = ["step_by_step"]

Array = Any


class Given(Protocol):
    """The arrays that a step net shares with others, in each step."""

    def __contains__(self, name: str) -> bool: ...

    def at(self, names: Sequence[str], time: int) -> dict[str, Array]:
        """Return the arrays of blobs in a step."""


def step_by_step(op: Recurrent, run: RunContext, given: Given, once: Collection[StepOperator], steps: int) -> None:
    """Run a step net over a sequence, without a plan.

    Args:
        op: holds the step net.
        run: what the operator was given.
        given: inputs, the number of the step, and rows of sequences and states.
        once: operators that compute the same in all steps.
        steps: how many there are.

    Raises:
        OperatorError: an operator failed; the message says which in which step.
    """
    shared: dict[str, Array] = {}
    for step in op.step.ops:
        if step in once:
            _run_operator(step, run.inner(step.op_def, 0), given, shared, -1)
    varying = [(step, run.inner(step.op_def, 0)) for step in op.step.ops if step not in once]
    for time in range(steps):
        made = dict(shared)
        for step, context in varying:
            own = run.inner(step.op_def, time) if step.op.stateful else context  # random numbers differ
            _run_operator(step, own, given, made, time)


def _run_operator(step: StepOperator, run: RunContext, given: Given, made: dict[str, Array], time: int) -> None:
    """Run one operator; what it writes goes into ``made``, and where it is linked into the rows that it stands for."""
    kernel = plain_kernel(step.op_def.type, GPU if run.is_gpu else CPU)
    if kernel is None:
        raise NetError(f"{step.what}: no kernel serves it")
    try:
        ins = [made[name] if name in made else given.at([name], max(time, 0))[name] for name in step.inputs]
        results = kernel(step.op, run, *placed(step, run, ins))
        if len(results) < len(step.outputs):
            raise OperatorError(f"its kernel returned {len(results)} results for {len(step.outputs)} outputs")
        for name, result in zip(step.outputs, results):
            made[name] = _kept(name, result, ins, given, max(time, 0))
    except Exception as error:
        when = f" in step {time}" if time >= 0 else ""
        raise OperatorError(f"{step.what}{when}: {error}") from error


def _kept(name: str, result: Array, ins: Sequence[Array], given: Given, time: int) -> Array:
    if name not in given:
        view = getattr(result, "base", result) is not None and not any(result is array for array in ins)
        return result.copy() if view else result  # a view would change with what it shows
    rows = given.at([name], time)[name]
    if rows.size != result.size or rows.dtype != result.dtype:
        raise ShapeError(
            f"{name!r} has shape {result.shape} and type {result.dtype}, and its link takes shape {rows.shape} and "
            f"type {rows.dtype}"
        )
    if result is not rows:
        rows[...] = result.reshape(rows.shape)
    return rows
