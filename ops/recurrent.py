"""RecurrentNetwork: a step net run over a sequence, and its gradient.

A time step is a replay of the step net's operators over views of the stacked arrays: what is linked is never copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from netbuilder.ops.contexts import GradientContext, RunContext
from netbuilder.ops.declaration import dataclass
from netbuilder.ops.operator import TensorSpec, spec_of
from netbuilder.ops.recurrent_backward import BackwardPlan, BoundBackward, further_sequences
from netbuilder.ops.recurrent_derived import derived_backward
from netbuilder.ops.recurrent_forward import BoundForward, ForwardPlan, local_slots
from netbuilder.ops.recurrent_kernels import Kernels
from netbuilder.ops.recurrent_links import Recurrent
from netbuilder.ops.registry import kernel, register
from netbuilder.proto import ArgumentError, GradientError, NetError, OperatorDef
from netbuilder.proto.arguments import make_op

__all__ = ["RecurrentNetwork", "RecurrentNetworkGradient"]


@register
@dataclass(frozen=True)
class RecurrentNetwork(Recurrent):
    """Run ``step_net`` over a sequence.

    The first input has steps and samples as its first axes, and tells how many steps there are. A link lets a blob of
    the step net be rows of an input, or of a state: in step t those from t + offset on. A state begins with an input,
    of shape (rows, samples, ...), (samples, width) or (width,), and has one more row for each step; an alias shows its
    rows from some row on as an output. What the step net reads else must be inputs; they are the same in all steps,
    and what depends on them alone is computed once.

    The last output holds, as bytes, what the gradient reads again. Without ``backward_step_net`` these are the states
    alone.
    """

    inputs = ("X+",)
    outputs = ("Y+",)

    def check(self) -> None:
        super().check()
        shown = self.shown(self.output_names)
        for name in self.output_names[:-1]:
            if name not in shown:
                raise NetError(
                    f"RecurrentNetwork: output {name!r} is the alias of no state; alias_dst is {list(shown)}"
                )

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        return ForwardPlan(self, specs).output_specs(self.output_names)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        if self.own_rows and self.backward_step_net is None:
            raise GradientError(
                f"RecurrentNetwork: its step net reads as {self.own_rows} rows of a state that it has written in the "
                "same step, of which no backward step net can be derived; give backward_step_net"
            )
        args = {} if self.backward_step_net is not None else derived_backward(self, g)
        return [_gradient_operator(self, g, args)]


def _gradient_operator(op: RecurrentNetwork, g: GradientContext, args: dict[str, Any]) -> OperatorDef:
    """Return the gradient operator; ``args`` are its arguments that differ from the forward operator's."""
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
    outputs = [g.d_input(i) for i in (0, *params, *op.initial_recurrent_state_ids)]
    outputs += [g.d_input(i) for i in further_sequences(op, args.get("backward_link_external"), params)]
    return make_op("RecurrentNetworkGradient", inputs, outputs, **{"outputs_with_grads": given, **args})


@register
@dataclass(frozen=True)
class RecurrentNetworkGradient(Recurrent):
    """The gradients of RecurrentNetwork: of the first input, the inputs in ``param``, the initial states.

    Reads the gradients of the outputs in ``outputs_with_grads``, all inputs and all outputs. ``backward_step_net`` is
    run for each step, the last first, over views as the step net is; gradients of what all steps share are added up.
    """

    inputs = ("dY*",)
    outputs = ("dX+",)

    @cached_property
    def forward_inputs(self) -> tuple[str, ...]:
        whole = {name for name in self.input_names if name in self.recurrent_states}  # outputs that show all of a state
        outputs = len(whole.union(self.alias_dst)) + 1
        return self.input_names[len(self.outputs_with_grads) : len(self.input_names) - outputs]

    def check(self) -> None:
        if self.backward_step_net is None:
            raise ArgumentError("RecurrentNetworkGradient: the argument backward_step_net, a net, must be given")
        super().check()

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        return BackwardPlan(self, specs).output_specs()


@kernel(RecurrentNetwork)
def recurrent_network(op: RecurrentNetwork, ctx: RunContext, *inputs: Any) -> tuple[Any, ...]:
    plan = ForwardPlan(op, [spec_of(array) for array in inputs], project=True)
    outputs = _empty(ctx, plan.output_specs(op.output_names))
    kernels = Kernels(plan.operators, plan.specs, plan.fixed, None)
    local = ctx.xp.empty(local_slots(plan)[0].nbytes, "uint8")
    BoundForward(plan, kernels, ctx, inputs, outputs, local, None).calls.run()
    return tuple(outputs)


@kernel(RecurrentNetworkGradient)
def recurrent_network_gradient(op: RecurrentNetworkGradient, ctx: RunContext, *inputs: Any) -> tuple[Any, ...]:
    plan = BackwardPlan(op, [spec_of(array) for array in inputs])
    outputs = _empty(ctx, plan.output_specs())
    kernels = Kernels(plan.operators, plan.specs, plan.fixed, None)
    local = ctx.xp.empty(plan.arena.nbytes, "uint8")
    BoundBackward(plan, kernels, ctx, inputs, outputs, local, None).calls.run()
    return tuple(outputs)


def _empty(ctx: RunContext, specs: Sequence[TensorSpec]) -> list[Any]:
    return [ctx.xp.empty(spec.shape, spec.dtype) for spec in specs]
