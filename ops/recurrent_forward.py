"""The forward pass over a sequence: where all lies, and the calls of all steps bound to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from netbuilder.ops.contexts import PlanContext, Prepared, RunContext
from netbuilder.ops.engines.layouts import prepare_reorder
from netbuilder.ops.operator import TensorSpec, require
from netbuilder.ops.recurrent_links import Link, Recurrent
from netbuilder.ops.recurrent_one_by_one import step_by_step
from netbuilder.ops.recurrent_projections import Projection, projections
from netbuilder.ops.recurrent_steps import Arena, Calls, Slot, StepOperator, bind_operator
from netbuilder.ops.recurrent_table import KeptBlob, table_bytes
from netbuilder.ops.registry import CPU, GPU, plain_kernel

__all__ = [
    "BoundForward",
    "ForwardPlan",
    "Kernels",
    "StepBinder",
    "Views",
    "assign",
    "fixed",
    "local_slots",
    "rows",
    "step_of",
]

Array = Any
View = Callable[[int], Array]

_STEP_NUMBER = TensorSpec((1,), np.dtype(np.int32))


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


class ForwardPlan:
    """Where the values of a forward pass lie.

    ``memory`` is the output that the gradient reads: the states, then what the backward step net reads of each step.

    ``one_by_one``: the shapes of some blobs of the step net depend on data, so the operators are not bound to arrays;
    only what is linked and what comes from outside has a spec. Such a net has no backward pass.

    Args:
        op: the forward operator, or its gradient.
        specs: of the forward operator's inputs.
        keep: keep what the backward step net reads; without it, the states alone.
        project: let products of rows of an input be one over all steps; the memory is the same without.

    Raises:
        ShapeError: they do not fit.
    """

    def __init__(self, op: Recurrent, specs: Sequence[TensorSpec], *, keep: bool = True, project: bool = False) -> None:
        self.keep = keep
        self.op = op
        self.one_by_one = False
        self.inputs = dict(zip(op.forward_inputs, specs))
        first = specs[0]
        require(first.ndim >= 2, op, f"the first input must have steps and samples, got shape {first.shape}")
        self.steps, self.batch = first.shape[:2]
        require(self.steps > 0, op, f"a sequence must have at least one step, got shape {first.shape}")
        self.memory = Arena()
        self.states: dict[str, Slot] = {}
        self.initial_rows: dict[str, int] = {}
        for state in op.states:
            self._add_state(state.name, specs[state.initial])
        self.specs = self._step_specs()
        self._check_written()
        self.varying = {link.internal for link in op.links} | {op.timestep}
        self.once = op.step.invariant([name for name in self.inputs if name not in self.varying], self.varying)
        self.kept, self.kept_once = self._kept()
        self.table = self._table()
        self.table_slot = self.memory.add(self.table.shape, self.table.dtype)  # at the end, where it is looked for
        self.fixed = {name for name in self.inputs if name not in self.varying}
        self.projections = self._projections() if project and not self.one_by_one else []

    @property
    def operators(self) -> list[StepOperator]:
        """All that is run: once before the loop, over all steps before it, in each step."""
        return [*self.once, *(each.joined for each in self.projections), *self.loop]

    @property
    def loop(self) -> list[StepOperator]:
        """What is run in each step."""
        before = {*self.once, *(each.step for each in self.projections)}
        return [step for step in self.op.step.ops if step not in before]

    def _projections(self) -> list[Projection]:
        same = self.fixed.union(*(step.outputs for step in self.once))
        found = projections(self.op, self.specs, same, self.steps)
        for each in found:
            self.specs.update(each.specs)
        return found

    def _add_state(self, name: str, initial: TensorSpec) -> None:
        shape = initial.shape
        if initial.ndim == 1:
            shape = (1, self.batch, *shape)
        elif initial.ndim == 2:
            shape = (1, *shape)
        require(
            len(shape) >= 3 and shape[-2] == self.batch,
            self.op,
            f"state {name!r} begins with an input of shape {initial.shape}; it must have {self.batch} samples, as the "
            "first input has: (rows, samples, ...), (samples, width) or (width,)",
        )
        self.initial_rows[name] = shape[0]
        self.states[name] = self.memory.add((shape[0] + self.steps, *shape[1:]), initial.dtype)

    def external(self, name: str) -> TensorSpec:
        """Return the spec of what a link leads to."""
        slot = self.states.get(name)
        return self.inputs[name] if slot is None else TensorSpec(slot.shape, slot.dtype)

    def link_spec(self, link: Link) -> TensorSpec:
        """Return the spec of what a link gives in a step.

        Raises:
            ShapeError: it leads beyond the end.
        """
        whole = self.external(link.external)
        last = link.offset + self.steps - 1 + link.window
        require(
            whole.ndim > 0 and last <= whole.shape[0],
            self.op,
            f"the link of {link.internal!r} reaches row {last - 1} of {link.external!r}, of shape {whole.shape}, in "
            f"the last of {self.steps} steps: offset {link.offset} and window {link.window} are too large",
        )
        return whole.with_shape((link.window, *whole.shape[1:]))

    def _step_specs(self) -> dict[str, TensorSpec]:
        specs = {name: spec.plain for name, spec in self.inputs.items()}
        specs[self.op.timestep] = _STEP_NUMBER
        linked = {link.internal: self.link_spec(link) for link in self.op.links}
        specs.update(linked)
        outside = dict(specs)
        for step in self.op.step.ops:
            if (
                self.op.backward_step_net is None
                and step.depends_on_data(specs)
                and not linked.keys() >= {*step.outputs}
            ):
                self.one_by_one = True
                for each in self.op.step.ops:
                    each.require_arrays_alone()
                return outside
            step.infer(specs, linked)
        for name, spec in linked.items():
            require(
                specs[name] == spec,
                self.op,
                f"the step net makes {name!r} of shape {specs[name].shape} and type {specs[name].dtype}, and its link "
                f"takes shape {spec.shape} and type {spec.dtype}",
            )
        return specs

    def _check_written(self) -> None:
        """Refuse a state whose rows nobody writes."""
        for name in self.states:
            written = [k for k in self.op.links if k.external == name and k.internal in self.op.step.written]
            for link in written:
                require(
                    link.offset >= self.initial_rows[name],
                    self.op,
                    f"{link.internal!r}, which the step net writes, is linked to the rows of state {name!r} from "
                    f"t + {link.offset} on, and the first {self.initial_rows[name]} are its initial value",
                )

    def _kept(self) -> tuple[dict[str, Slot], dict[str, Slot]]:
        """Return where that lies of a step, or of all steps, what only the backward step net reads again."""
        op = self.op
        if op.backward_step_net is None or not self.keep:
            return {}, {}
        once = {name for step in self.once for name in step.outputs}
        wanted = [name for name in op.backward.read if name in op.step.written and name not in op.linked]
        kept, kept_once = {}, {}
        for name in wanted:
            spec = self.specs[name]
            if name in once:
                kept_once[name] = self.memory.add(spec.shape, spec.dtype)
            else:
                kept[name] = self.memory.add((self.steps, *spec.shape), spec.dtype)
        return kept, kept_once

    def _table(self) -> Array:
        """Return the table of what lies in ``memory``, as bytes."""
        found = [
            KeptBlob(link.internal, self.states[link.external], link.offset, link.window)
            for link in self.op.links
            if link.external in self.states
        ]
        found += [KeptBlob(name, slot) for name, slot in self.kept.items()]
        found += [KeptBlob(name, slot, -1) for name, slot in self.kept_once.items()]
        return table_bytes(self.steps, self.op.timestep, found)

    def output_specs(self, names: Sequence[str]) -> tuple[TensorSpec, ...]:
        """Return the specs of the forward operator's outputs."""
        shown = {alias.output: alias for state in self.op.states for alias in state.aliases}
        specs = []
        for name in names[:-1]:
            slot = self.states[shown[name].source]
            offset = shown[name].offset
            require(
                -slot.shape[0] <= offset < slot.shape[0],
                self.op,
                f"output {name!r} begins at row {offset} of state {shown[name].source!r}, which has {slot.shape[0]}",
            )
            specs.append(TensorSpec((len(range(slot.shape[0])[offset:]), *slot.shape[1:]), slot.dtype))
        return (*specs, TensorSpec((self.memory.nbytes,), np.dtype(np.uint8)))

    def views(self, inputs: Sequence[Array], memory: Array) -> Views:
        """Return the arrays that forward and backward step net share."""
        views = Views(self.op.timestep, self.steps)
        given = dict(zip(self.op.forward_inputs, inputs))
        for name, array in given.items():
            views[name] = fixed(array)
        for link in self.op.links:
            slot = self.states.get(link.external)
            views[link.internal] = rows(given[link.external] if slot is None else slot.of(memory), link)
        for name, slot in self.kept.items():
            views[name] = step_of(slot.of(memory))
        for name, slot in self.kept_once.items():
            views[name] = fixed(slot.of(memory))
        return views


