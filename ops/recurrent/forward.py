"""The forward pass over a sequence: where its values are stored, and the calls of all steps bound to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from netbuilder.engines.gpu import gpu_of, here
from netbuilder.ops.core.contexts import PlanContext
from netbuilder.ops.core.instructions import Instruction
from netbuilder.ops.core.operator import TensorSpec, require
from netbuilder.ops.recurrent.arena import Arena, Slot
from netbuilder.ops.recurrent.links import Link, Recurrent
from netbuilder.ops.recurrent.loop import BoundLoop, Loop, LoopOperators, Stack, Views, assign, fixed, rows, step_of
from netbuilder.ops.recurrent.one_by_one import step_by_step
from netbuilder.ops.recurrent.projections import Projection, projections
from netbuilder.ops.recurrent.table import KeptBlob, table_bytes
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["ForwardPlan", "Stored", "bind_forward"]

Array = Any

_STEP_NUMBER = TensorSpec((1,), np.dtype(np.int32))


@dataclass(frozen=True)
class Stored:
    """The arrays in which a forward pass stores its values.

    Args:
        states: the rows of each state.
        kept, kept_once: what only the backward step net reads again, by step and for all steps.
        local: values that are not kept although several steps read them.
        table: for the table of the contents; None: there is none.
    """

    states: Mapping[str, Stack]
    kept: Mapping[str, Stack]
    kept_once: Mapping[str, Array]
    local: Mapping[str, Array]
    table: Array | None = None


class ForwardPlan:
    """Where the values of a forward pass are stored.

    ``memory`` is the output that the gradient reads: the states, then what the backward step net reads of each step.
    ``local`` are values that are not kept although several steps read them; ``arena`` has their locations.
    ``one_by_one``: the shapes of some blobs of the step net depend on data, so the operators are not bound to arrays;
    only linked blobs and external inputs have a spec. Such a net has no backward pass.

    Args:
        op: the forward operator, or its gradient.
        specs: of the forward operator's inputs.
        keep: keep what the backward step net reads, not only the states.
        project: compute products with rows of an input as one product over all steps; ``memory`` does not change.

    Raises:
        ShapeError: the inputs do not fit.
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
        self.table_slot = self.memory.add(self.table.shape, self.table.dtype)  # at the end, where readers expect it
        self.fixed = {name for name in self.inputs if name not in self.varying}
        self.projections = self._projections() if project and not self.one_by_one else []
        self.arena = Arena()
        self.local = {} if self.one_by_one else self._local()

    @property
    def body(self) -> list[Instruction]:
        """The operators that run in each step."""
        before = {*self.once, *(each.operator for each in self.projections)}
        return [operator for operator in self.op.step.ops if operator not in before]

    @property
    def operators(self) -> LoopOperators:
        """All operators that run."""
        joined = [each.joined for each in self.projections]
        stored = {*self.op.linked, *self.kept, *self.kept_once, *self.local}
        stored.update(name for operator in joined for name in operator.outputs)
        return LoopOperators(
            self.op.step.name, [*self.once, *joined], self.body, [], self.specs, frozenset(stored),
            frozenset(self.fixed), self.op.timestep,
        )  # fmt: skip

    def _local(self) -> dict[str, Slot]:
        """Return the locations of values that are computed before the loop and not kept after it."""
        slots = {}
        for operator in self.once:
            for name in operator.outputs:
                if name not in self.kept_once:
                    slots[name] = self.arena.add(self.specs[name].shape, self.specs[name].dtype)
        for each in self.projections:
            if each.result not in self.kept:
                spec = self.specs[each.result]
                slots[each.result] = self.arena.add((self.steps, *spec.shape), spec.dtype)
        return slots

    def _projections(self) -> list[Projection]:
        same = self.fixed.union(*(operator.outputs for operator in self.once))
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
        """Return the spec of the input or the state to which a link refers."""
        slot = self.states.get(name)
        return self.inputs[name] if slot is None else TensorSpec(slot.shape, slot.dtype)

    def link_spec(self, link: Link) -> TensorSpec:
        """Return the spec of a link's rows in a step.

        Raises:
            ShapeError: the rows exceed the input or the state.
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
        for operator in self.op.step.ops:
            if (
                self.op.backward_step_net is None
                and not operator.op.static_for(*(specs[name] for name in operator.inputs))
                and not linked.keys() >= {*operator.outputs}
            ):
                self.one_by_one = True
                self.op.step.check_one_by_one()
                return outside
            self.op.step.infer(operator, specs, linked)
        for name, spec in linked.items():
            require(
                specs[name] == spec,
                self.op,
                f"the step net makes {name!r} of shape {specs[name].shape} and type {specs[name].dtype}, and its link "
                f"takes shape {spec.shape} and type {spec.dtype}",
            )
        return specs

    def _check_written(self) -> None:
        """Check that the step net does not write the initial rows of a state."""
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
        """Return the locations, by step and for all steps, of values that only the backward step net reads again."""
        op = self.op
        if op.backward_step_net is None or not self.keep:
            return {}, {}
        once = {name for operator in self.once for name in operator.outputs}
        again = [name for name in op.backward.read if name in op.step.written and name not in op.linked]
        kept, kept_once = {}, {}
        for name in again:
            spec = self.specs[name]
            if name in once:
                kept_once[name] = self.memory.add(spec.shape, spec.dtype)
            else:
                kept[name] = self.memory.add((self.steps, *spec.shape), spec.dtype)
        return kept, kept_once

    def _table(self) -> Array:
        """Return the table of the contents of ``memory``, as bytes."""
        found = [
            KeptBlob(link.internal, self.states[link.external], link.offset, link.window)
            for link in self.op.links
            if link.external in self.states
        ]
        found += [KeptBlob(name, slot) for name, slot in self.kept.items()]
        found += [KeptBlob(name, slot, -1) for name, slot in self.kept_once.items()]
        return table_bytes(self.steps, self.op.timestep, found)

    def flops(self) -> int:
        """Return the floating-point operations of all steps; 0 if the shapes of some blobs depend on data."""
        return 0 if self.one_by_one else self.op.step.flops(self.specs, self.once, self.steps)

    def output_specs(self, names: Sequence[str]) -> tuple[TensorSpec, ...]:
        """Return the specs of the forward operator's outputs."""
        aliases = self.op.output_aliases(names)
        specs = []
        for name in names[:-1]:
            slot = self.states[aliases[name].source]
            offset = aliases[name].offset
            require(
                -slot.shape[0] <= offset < slot.shape[0] + (self.steps == 0),
                self.op,
                f"output {name!r} begins at row {offset} of state {aliases[name].source!r}, which has {slot.shape[0]}",
            )
            specs.append(TensorSpec((len(range(slot.shape[0])[offset:]), *slot.shape[1:]), slot.dtype))
        return (*specs, TensorSpec((self.memory.nbytes,), np.dtype(np.uint8)))

    def stored(self, memory: Array, local: Array | None) -> Stored:
        """Return the arrays in ``memory`` and, for a forward pass, in ``local``, memory of ``arena.nbytes`` bytes."""
        return Stored(
            {name: Stack(slot.of(memory), self.steps) for name, slot in self.states.items()},
            {name: Stack(slot.of(memory), self.steps) for name, slot in self.kept.items()},
            {name: slot.of(memory) for name, slot in self.kept_once.items()},
            {} if local is None else {name: slot.of(local) for name, slot in self.local.items()},
            self.table_slot.of(memory) if self.keep else None,
        )

    def views(self, inputs: Sequence[Array], stored: Stored) -> Views:
        """Return the views of blobs that the step net and the backward step net share."""
        views = Views(self.op.timestep, self.steps)
        given = dict(zip(self.op.forward_inputs, inputs))
        for name, array in given.items():
            views[name] = fixed(array)
        for link in self.op.links:
            state = stored.states.get(link.external)
            views[link.internal] = rows(given[link.external], link) if state is None else state.rows(link)
        for name, stack in stored.kept.items():
            views[name] = stack.step_of()
        for name, array in stored.kept_once.items():
            views[name] = fixed(array)
        return views

    def step_views(self, inputs: Sequence[Array], stored: Stored) -> Views:
        """Return the views of all blobs of the step net that are stored."""
        views = self.views(inputs, stored)
        stacked = {each.result for each in self.projections}
        for name, array in stored.local.items():
            views[name] = step_of(array) if name in stacked else fixed(array)
        return views


