"""The backward pass over a sequence: where the gradients are stored, and the calls of all steps bound to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from netbuilder.ops.core.instructions import Instruction
from netbuilder.ops.core.operator import TensorSpec, require
from netbuilder.ops.recurrent.arena import Arena, Slot
from netbuilder.ops.recurrent.forward import ForwardPlan, Stored
from netbuilder.ops.recurrent.links import Link, Recurrent
from netbuilder.ops.recurrent.loop import BoundLoop, Loop, LoopOperators, Views, assign, fixed, rows, step_of
from netbuilder.ops.recurrent.products import Product, products
from netbuilder.proto import NetError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["BackwardPlan", "BoundBackward", "further_sequences"]

Array = Any

_GRADIENT = "_grad"


@dataclass(frozen=True)
class Outgoing:
    """A gradient that the backward step net writes: of rows of a state, or of an input.

    Args:
        link: its link.
        state: the state's name, "" for an input.
        output: the index of the operator's output, -1 if there is none.
        direct: whether the step net writes into the target; otherwise the gradient is added to it.
    """

    link: Link
    state: str
    output: int
    direct: bool

    @property
    def used(self) -> bool:
        """Whether it has a target: the gradient of a state, or an output of the operator."""
        return bool(self.state) or self.output >= 0


def further_sequences(op: Recurrent, backward_links: Sequence[str] | None = None) -> list[int]:
    """Return the indices of the inputs after the first to whose gradients a backward link refers."""
    linked = set(op.backward_link_external if backward_links is None else backward_links)
    names = dict.fromkeys(op.forward_inputs[1:])
    return [
        op.forward_inputs.index(name) for name in names if name + _GRADIENT in linked and name != op.forward_inputs[0]
    ]


class BackwardPlan:
    """Where the values of a backward pass are stored.

    Args:
        op: the gradient operator.
        specs: of its inputs.
        join: compute gradients of weights as one product over all steps.

    Raises:
        ShapeError: the inputs do not fit.
        NetError: a link or a blob is unknown.
    """

    def __init__(self, op: Recurrent, specs: Sequence[TensorSpec], *, join: bool = True) -> None:
        self.op = op
        self.n_dy = len(op.outputs_with_grads)
        count = len(op.forward_inputs)
        self.forward = ForwardPlan(op, specs[self.n_dy : self.n_dy + count])
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
        self.body = self._body()
        self.sums = set(op.param_gradients).difference(*(p.operator.outputs[:2] for p in self.products))
        self.stacked = self._stacked()
        self.local = self._local()

    @property
    def forward_outputs(self) -> tuple[str, ...]:
        """The names of the forward operator's outputs."""
        return self.op.input_names[self.n_dy + len(self.op.forward_inputs) :]

    def _check_given(self, specs: Sequence[TensorSpec]) -> None:
        made = self.forward.output_specs(self.forward_outputs)
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
            "step_workspaces must be the last output of a RecurrentNetwork of the same step net, "
            f"{made[-1].shape[0]} bytes; got {specs[-1].shape}",
        )

    def _sequences(self) -> dict[str, int]:
        """Return for each linked input the index of the output that is its gradient, -1 if there is none."""
        op = self.op
        found = {op.forward_inputs[0]: 0}
        index = 1 + len(op.param) + len(op.states)
        for number in further_sequences(op):
            found[op.forward_inputs[number]] = index if index < op.n_out else -1
            index += 1
        return found

    def _outgoing(self, link: Link) -> Outgoing:
        name = self.target_name(link)
        if name in self.states:
            has_dy = bool(self.output_gradients(name))
            single = sum(other.external == link.external for other in self.op.backward_links) <= 2
            return Outgoing(link, name, -1, link.window == 1 and not has_dy and single)
        if name in self.sequences:
            covers = link.window == 1 and link.offset == 0 and self.forward.inputs[name].shape[0] == self.forward.steps
            single = sum(other.external == link.external for other in self.op.backward_links) == 1
            return Outgoing(link, "", self.sequences[name], covers and single)
        raise NetError(
            f"{self.op.type}: backward_link_external names {link.external!r}, which is the gradient of no state "
            f"({list(self.states)}) and of no linked input ({list(self.sequences)})"
        )

    def output_gradients(self, state: str) -> list[tuple[int, int]]:
        """Return (index of a given gradient, first row) for each gradient of an output that is an alias of a state."""
        aliases = self.op.output_aliases(self.forward_outputs)
        found = []
        for number, output in enumerate(self.op.outputs_with_grads):
            alias = aliases[self.forward_outputs[output]]
            if alias.source == state:
                found.append((number, alias.offset))
        return found

    def _check_reads(self) -> None:
        op = self.op
        known = {*op.linked, *op.forward_inputs, op.timestep, *op.step.written}
        known.update(link.internal for link in self.incoming)
        for name, operator in op.backward.read.items():
            if name not in known:
                raise NetError(
                    f"{op.type}: {op.backward.describe(operator)} reads blob {name!r}, which is neither linked, nor of "
                    "the step net, nor an input, nor made by an earlier operator of the backward step net"
                )

    def _step_specs(self) -> dict[str, TensorSpec]:
        op, specs = self.op, dict(self.forward.specs)
        for link in self.incoming:
            specs[link.internal] = self._gradient_rows(link)
        for operator in op.backward.ops:
            op.backward.infer(operator, specs, op.linked)
        for out in self.outgoing:
            want = self._gradient_rows(out.link)
            got = specs[out.link.internal]
            require(got == want, op, f"{out.link.internal!r} has shape {got.shape}, and its link takes {want.shape}")
        for number, name in zip(op.param, op.param_gradients):
            want = self.forward.inputs[op.forward_inputs[number]]
            require(name in specs, op, f"param_grads names {name!r}, which the backward step net does not write")
            got = specs[name]
            require(got == want, op, f"{name!r} has shape {got.shape}, and the parameter has {want.shape}")
        return specs

    def target_name(self, link: Link) -> str:
        """Return the state or the input to whose gradient a link refers."""
        name = link.external.removesuffix(_GRADIENT)
        first = self.op.forward_inputs[0]
        others = [other.external for other in self.op.backward_links]
        if name not in self.forward.states and name not in self.forward.inputs and first + _GRADIENT not in others:
            return first  # the input was renamed after the backward step net was made
        return name

    def _gradient_rows(self, link: Link) -> TensorSpec:
        name = self.target_name(link)
        forward = Link(link.internal, name, link.offset, link.window)
        if name not in self.states and name not in self.forward.inputs:
            raise NetError(f"{self.op.type}: backward_link_external names {link.external!r}, which is unknown")
        return self.forward.link_spec(forward)

    def _once(self) -> list[Instruction]:
        op = self.op
        varying = {link.internal for link in (*op.links, *op.backward_links)} | {op.timestep, *op.param_gradients}
        fixed_names = [name for name in self.forward.inputs if name not in varying]
        return op.backward.invariant([*fixed_names, *self.forward.kept_once], varying)

    def _products(self) -> list[Product]:
        """Return the products after the loop; values that are recomputed, to save memory, are not stored for them."""
        varying = {link.internal for link in (*self.op.links, *self.op.backward_links)} | {self.op.timestep}
        once = {name for operator in self.once for name in operator.outputs} | set(self.forward.kept_once)
        fixed_names = once.union(name for name in self.forward.inputs if name not in varying)
        ends = {out.link.internal for out in self.outgoing if out.direct and not out.state and out.output >= 0}
        found = products(self.op, self.specs, fixed_names, self.forward.steps, ends)
        incoming = {link.internal for link in self.incoming}
        made = self.op.backward.written
        return [p for p in found if p.dy not in incoming and p.x not in made and self._stackable(p.x)]

    def _body(self) -> list[Instruction]:
        """Return the operators of a step: the backward step net's, of which products compute only dX, or nothing."""
        replaced = {product.operator: product.in_loop for product in self.products}
        body = [replaced.get(operator, operator) for operator in self.op.backward.ops if operator not in self.once]
        for product in self.products:
            self.specs.update(product.specs)
        return [operator for operator in body if operator is not None]

    @property
    def operators(self) -> LoopOperators:
        """All operators that are run."""
        joined = [product.joined for product in self.products]
        stored = {*self.local, *self.stacked, *self._linked()}
        stored.update(name for operator in joined for name in operator.outputs)
        return LoopOperators(
            self.op.backward.name, self.once, self.body, joined, self.specs, frozenset(stored), frozenset(self.fixed),
            self.op.timestep,
        )  # fmt: skip

    def _linked(self) -> set[str]:
        """Return the blobs of the backward step net that are rows of the gradients of inputs or states."""
        direct = {out.link.internal for out in self.outgoing if out.direct and out.used}
        return direct.union(link.internal for link in self.incoming)

    @property
    def fixed(self) -> set[str]:
        """The blobs that are the same in all steps."""
        zeros = {product.zeros for product in self.products if product.zeros is not None}
        linked = {link.internal for link in self.op.backward_links}
        return {*self.forward.fixed, *zeros} - linked

    def _stackable(self, name: str) -> bool:
        """Whether the values of a blob in all steps are, or can be, stored contiguously."""
        link = self.op.linked.get(name)
        return link is None or link.window == 1

    def _stacked(self) -> dict[str, Slot]:
        """Return the locations of blobs whose values in all steps are read by products after the loop."""
        linked, stacked = self._linked(), {}
        for name in {name for product in self.products for name in (product.x, product.dy)} - linked:
            if name in self.op.backward.written:
                spec = self.specs[name]
                stacked[name] = self.arena.add((self.forward.steps, *spec.shape), spec.dtype)
        return stacked

    def _local(self) -> dict[str, Slot]:
        """Return the locations of values that are computed before the loop, or accumulated after each step."""
        names = [name for operator in self.once for name in operator.outputs]
        names += [out.link.internal for out in self.outgoing if out.used and not out.direct]
        found = dict.fromkeys([*names, *sorted(self.sums)])
        return {
            name: self.arena.add(self.specs[name].shape, self.specs[name].dtype)
            for name in found
            if name not in self.stacked
        }

    def flops(self) -> int:
        """Return the floating-point operations of all steps."""
        return self.op.backward.flops(self.specs, self.once, self.forward.steps)

    def output_specs(self) -> tuple[TensorSpec, ...]:
        """Return the specs of the gradients: of the first input, the parameters, the initial states, other inputs."""
        inputs = [self.forward.inputs[name].plain for name in self.op.forward_inputs]
        made = [inputs[0], *(inputs[number] for number in self.op.param)]
        made += [inputs[state.initial] for state in self.op.states]
        made += [self.forward.inputs[name].plain for name, number in self.sequences.items() if number > 0]
        return tuple(made)

    def read(self, specs: Sequence[TensorSpec], also: Iterable[str] = ()) -> list[TensorSpec | None]:
        """Return the specs of the operator's inputs that are read: None instead for the others.

        Args:
            specs: of all inputs.
            also: blobs of the step net that are read besides.
        """
        op = self.op
        blobs = {*op.backward.read, *also, *(product.x for product in self.products)}
        names = blobs.union(op.linked[name].external for name in blobs if name in op.linked)
        read = [True] * self.n_dy + [name in names for name in op.forward_inputs]
        read += [False] * (len(specs) - len(read) - 1) + [True]
        return [spec if is_read else None for spec, is_read in zip(specs, read)]

    def overwrites(self, read: Sequence[TensorSpec | None]) -> list[tuple[int, int]]:
        """Return the pairs (input, output) that may have one buffer if a segment's forward steps run before its others.

        They are sequences that only the forward steps read, row by row, and their gradients, which are written so.

        Args:
            read: the specs of the inputs that the backward steps read, None for the others.
        """
        pairs = []
        for out in self.outgoing:
            name = self.target_name(out.link)
            if out.state or not out.direct or out.output < 0:
                continue
            index = self.n_dy + self.op.forward_inputs.index(name)
            by_row = all(k.offset == 0 and k.window == 1 for k in self.op.links if k.external == name)
            if read[index] is None and by_row and name in self.forward.inputs:
                pairs.append((index, out.output))
        return pairs


