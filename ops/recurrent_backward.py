"""The backward pass over a sequence: where the gradients lie, and the calls of all steps bound to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from netbuilder.ops.contexts import RunContext
from netbuilder.ops.operator import TensorSpec, require
from netbuilder.ops.recurrent_forward import ForwardPlan
from netbuilder.ops.recurrent_kernels import Kernels, Views, assign, fixed, rows, step_of
from netbuilder.ops.recurrent_links import Link, Recurrent
from netbuilder.ops.recurrent_products import Product, products
from netbuilder.ops.recurrent_steps import Arena, Calls, Slot, StepOperator
from netbuilder.proto import NetError

__all__ = ["BackwardPlan", "BoundBackward", "further_sequences"]

Array = Any

_GRADIENT = "_grad"


@dataclass(frozen=True)
class Outgoing:
    """A gradient that the backward step net writes: of rows of a state, or of an input.

    Args:
        link: its link.
        state: the state's name, "" for an input.
        output: the number of the operator's output, -1 if none takes it.
        direct: it is written where it belongs; else it is added there.
    """

    link: Link
    state: str
    output: int
    direct: bool


def further_sequences(op: Recurrent, backward_links: Sequence[str] | None, params: Sequence[int]) -> list[int]:
    """Return the inputs behind the first, by number, to whose gradients a backward link leads."""
    linked = set(op.backward_link_external if backward_links is None else backward_links)
    others = {0, *params, *op.initial_recurrent_state_ids}
    inputs = enumerate(op.forward_inputs)
    return [i for i, name in inputs if i not in others and name + _GRADIENT in linked and name != op.forward_inputs[0]]


class BackwardPlan:
    """Where the values of a backward pass lie.

    Args:
        op: the gradient operator.
        specs: of its inputs.
        join: let gradients of weights be one product over all steps.

    Raises:
        ShapeError: they do not fit.
        NetError: a link or a blob is unknown.
    """

    def __init__(self, op: Recurrent, specs: Sequence[TensorSpec], *, join: bool = True) -> None:
        self.op = op
        self.given = len(op.outputs_with_grads)
        count = len(op.forward_inputs)
        self.forward = ForwardPlan(op, specs[self.given : self.given + count])
        self._check_given(specs)
        self.sequences = self._sequences()
        self.arena = Arena()
        self.states = {name: self.arena.add(slot.shape, slot.dtype) for name, slot in self.forward.states.items()}
        self.incoming = [link for link in op.backward_links if link.internal in op.backward.read]
        self.outgoing = [
            self._outgoing(link)
            for link in op.backward_links
            if link.internal in op.backward.written and link.internal not in op.backward.read
        ]
        self._check_reads()
        self.specs = self._step_specs()
        self.once = self._once()
        self.products = self._products() if join else []
        self.steps = self._steps()
        self.stacked: dict[str, Slot] = {}
        self.local = self._local()

    @property
    def shown(self) -> tuple[str, ...]:
        """The names of the forward operator's outputs."""
        return self.op.input_names[self.given + len(self.op.forward_inputs) :]

    def _check_given(self, specs: Sequence[TensorSpec]) -> None:
        made = self.forward.output_specs(self.shown)
        for number, spec in zip(self.op.outputs_with_grads, specs):
            require(
                0 <= number < len(made) - 1 and spec == made[number],
                self.op,
                f"the gradient of output {number} must have the shape and type of that output, got {spec.shape} "
                f"{spec.dtype}",
            )
        require(
            specs[-1].shape == made[-1].shape,
            self.op,
            f"step_workspaces must be what RecurrentNetwork has made of the same step net, {made[-1].shape[0]} bytes; "
            f"got {specs[-1].shape}",
        )

    def _sequences(self) -> dict[str, int]:
        """Return for each linked input the number of the output that is its gradient; -1: none is."""
        op = self.op
        found = {op.forward_inputs[0]: 0}
        place = 1 + len(op.param) + len(op.states)
        for number in further_sequences(op, op.backward_link_external, op.param):
            found[op.forward_inputs[number]] = place if place < op.n_out else -1
            place += 1
        return found

    def _outgoing(self, link: Link) -> Outgoing:
        name = self.meant(link)
        if name in self.states:
            fed = bool(self._fed(name))
            single = sum(other.external == link.external for other in self.op.backward_links) <= 2
            return Outgoing(link, name, -1, link.window == 1 and not fed and single)
        if name in self.sequences:
            covers = link.window == 1 and link.offset == 0 and self.forward.inputs[name].shape[0] == self.forward.steps
            single = sum(other.external == link.external for other in self.op.backward_links) == 1
            return Outgoing(link, "", self.sequences[name], covers and single)
        raise NetError(
            f"{self.op.type}: backward_link_external names {link.external!r}, which is the gradient of no state "
            f"({list(self.states)}) and of no linked input ({list(self.sequences)})"
        )

    def _fed(self, state: str) -> list[tuple[int, int]]:
        """Return (number of the given gradient, row from which it is that of the state)."""
        aliases = self.op.shown(self.shown)
        found = []
        for number, output in enumerate(self.op.outputs_with_grads):
            alias = aliases[self.shown[output]]
            if alias.source == state:
                found.append((number, alias.offset))
        return found

    def _check_reads(self) -> None:
        op = self.op
        known = {*op.linked, *op.forward_inputs, op.timestep, *op.step.written}
        known.update(link.internal for link in self.incoming)
        for name, step in op.backward.read.items():
            if name not in known:
                raise NetError(
                    f"{op.type}: {step.what} reads blob {name!r}, which is neither linked, nor of the step net, nor an "
                    "input, nor made by an earlier operator of the backward step net"
                )

    def _step_specs(self) -> dict[str, TensorSpec]:
        op, specs = self.op, dict(self.forward.specs)
        for link in self.incoming:
            specs[link.internal] = self._gradient_rows(link)
        for step in op.backward.ops:
            step.infer(specs, op.linked)
        for out in self.outgoing:
            want = self._gradient_rows(out.link)
            got = specs[out.link.internal]
            require(got == want, op, f"{out.link.internal!r} has shape {got.shape}, and its link takes {want.shape}")
        for number, name in zip(op.param, op.slopes_of_params):
            want = self.forward.inputs[op.forward_inputs[number]]
            require(name in specs, op, f"param_grads names {name!r}, which the backward step net does not write")
            got = specs[name]
            require(got == want, op, f"{name!r} has shape {got.shape}, and the parameter has {want.shape}")
        return specs

    def meant(self, link: Link) -> str:
        """Return the state or the input whose gradient a link leads to."""
        name = link.external.removesuffix(_GRADIENT)
        first = self.op.forward_inputs[0]
        others = [other.external for other in self.op.backward_links]
        if name not in self.forward.states and name not in self.forward.inputs and first + _GRADIENT not in others:
            return first  # the input has got another name since
        return name

    def _gradient_rows(self, link: Link) -> TensorSpec:
        name = self.meant(link)
        forward = Link(link.internal, name, link.offset, link.window)
        if name not in self.states and name not in self.forward.inputs:
            raise NetError(f"{self.op.type}: backward_link_external names {link.external!r}, which is unknown")
        return self.forward.link_spec(forward)

    def _once(self) -> list[Any]:
        op = self.op
        varying = {link.internal for link in (*op.links, *op.backward_links)} | {op.timestep, *op.slopes_of_params}
        fixed_names = [name for name in self.forward.inputs if name not in varying]
        return op.backward.invariant([*fixed_names, *self.forward.kept_once], varying)

    def _products(self) -> list[Product]:
        """Return what is multiplied behind the loop; what is computed again, to save memory, does not wait for that."""
        varying = {link.internal for link in (*self.op.links, *self.op.backward_links)} | {self.op.timestep}
        once = {name for step in self.once for name in step.outputs} | set(self.forward.kept_once)
        fixed_names = once.union(name for name in self.forward.inputs if name not in varying)
        ends = {out.link.internal for out in self.outgoing if out.direct and not out.state and out.output >= 0}
        found = products(self.op, self.specs, fixed_names, self.forward.steps, ends)
        incoming = {link.internal for link in self.incoming}
        made = self.op.backward.written
        return [p for p in found if p.dy not in incoming and p.x not in made and self._stacks(p.x)]

    def _steps(self) -> list[StepOperator]:
        """Return the operators of the loop: the backward step net's, slopes in the place of products."""
        later = {product.step: product.slope for product in self.products}
        steps = [later.get(step, step) for step in self.op.backward.ops if step not in self.once]
        for product in self.products:
            self.specs.update(product.specs)
        return [step for step in steps if step is not None]

    @property
    def operators(self) -> list[StepOperator]:
        """All that is run: once before the loop, in each step, once behind the loop."""
        return [*self.once, *self.steps, *(product.joined for product in self.products)]

    @property
    def fixed(self) -> set[str]:
        """The blobs that are the same in all steps."""
        zeros = {product.zeros for product in self.products if product.zeros is not None}
        linked = {link.internal for link in self.op.backward_links}
        return {*self.forward.fixed, *zeros} - linked

    def _stacks(self, name: str) -> bool:
        """Whether the values of a blob in all steps lie, or can lie, one behind the other."""
        link = self.op.linked.get(name)
        return link is None or link.window == 1

    def _local(self) -> dict[str, Slot]:
        """Return where that lies what the backward step net writes for itself, or what is added elsewhere."""
        direct = {out.link.internal for out in self.outgoing if out.direct and (out.state or out.output >= 0)}
        taken = direct | {link.internal for link in self.incoming}
        for name in {name for product in self.products for name in (product.x, product.dy)} - taken:
            if name in self.op.backward.written:
                spec = self.specs[name]
                self.stacked[name] = self.arena.add((self.forward.steps, *spec.shape), spec.dtype)
        taken.update(self.stacked, *(product.step.outputs[:2] for product in self.products))
        slots: dict[str, Slot] = {}
        for step in self.op.backward.ops:
            for name in step.outputs:
                if name not in slots and name not in taken:
                    slots[name] = self.arena.add(self.specs[name].shape, self.specs[name].dtype)
        return slots

    def output_specs(self) -> tuple[TensorSpec, ...]:
        """Return the specs of the gradients: of the first input, the parameters, the initial states, other inputs."""
        inputs = [self.forward.inputs[name].plain for name in self.op.forward_inputs]
        made = [inputs[0], *(inputs[number] for number in self.op.param)]
        made += [inputs[state.initial] for state in self.op.states]
        made += [self.forward.inputs[name].plain for name, number in self.sequences.items() if number > 0]
        return tuple(made)


