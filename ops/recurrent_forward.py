"""The forward pass over a sequence: where all lies, and the calls of all steps bound to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from netbuilder.ops.contexts import RunContext
from netbuilder.ops.operator import TensorSpec, require
from netbuilder.ops.recurrent_kernels import Kernels, StepBinder, Views, assign, fixed, rows, step_of
from netbuilder.ops.recurrent_links import Link, Recurrent
from netbuilder.ops.recurrent_one_by_one import step_by_step
from netbuilder.ops.recurrent_projections import Projection, projections
from netbuilder.ops.recurrent_steps import Arena, Calls, Slot, StepOperator
from netbuilder.ops.recurrent_table import KeptBlob, table_bytes

__all__ = ["BoundForward", "ForwardPlan", "local_slots"]

Array = Any

_STEP_NUMBER = TensorSpec((1,), np.dtype(np.int32))


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
        shown = self.op.shown(names)
        specs = []
        for name in names[:-1]:
            slot = self.states[shown[name].source]
            offset = shown[name].offset
            require(
                -slot.shape[0] <= offset < slot.shape[0] + (self.steps == 0),
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
        shown = op.shown(op.output_names)
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