def bind_forward(
    plan: ForwardPlan,
    loop: Loop | None,
    ctx: PlanContext,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    stored: Stored,
    scratch: Array | None,
) -> BoundLoop:
    """Bind a forward pass to its arrays.

    Args:
        plan: where its values are stored.
        loop: its operators, compiled; None if they are run one by one.
        ctx: the plan context of the operator.
        inputs: the operator's arrays.
        outputs: those of its outputs but the last.
        stored: the arrays of its values, with all steps of the states and of what is computed before the loop.
        scratch: ``loop.scratch`` bytes.
    """
    op = plan.op
    views = plan.step_views(inputs, stored)
    arrays = {**stored.local, **{name: stack.array for name, stack in stored.kept.items()}}
    arrays.update(zip(op.forward_inputs, inputs))
    for each in plan.projections:
        _add_matrices(views, plan, each, arrays)
    bound = BoundLoop(loop, views, scratch)
    for state in op.states:
        first = stored.states[state.name].array[: plan.initial_rows[state.name]]
        bound.add(partial(assign, first, inputs[state.initial]))
    if stored.table is not None:
        number = gpu_of(stored.table)
        table = plan.table if number is None else here(plan.table, number)  # copied once, since a graph cannot
        bound.add(partial(assign, stored.table, table))
    if loop is None:
        bound.add(partial(step_by_step, op, ctx, views, plan.once, plan.steps))
    bound.before()
    for time in range(plan.steps):
        bound.step(time)
    aliases = op.output_aliases(op.output_names)
    for name, out in zip(op.output_names[:-1], outputs):
        source = stored.states[aliases[name].source].array
        bound.add(partial(assign, out, source[aliases[name].offset :]))
    return bound


def _add_matrices(views: Views, plan: ForwardPlan, each: Projection, arrays: Mapping[str, Array]) -> None:
    """Add the views of a projection's matrices over all steps."""
    link, given = plan.op.linked[each.operator.inputs[0]], views.at(0)
    rows_of_all = arrays[link.external][link.offset : link.offset + plan.steps]
    matrices = [rows_of_all, *(given(name) for name in each.operator.inputs[1:]), arrays[each.result]]
    for name, array in zip((*each.joined.inputs, *each.joined.outputs), matrices):
        views[name] = fixed(array.reshape(each.specs[name].shape))