class BoundBackward:
    """A backward pass bound to its arrays; see ``recurrent_forward.BoundForward``."""

    def __init__(
        self,
        plan: BackwardPlan,
        kernels: Kernels,
        run: RunContext,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        local: Array,
        memory_of_kernels: Array | None,
    ) -> None:
        self._plan, self._inputs, self._outputs = plan, inputs, outputs
        self.calls = Calls()
        op = plan.op
        self._states = {name: slot.of(local) for name, slot in plan.states.items()}
        self._local = {name: slot.of(local) for name, slot in plan.local.items()}
        self._run = run
        self._totals = dict(zip(op.slopes_of_params, outputs[1:]))
        waiting = {name for product in plan.products for name in product.step.outputs[:2]}
        self._sums = {name: total for name, total in self._totals.items() if name not in waiting}
        self._stacks = {name: slot.of(local) for name, slot in plan.stacked.items()}
        self._begin()
        views = self._views(local)
        for product in plan.products:
            self._add_views(views, product)
        binder = kernels.bind(run, views, memory_of_kernels, self.calls)
        for step in plan.once:
            binder.add(step, -1)
        for time in reversed(range(plan.forward.steps)):
            for step in plan.steps:
                binder.add(step, time)
            self._collect(time)
        for product in plan.products:
            binder.add(product.joined, -1)
        self._end()

    def _begin(self) -> None:
        """Let the gradients of the states begin with those of the outputs, and sums with 0."""
        plan, add = self._plan, self.calls.add
        for name, array in self._states.items():
            fed = plan._fed(name)
            if len(fed) == 1 and fed[0][1] >= 0:
                number, offset = fed[0]
                add(partial(assign, array[:offset], 0))
                add(partial(assign, array[offset:], self._inputs[number]))
                continue
            add(partial(assign, array, 0))
            for number, offset in fed:
                add(partial(_add, array[offset:], self._inputs[number]))
        written = {out.output for out in plan.outgoing if out.direct}
        for number in plan.sequences.values():
            if number >= 0 and number not in written:
                add(partial(assign, self._outputs[number], 0))

    def _views(self, local: Array) -> Views:
        plan = self._plan
        count = plan.given
        inputs = self._inputs[count : count + len(plan.op.forward_inputs)]
        views = plan.forward.views(inputs, self._inputs[-1])
        for name, array in self._local.items():
            views[name] = fixed(array)
        for name, array in self._stacks.items():
            views[name] = step_of(array)
        for link in plan.incoming:
            views[link.internal] = rows(self._target(link), link)
        for out in plan.outgoing:
            if out.direct and (out.state or out.output >= 0):
                views[out.link.internal] = rows(self._target(out.link), out.link)
        return views

    def _target(self, link: Link) -> Array:
        name = self._plan.meant(link)
        return self._states[name] if name in self._states else self._outputs[self._plan.sequences[name]]

    def _add_views(self, views: Views, product: Product) -> None:
        """Give a product its matrices over all steps, and its slope zeros."""
        weights = views.at([product.w], 0)[product.w]
        arrays = [self._all_steps(product.x), weights, self._all_steps(product.dy)]
        arrays += [self._totals[name] for name in product.step.outputs[:2]]
        arrays += [self._all_steps(name) for name in product.step.outputs[2 : len(product.joined.outputs)]]
        for name, array in zip((*product.joined.inputs, *product.joined.outputs), arrays):
            views[name] = fixed(array.reshape(product.specs[name].shape))
        if product.zeros is not None:
            spec = product.specs[product.zeros]
            views[product.zeros] = fixed(self._run.xp.zeros(spec.shape, spec.dtype))

    def _all_steps(self, name: str) -> Array:
        """Return the values of a blob in all steps, one behind the other."""
        plan = self._plan
        if name in self._stacks:
            return self._stacks[name]
        steps = plan.forward.steps
        for out in plan.outgoing:
            if out.link.internal == name:
                return self._target(out.link)[out.link.offset : out.link.offset + steps]
        memory = self._inputs[-1]
        link = plan.op.linked.get(name)
        if link is None:
            return plan.forward.kept[name].of(memory)
        slot = plan.forward.states.get(link.external)
        given = dict(zip(plan.op.forward_inputs, self._inputs[plan.given :]))
        whole = given[link.external] if slot is None else slot.of(memory)
        return whole[link.offset : link.offset + steps]

    def _collect(self, time: int) -> None:
        """Append what adds the gradients of a step to where they belong."""
        plan = self._plan
        for out in plan.outgoing:
            if not out.direct and (out.state or out.output >= 0):
                target = rows(self._target(out.link), out.link)(time)
                name = out.link.internal
                made = self._stacks[name][time] if name in self._stacks else self._local[name]
                self.calls.add(partial(_add, target, made))
        last = time == plan.forward.steps - 1
        for name, total in self._sums.items():
            self.calls.add(partial(assign if last else _add, total, self._local[name]))

    def _end(self) -> None:
        """Append what gives the initial states their gradients."""
        plan = self._plan
        for state, out in zip(plan.op.states, self._outputs[1 + len(plan.op.param) :]):
            first = self._states[state.name][: plan.forward.initial_rows[state.name]]
            if out.ndim == 1:
                self.calls.add(partial(_sum_over_samples, out, first))
            else:
                self.calls.add(partial(assign, out, first.reshape(out.shape)))


def _add(out: Array, value: Array) -> None:
    out += value


def _sum_over_samples(out: Array, first: Array) -> None:
    out[...] = first.sum(axis=(0, 1))
