"""The kernels of a step net's operators, the arrays of its blobs in each step, and calls that bring both together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.ops.contexts import PlanContext, Prepared, RunContext
from netbuilder.ops.engines.layouts import prepare_reorder
from netbuilder.ops.operator import TensorSpec
from netbuilder.ops.recurrent_links import Link
from netbuilder.ops.recurrent_steps import Arena, Calls, Slot, StepOperator, bind_operator
from netbuilder.ops.registry import CPU, GPU, plain_kernel

__all__ = ["Kernels", "StepBinder", "Views", "assign", "fixed", "rows", "step_of"]

Array = Any
View = Callable[[int], Array]


def rows(array: Array, link: Link) -> View:
    """Return the function that gives a link's rows in a step."""
    return lambda time: array[time + link.offset : time + link.offset + link.window]


def step_of(array: Array) -> View:
    """Return the function that gives a step's part of an array with one such part a step."""
    return lambda time: array[time, ...]


def fixed(array: Array) -> View:
    """Return the function that gives the same array in all steps."""
    return lambda time: array


class Kernels:
    """The kernels of a step net's operators over plain buffers.

    A kernel may want what is the same in all steps in a layout of its own: it is copied once a run.

    Args:
        steps: the operators.
        specs: of all blobs.
        fixed: blobs that are the same in all steps.
        ctx: the plan's; None: plain kernels alone serve.
    """

    def __init__(
        self,
        steps: Sequence[StepOperator],
        specs: Mapping[str, TensorSpec],
        fixed: Collection[str],
        ctx: PlanContext | None,
    ) -> None:
        self.prepared: dict[StepOperator, Prepared] = {}
        self.copies: dict[tuple[str, Any], tuple[Prepared, Slot]] = {}
        self._arena = Arena()
        scratch = 0
        for step in steps:
            if ctx is None or step.op.stateful:  # bound once, random numbers would be those of one step
                continue
            if any(name not in specs for name in (*step.inputs, *step.outputs)):
                continue
            ins, outs = [specs[name] for name in step.inputs], [specs[name] for name in step.outputs]
            if not step.op.static_for(*ins):
                continue
            same = [i for i, name in enumerate(step.inputs) if name in fixed]
            prepared = ctx.held_kernel(step.op_def, step.op, ins, outs, same)
            if prepared is None or not _in_place(step, prepared):
                continue
            self.prepared[step] = prepared
            scratch = max(scratch, prepared.scratch)
            for name, spec in zip(step.inputs, prepared.inputs):
                if spec is not None and spec.layout is not None and (name, spec.layout) not in self.copies:
                    copy = prepare_reorder(ctx, spec.plain, spec)
                    scratch = max(scratch, copy.scratch)
                    self.copies[name, spec.layout] = copy, self._arena.add((spec.nbytes,), np.uint8)
        self.nbytes = self._arena.nbytes + scratch  # of memory that the kernels need
        with_library = any(prepared.name.startswith("onednn") for prepared in self.prepared.values())
        self.name = "onednn steps" if with_library else "steps"

    def bind(self, run: RunContext, views: Views, memory: Array | None, calls: Calls) -> StepBinder:
        """Append the calls that copy, and return what appends those of operators.

        Args:
            run: what the operator that holds the net was given.
            views: the arrays.
            memory: ``nbytes`` bytes.
            calls: where the calls go.
        """
        copies: dict[tuple[str, Any], Array] = {}
        scratch = None if memory is None else memory[self._arena.nbytes :]
        for (name, layout), (copy, slot) in self.copies.items():
            target = copies[name, layout] = slot.of(memory)
            calls.add(copy.bind([views.at([name], 0)[name]], [target], scratch))
        return StepBinder(run, self, views, copies, scratch, calls)


def _in_place(step: StepOperator, prepared: Prepared) -> bool:
    """Whether a kernel works in place where the operator does."""
    return all(
        (i, j) in prepared.inplace
        for j, out in enumerate(step.outputs)
        for i, name in enumerate(step.inputs)
        if name == out
    )


class Views:
    """Gives the arrays of a step net's blobs in each step."""

    def __init__(self, timestep: str, steps: int) -> None:
        self._of: dict[str, View] = {}
        numbers = np.arange(steps, dtype=np.int32).reshape(steps, 1)
        self._of[timestep] = lambda time: numbers[time]

    def __setitem__(self, name: str, view: View) -> None:
        self._of[name] = view

    def __contains__(self, name: str) -> bool:
        return name in self._of

    def at(self, names: Sequence[str], time: int) -> dict[str, Array]:
        return {name: self._of[name](time) for name in names}


class StepBinder:
    """Binds operators of a step net to their arrays, and appends the calls; made by ``Kernels.bind``."""

    def __init__(
        self,
        run: RunContext,
        kernels: Kernels,
        views: Views,
        copies: Mapping[tuple[str, Any], Array],
        scratch: Array | None,
        calls: Calls,
    ) -> None:
        self._run, self._kernels, self._views, self._copies = run, kernels, views, copies
        self._scratch, self._calls = scratch, calls
        self._device = GPU if run.is_gpu else CPU
        self._contexts: dict[StepOperator, RunContext] = {}

    def add(self, step: StepOperator, time: int) -> None:
        """Append the call of an operator in a step; in step -1, one that is the same in all."""
        prepared = self._kernels.prepared.get(step)
        values = self._views.at((*step.inputs, *step.outputs), max(time, 0))
        ins, outs = [values[name] for name in step.inputs], [values[name] for name in step.outputs]
        if prepared is not None:
            for i, (name, spec) in enumerate(zip(step.inputs, prepared.inputs)):
                if spec is not None and spec.layout is not None:
                    ins[i] = self._copies[name, spec.layout]
        kernel = plain_kernel(step.op_def.type, self._device)
        context = self._context(step, time)
        self._calls.add(bind_operator(step, context, ins, outs, prepared, kernel, self._scratch), step, time)

    def _context(self, step: StepOperator, time: int) -> RunContext:
        if step.op.stateful:  # random numbers differ from step to step
            return self._run.inner(step.op_def, time)
        if step not in self._contexts:
            self._contexts[step] = self._run.inner(step.op_def, 0)
        return self._contexts[step]


def assign(out: Array, value: Array) -> None:
    """Copy ``value``, or what it broadcasts to, into ``out``."""
    out[...] = value