class BoundForward:
    """A forward pass bound to its arrays.

    Args:
        plan: where all lies.
        kernels: which serve.
        run: what the operator was given.
        inputs, outputs: its arrays.
        local: memory for what nobody keeps, ``local_arena(plan)`` bytes.
        memory_of_kernels: ``kernels.nbytes`` bytes.
    """

    def __init__(
        self,
        plan: ForwardPlan,
        kernels: Kernels,
        run: RunContext,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        local: Array,
        memory_of_kernels: Array | None,
    ) -> None:
        op, memory = plan.op, outputs[-1]
        views = plan.views(inputs, memory)
        stacked = {each.result for each in plan.projections}
        arrays = {name: slot.of(local) for name, slot in local_slots(plan)[1].items()}
        for name, array in arrays.items():
            views[name] = step_of(array) if name in stacked else fixed(array)
        arrays.update((name, slot.of(memory)) for name, slot in plan.kept.items())
        arrays.update(zip(op.forward_inputs, inputs))
        for each in plan.projections:
            self._add_views(views, plan, each, arrays)
        self.calls = Calls()
        for state in op.states:
            first = plan.states[state.name].of(memory)[: plan.initial_rows[state.name]]
            self.calls.add(partial(assign, first, inputs[state.initial]))
        if plan.keep:
            self.calls.add(partial(assign, plan.table_slot.of(memory), run.xp.asarray(plan.table)))
        if plan.one_by_one:
            self.calls.add(partial(step_by_step, op, run, views, plan.once, plan.steps))
        else:
            self._bind_steps(plan, kernels.bind(run, views, memory_of_kernels, self.calls))
        shown = {alias.output: alias for state in op.states for alias in state.aliases}
        for name, out in zip(op.output_names[:-1], outputs):
            source = plan.states[shown[name].source].of(memory)
            self.calls.add(partial(assign, out, source[shown[name].offset :]))

    @staticmethod
    def _add_views(views: Views, plan: ForwardPlan, each: Projection, arrays: Mapping[str, Array]) -> None:
        """Give a projection its matrices over all steps."""
        link, names = plan.op.linked[each.step.inputs[0]], each.step.inputs[1:]
        given = views.at(names, 0)
        rows = arrays[link.external][link.offset : link.offset + plan.steps]
        matrices = [rows, *(given[name] for name in names), arrays[each.result]]
        for name, array in zip((*each.joined.inputs, *each.joined.outputs), matrices):
            views[name] = fixed(array.reshape(each.specs[name].shape))

    def _bind_steps(self, plan: ForwardPlan, binder: StepBinder) -> None:
        for step in (*plan.once, *(each.joined for each in plan.projections)):
            binder.add(step, -1)
        loop = plan.loop
        for time in range(plan.steps):
            for step in loop:
                binder.add(step, time)


def assign(out: Array, value: Array) -> None:
    """Copy ``value``, or what it broadcasts to, into ``out``."""
    out[...] = value


def local_slots(plan: ForwardPlan) -> tuple[Arena, dict[str, Slot]]:
    """Return where that lies what a forward pass does not keep."""
    arena, slots = Arena(), {}
    stacked = {each.result for each in plan.projections}
    for step in [] if plan.one_by_one else plan.op.step.ops:
        for name in step.outputs:
            if (
                name not in slots
                and name not in plan.kept
                and name not in plan.kept_once
                and name not in plan.op.linked
            ):
                shape = plan.specs[name].shape
                slots[name] = arena.add((plan.steps, *shape) if name in stacked else shape, plan.specs[name].dtype)
    return arena, slots
