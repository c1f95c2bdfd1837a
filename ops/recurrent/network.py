"""RecurrentNetwork: a step net run over a sequence, and its gradient.

A time step runs the step net's operators on views of the stacked arrays: linked blobs are never copied.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

from netbuilder.engines.layouts import HOST, alignment_of, new_buffer
from netbuilder.ops.core.contexts import GradientContext, PlanContext, Prepared
from netbuilder.ops.core.extensions import Capturable, Checkpoints, OwnMemory, RunsAgain
from netbuilder.ops.core.operator import NetNames, TensorSpec
from netbuilder.ops.core.registry import CPU, GPU, prepare, register
from netbuilder.ops.recurrent.backward import BackwardPlan, BoundBackward, further_sequences
from netbuilder.ops.recurrent.derived import derived_backward
from netbuilder.ops.recurrent.forward import ForwardPlan, bind_forward
from netbuilder.ops.recurrent.links import Recurrent
from netbuilder.ops.recurrent.loop import Loop
from netbuilder.ops.recurrent.segments import Segments, whole_in_backward
from netbuilder.proto import ArgumentError, GradientError, NetError, OperatorDef
from netbuilder.proto.arguments import arguments, make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["RecurrentNetwork", "RecurrentNetworkGradient"]


@register
@dataclass(frozen=True)
class RecurrentNetwork(Recurrent):
    """Run ``step_net`` over a sequence.

    The first axes of the first input are steps and samples; it sets the number of steps. A link makes a blob of the
    step net a view of rows of an input or of a state: in step t, of those from t + offset on. The initial value of a
    state is an input of shape (rows, samples, ...), (samples, width) or (width,), and each step adds a row; an alias
    makes the rows of a state, from a given one on, an output. All other blobs that the step net reads must be inputs;
    they are the same in all steps, and what depends only on them is computed once.

    The last output holds, as bytes, what the gradient reads again: without ``backward_step_net``, only the states.
    """

    signature = """
        X+ (...): float|int|bool, the first (T, N, ...) for T steps and N samples
        -> Y+ (...): float|int|bool, rows of states, (R, N, ...); of the last output (M), uint8
    """

    def check(self) -> None:
        super().check()
        aliases = self.output_aliases(self.output_names)
        for name in self.output_names[:-1]:
            if name not in aliases:
                raise NetError(
                    f"RecurrentNetwork: output {name!r} is not an alias of a state; alias_dst is {list(aliases)}"
                )

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        return ForwardPlan(self, specs).output_specs(self.output_names)

    def flops(self, *specs: TensorSpec) -> int:
        return ForwardPlan(self, specs).flops()

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        if self.own_rows and self.backward_step_net is None:
            raise GradientError(
                f"RecurrentNetwork: its step net reads as {self.own_rows} rows of a state that it has written in the "
                "same step, of which no backward step net can be derived; give backward_step_net"
            )
        args = {} if self.backward_step_net is not None else derived_backward(self, g)
        return _gradient_operators(self, g, args)


def _gradient_operators(op: RecurrentNetwork, g: GradientContext, args: dict[str, Any]) -> list[OperatorDef]:
    """Return the gradient operator; ``args`` are its arguments that differ from the forward operator's.

    The parts of the gradient of an input that has several uses, such as a parameter that is an initial state, too, are
    added up by operators after it.
    """
    given = [number for number in op.outputs_with_grads or range(op.n_out) if g.has_d_output(number)]
    for number in range(op.n_out):
        if g.has_d_output(number) and number not in given:
            raise GradientError(
                f"RecurrentNetwork: the loss depends on output {g.output(number)!r}, which is not among "
                f"outputs_with_grads {list(op.outputs_with_grads)}; name its number, {number}, there"
            )
    inputs = [g.d_output(number) for number in given]
    inputs += [g.input(i) for i in range(op.n_in)] + [g.output(j) for j in range(op.n_out)]
    params = args.get("param", op.param)
    parts: dict[str, list[str]] = {}  # of the gradient of each input
    outputs = []
    further = further_sequences(op, args.get("backward_link_external"))
    for i in (0, *params, *op.initial_recurrent_state_ids, *further):
        of_input = parts.setdefault(g.op.input[i], [])
        of_input.append(f"{of_input[0]}_part_{len(of_input)}" if of_input else g.d_input(i))
        outputs.append(of_input[-1])
    made = make_op("RecurrentNetworkGradient", inputs, outputs, **{"outputs_with_grads": given, **args})
    own = {argument.name for argument in made.arg}
    made.arg.extend(argument for argument in g.op.arg if argument.name not in own)
    return [made, *(make_op("Sum", names, [names[0]]) for names in parts.values() if len(names) > 1)]


@register
@dataclass(frozen=True)
class RecurrentNetworkGradient(Recurrent):
    """The gradients of RecurrentNetwork: of the first input, the inputs in ``param``, the initial states.

    It reads the gradients of the outputs in ``outputs_with_grads``, all inputs and all outputs. ``backward_step_net``
    runs for each step, from the last to the first, on views like the step net; gradients of shared inputs are summed.
    """

    signature = "dY* -> dX+"
    net_names: ClassVar[NetNames] = "inputs"

    @classmethod
    def named_inputs(cls, op: OperatorDef) -> Sequence[str]:
        return op.input[len(arguments(op).get("outputs_with_grads") or ()) :]

    @cached_property
    def forward_inputs(self) -> tuple[str, ...]:
        whole = {name for name in self.input_names if name in self.recurrent_states}  # outputs that are a whole state
        outputs = len(whole.union(self.alias_dst)) + 1
        return self.input_names[len(self.outputs_with_grads) : len(self.input_names) - outputs]

    def check(self) -> None:
        if self.backward_step_net is None:
            raise ArgumentError("RecurrentNetworkGradient: the argument backward_step_net, a net, must be given")
        super().check()

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        return BackwardPlan(self, specs).output_specs()

    def flops(self, *specs: TensorSpec) -> int:
        return BackwardPlan(self, specs, join=False).flops()


@prepare(RecurrentNetwork, device=CPU)
@prepare(RecurrentNetwork, device=GPU)
def prepare_recurrent_network(op: RecurrentNetwork, ctx: PlanContext, *specs: TensorSpec) -> Prepared:
    inputs = [spec.plain for spec in specs]
    outputs: list[TensorSpec | None] = list(ForwardPlan(op, inputs).output_specs(op.output_names))
    keep = ctx.demand(op.n_out - 1) != "never"
    plan = ForwardPlan(op, inputs, keep=keep, project=ctx.enabled("step_projections"))
    loop = None if plan.one_by_one else Loop(plan.operators, ctx)
    if not keep:  # only the states, in scratch memory
        outputs[-1] = None
    states = 0 if keep else plan.memory.nbytes
    memory = _Memory(ctx, states, plan.arena.nbytes, loop.scratch if loop else 0)

    def bind(ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        own, local, rest = memory.parts(scratch)
        stored = plan.stored(outs[-1] if keep else own, local)
        return bind_forward(plan, loop, ctx, ins, outs[:-1], stored, rest).run

    made = _prepared(inputs, outputs, bind, memory, loop)
    if loop is None or not Segments.possible(plan):
        return made
    in_segments = partial(_forward_in_segments, ctx, made, plan, loop)
    return made.extend(Checkpoints(lambda _: in_segments(), output=op.n_out - 1))


def _forward_in_segments(ctx: PlanContext, whole: Prepared, plan: ForwardPlan, loop: Loop) -> Prepared:
    """Return the kernel that keeps the states at the borders of segments alone."""
    segments = Segments(plan, loop)
    working = segments.working(1, whole=plan.states)
    memory = _Memory(ctx, working.arena.nbytes, loop.scratch)

    def bind(ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        values, rest = memory.parts(scratch)
        stored = segments.stored(outs[-1], working, values)
        bound = bind_forward(plan, loop, ctx, ins, outs[:-1], stored, rest)
        segments.keep_borders(bound, outs[-1], stored)
        return bound.run

    outputs = [*whole.outputs[:-1], _bytes(segments.memory.nbytes)]
    return _prepared(whole.inputs, outputs, bind, memory, loop).extend(RunsAgain(segments))


@prepare(RecurrentNetworkGradient, device=CPU)
@prepare(RecurrentNetworkGradient, device=GPU)
def prepare_recurrent_network_gradient(op: RecurrentNetworkGradient, ctx: PlanContext, *specs: TensorSpec) -> Prepared:
    inputs = [spec.plain for spec in specs]
    plan = BackwardPlan(op, inputs, join=ctx.enabled("step_products"))
    loop = Loop(plan.operators, ctx)
    memory = _Memory(ctx, plan.arena.nbytes, loop.scratch)
    zeros = {p.zeros: new_buffer(plan.specs[p.zeros], memory.location) for p in plan.products if p.zeros}

    def bind(ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        stored = plan.forward.stored(ins[-1], None)
        return BoundBackward(plan, loop, zeros, ins, outs, stored, *memory.parts(scratch)).calls.run

    made = _prepared(plan.read(inputs), plan.output_specs(), bind, memory, loop)
    in_segments = partial(_backward_in_segments, ctx, made, inputs, plan, loop, zeros)
    return made.extend(Checkpoints(in_segments, input=op.n_in - 1))


def _backward_in_segments(
    ctx: PlanContext,
    whole: Prepared,
    inputs: Sequence[TensorSpec],
    plan: BackwardPlan,
    loop: Loop,
    zeros: Mapping[str, Any],
    forward: Prepared | None,
) -> Prepared | None:
    """Return the kernel that runs each segment of the forward pass again before its backward steps."""
    kept = forward.get(RunsAgain) if forward is not None else None
    assert kept is not None
    segments: Segments = kept.segments
    if segments.plan.kept.keys() != plan.forward.kept.keys() or segments.plan.states != plan.forward.states:
        return None
    working = segments.working(segments.length, whole_in_backward(plan))
    memory = _Memory(ctx, plan.arena.nbytes, working.arena.nbytes, max(loop.scratch, segments.loop.scratch))
    read = plan.read(inputs, [name for operator in segments.plan.body for name in operator.inputs])

    def bind(ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        local, values, rest = memory.parts(scratch)
        stored = segments.stored(ins[-1], working, values)
        given = ins[plan.n_dy : plan.n_dy + len(plan.op.forward_inputs)]
        again = segments.again(given, ins[-1], stored, rest)
        return BoundBackward(plan, loop, zeros, ins, outs, stored, local, rest, again).calls.run

    made = _prepared([*read[:-1], _bytes(segments.memory.nbytes)], whole.outputs, bind, memory, loop)
    return replace(made, inplace=plan.overwrites(whole.inputs))


def _bytes(count: int) -> TensorSpec:
    return TensorSpec((count,), np.dtype(np.uint8))


class _Memory:
    """The scratch memory of a pass, in parts.

    Args:
        ctx: of the operator.
        sizes: of its parts, in bytes.
    """

    def __init__(self, ctx: PlanContext, *sizes: int) -> None:
        self.location = (GPU, ctx.device_id) if ctx.run.is_gpu else HOST
        alignment = alignment_of(self.location)
        self._ends = list(itertools.accumulate(-(-nbytes // alignment) * alignment for nbytes in sizes))

    @property
    def scratch(self) -> int:
        """Bytes of scratch memory."""
        return max(self._ends[-1], 1)

    def parts(self, scratch: Any) -> list[Any]:
        """Return the parts, views of ``scratch``."""
        return [scratch[begin:end] for begin, end in zip([0, *self._ends], self._ends)]


def _prepared(
    inputs: Sequence[TensorSpec | None],
    outputs: Sequence[TensorSpec | None],
    bind: Callable[..., Callable[[], object]],
    memory: _Memory,
    loop: Loop | None,
) -> Prepared:
    name, engine = (loop.name, loop.engine) if loop else ("steps", "")
    made = Prepared(inputs, outputs, bind, scratch=memory.scratch, name=name, engine=engine)
    if loop and loop.own:
        made.extend(OwnMemory(loop.own))
    return made.extend(Capturable()) if loop and loop.capturable else made
