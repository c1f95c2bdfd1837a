"""Step nets whose shapes depend on data: their operators run one after another, on the arrays at hand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from netbuilder.engines.layouts import HOST, new_buffer
from netbuilder.ops.core.contexts import CompiledSubgraph, PlanContext, RunContext, Subgraph
from netbuilder.ops.core.instructions import Instruction, infer_outputs, located
from netbuilder.ops.core.operator import TensorSpec, spec_of
from netbuilder.ops.core.operator_event import OperatorEvent
from netbuilder.ops.core.registry import CPU, GPU, plain_kernel
from netbuilder.ops.recurrent.links import Recurrent
from netbuilder.ops.recurrent.loop import Views
from netbuilder.proto import NetError, OperatorError, ShapeError
from netbuilder.proto.errors import counted

__all__ = ["step_by_step"]

Array = Any
_Kernel = Callable[[RunContext, "list[Array]", int], "Sequence[Array]"]
"""Takes the context, the inputs and the step number (-1: once for all steps), and returns the results."""


def step_by_step(op: Recurrent, ctx: PlanContext, given: Views, once: Collection[Instruction], steps: int) -> None:
    """Run a step net over a sequence, without a plan.

    Args:
        op: holds the step net.
        ctx: the plan context of the operator.
        given: views of the inputs, of the step number, and of rows of inputs and states.
        once: operators that compute the same in all steps.
        steps: their number.

    Raises:
        NetError, OperatorError: an operator failed; the message names it and the step.
    """
    shared: dict[str, Array] = {}
    kernels = {operator: _kernel(op.step.name, operator, ctx) for operator in op.step.ops}
    for operator in op.step.ops:
        if operator in once:
            _run(op, operator, kernels[operator], ctx.run.inner(operator.op_def, 0), given, shared, -1)
    varying = [(operator, ctx.run.inner(operator.op_def, 0)) for operator in op.step.ops if operator not in once]
    for time in range(steps):
        made = dict(shared)
        for operator, context in varying:
            own = ctx.run.inner(operator.op_def, time) if operator.op.stateful else context  # random numbers differ
            _run(op, operator, kernels[operator], own, given, made, time)


def _run(
    op: Recurrent,
    operator: Instruction,
    kernel: _Kernel,
    run: RunContext,
    given: Views,
    made: dict[str, Array],
    time: int,
) -> None:
    """Run one operator; store its results in ``made``, and linked ones in their rows too."""
    arrays = given.at(max(time, 0))
    try:
        ins = [made[name] if name in made else arrays(name) for name in operator.inputs]
        results = kernel(run, ins, time)
        if len(results) < len(operator.outputs):
            raise OperatorError(
                f"its kernel returned {counted(len(results), 'result')} for {counted(len(operator.outputs), 'output')}"
            )
        for name, result in zip(operator.outputs, results):
            made[name] = _stored(name, result, arrays(name)) if name in given else _owned(result, ins)
        if run.on_operator is not None:
            run.on_operator(_event(op.step.name, operator, run, ins, made, time))
    except Exception as error:
        when = f", in step {time}" if time >= 0 else ""
        raise located(op.step.describe(operator) + when, error, in_subgraph=True) from error


def _event(
    net: str, operator: Instruction, run: RunContext, ins: Sequence[Array], made: Mapping[str, Array], time: int
) -> OperatorEvent:
    inputs = [(name, partial(run.host, array)) for name, array in zip(operator.inputs, ins)]
    outputs = [(name, partial(run.host, made[name])) for name in operator.outputs]
    return OperatorEvent(net, (operator,), inputs, outputs, time)


def _kernel(net: str, operator: Instruction, ctx: PlanContext) -> _Kernel:
    """Return the plain kernel of an operator or, if it has none, its prepared kernel."""
    kernel = plain_kernel(operator.op_def.type, GPU if ctx.run.is_gpu else CPU)
    if kernel is None:
        return _PreparedKernel(net, operator, ctx)
    return lambda run, ins, time: kernel(operator.op, run, *_placed(operator, run, ins))


class _PreparedKernel:
    """A prepared kernel, compiled again when the shapes of the inputs differ from those of the previous call.

    Args:
        net: the name of the step net.
        operator: one of its operators.
        ctx: the plan context of the operator that holds the step net.
    """

    def __init__(self, net: str, operator: Instruction, ctx: PlanContext) -> None:
        self._net, self._operator, self._ctx = net, operator, ctx
        self._location = (GPU, ctx.device_id) if ctx.run.is_gpu else HOST
        self._specs: list[TensorSpec] = []
        self._outputs: tuple[TensorSpec, ...] = ()
        self._subgraph: CompiledSubgraph | None = None

    def __call__(self, run: RunContext, ins: Sequence[Array], time: int) -> list[Array]:
        on_host = frozenset(name for name, x in zip(self._operator.inputs, ins) if isinstance(x, np.ndarray))
        ins = [np.ascontiguousarray(x) if isinstance(x, np.ndarray) else run.xp.ascontiguousarray(x) for x in ins]
        specs = [spec_of(x).plain for x in ins]
        if self._subgraph is None or specs != self._specs:
            self._subgraph, self._specs = self._compile(specs, on_host), specs
        outs = [new_buffer(spec, self._location) for spec in self._outputs]
        buffers = dict(zip((*self._operator.inputs, *self._operator.outputs), (*ins, *outs)))
        scratch = new_buffer(TensorSpec((self._subgraph.scratch,), np.dtype(np.uint8)), self._location)
        for call, _ in self._subgraph.bind(buffers.__getitem__, scratch, time):
            call()
        return outs

    def _compile(self, specs: Sequence[TensorSpec], on_host: frozenset[str]) -> CompiledSubgraph:
        outputs = infer_outputs(self._operator, specs)
        if outputs is None:
            raise NetError("it has no plain kernel, and its shapes depend on data")
        self._outputs = tuple(spec.plain for spec in outputs)
        names = (*self._operator.inputs, *self._operator.outputs)
        subgraph = Subgraph(
            self._net,
            [self._operator],
            dict(zip(names, (*specs, *self._outputs))),
            frozenset(self._operator.outputs),
            on_host=on_host if self._ctx.run.is_gpu else frozenset(),
        )
        return self._ctx.compile_subgraph(subgraph)


def _placed(operator: Instruction, run: RunContext, ins: list[Array]) -> list[Array]:
    """Return the inputs of an operator, moved to where its plain kernel reads them; step numbers are on the host."""
    if not run.is_gpu:
        return ins
    places = [operator.op.input_location(i) for i in range(len(ins))]
    at = {"host": run.host, "here": run.xp.asarray, "any": lambda array: array}
    return [at[place](array) for place, array in zip(places, ins)]


def _owned(result: Array, ins: list[Array]) -> Array:
    """Return a result, copied if it is a view: a view would change when its base array does."""
    view = getattr(result, "base", result) is not None and not any(result is array for array in ins)
    return result.copy() if view else result


def _stored(name: str, result: Array, rows: Array) -> Array:
    """Copy a result into the rows that it is linked to, and return them."""
    if rows.size != result.size or rows.dtype != result.dtype:
        raise ShapeError(
            f"{name!r} has shape {result.shape} and type {result.dtype}, and its link takes shape {rows.shape} and "
            f"type {rows.dtype}"
        )
    if result is not rows:
        rows[...] = result.reshape(rows.shape)
    return rows