class BoundBackward:
    """A backward pass bound to its arrays; see ``ops.recurrent.forward.bind_forward``.

    Args:
        plan, loop, zeros: the plan, its operators, compiled, and the zeros of its products.
        inputs, outputs: the operator's arrays.
        stored: the arrays of the forward pass.
        local: memory of ``plan.arena.nbytes`` bytes.
        scratch: ``loop.scratch`` bytes.
        before_step: the loops that run before steps: segments of the forward pass, which run again.
    """

    def __init__(
        self,
        plan: BackwardPlan,
        loop: Loop,
        zeros: Mapping[str, Array],
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        stored: Stored,
        local: Array,
        scratch: Array | None,
        before_step: Mapping[int, BoundLoop] | None = None,
    ) -> None:
        self._plan, self._inputs, self._outputs, self._stored = plan, inputs, outputs, stored
        self._states = {name: slot.of(local) for name, slot in plan.states.items()}
        self._local = {name: slot.of(local) for name, slot in plan.local.items()}
        self._stacks = {name: slot.of(local) for name, slot in plan.stacked.items()}
        self._totals = dict(zip(plan.op.param_gradients, outputs[1:]))
        views = self._views()
        for product in plan.products:
            self._add_matrices(views, product)
        for name, array in zeros.items():
            views[name] = fixed(array)
        self.calls = BoundLoop(loop, views, scratch)
        self._begin()
        self.calls.before()
        for time in reversed(range(plan.forward.steps)):
            if before_step is not None and time in before_step:
                self.calls.add_loop(before_step[time])
            self.calls.step(time)
            self._collect(time)
        self.calls.after()
        self._end()

    def _begin(self) -> None:
        """Append the calls that initialize the gradients of states with those of the outputs, and sums with 0."""
        plan, add = self._plan, self.calls.add
        for name, array in self._states.items():
            given = plan.output_gradients(name)
            if len(given) == 1 and given[0][1] >= 0:
                number, offset = given[0]
                add(partial(assign, array[:offset], 0))
                add(partial(assign, array[offset:], self._inputs[number]))
                continue
            add(partial(assign, array, 0))
            for number, offset in given:
                add(partial(_add, array[offset:], self._inputs[number]))
        written = {out.output for out in plan.outgoing if out.direct}
        for number in plan.sequences.values():
            if number >= 0 and number not in written:
                add(partial(assign, self._outputs[number], 0))

    def _views(self) -> Views:
        plan = self._plan
        count = plan.n_dy
        inputs = self._inputs[count : count + len(plan.op.forward_inputs)]
        views = plan.forward.views(inputs, self._stored)
        for name, array in self._local.items():
            views[name] = fixed(array)
        for name, array in self._stacks.items():
            views[name] = step_of(array)
        for link in plan.incoming:
            views[link.internal] = rows(self._target(link), link)
        for out in plan.outgoing:
            if out.direct and out.used:
                views[out.link.internal] = rows(self._target(out.link), out.link)
        return views

    def _target(self, link: Link) -> Array:
        name = self._plan.target_name(link)
        return self._states[name] if name in self._states else self._outputs[self._plan.sequences[name]]

    def _add_matrices(self, views: Views, product: Product) -> None:
        """Add the views of a product's matrices over all steps."""
        results = product.operator.outputs
        arrays = [self._all_steps(product.x), views.at(0)(product.w), self._all_steps(product.dy)]
        arrays += [self._totals[name] for name in results[:2]]
        arrays += [self._all_steps(name) for name in results[2 : len(product.joined.outputs)]]
        for name, array in zip((*product.joined.inputs, *product.joined.outputs), arrays):
            views[name] = fixed(array.reshape(product.specs[name].shape))

    def _all_steps(self, name: str) -> Array:
        """Return the stacked values of a blob in all steps."""
        plan = self._plan
        if name in self._stacks:
            return self._stacks[name]
        steps = plan.forward.steps
        for out in plan.outgoing:
            if out.link.internal == name:
                return self._target(out.link)[out.link.offset : out.link.offset + steps]
        link = plan.op.linked.get(name)
        if link is None:
            return self._stored.kept[name].array
        state = self._stored.states.get(link.external)
        given = dict(zip(plan.op.forward_inputs, self._inputs[plan.n_dy :]))
        whole = given[link.external] if state is None else state.array
        return whole[link.offset : link.offset + steps]

    def _collect(self, time: int) -> None:
        """Append the calls that accumulate the gradients of a step."""
        plan = self._plan
        for out in plan.outgoing:
            if out.used and not out.direct:
                target = rows(self._target(out.link), out.link)(time)
                self.calls.add(partial(_add, target, self._of_step(out.link.internal, time)))
        last = time == plan.forward.steps - 1
        for name, total in self._totals.items():
            if name in plan.sums:
                self.calls.add(partial(assign if last else _add, total, self._of_step(name, time)))

    def _of_step(self, name: str, time: int) -> Array:
        """Return what the backward step net has made of a blob in a step."""
        return self._stacks[name][time] if name in self._stacks else self._local[name]

    def _end(self) -> None:
        """Append the calls that write the gradients of the initial states."""
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
    first.sum(axis=(0, 1), out=out)
