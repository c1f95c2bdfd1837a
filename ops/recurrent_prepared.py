"""RecurrentNetwork and its gradient made ready for the CPU: the calls of all steps are bound once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from netbuilder.ops.contexts import PlanContext, Prepared
from netbuilder.ops.operator import TensorSpec
from netbuilder.ops.recurrent import RecurrentNetwork, RecurrentNetworkGradient
from netbuilder.ops.recurrent_backward import BackwardPlan, BoundBackward
from netbuilder.ops.recurrent_forward import BoundForward, ForwardPlan, local_slots
from netbuilder.ops.recurrent_kernels import Kernels
from netbuilder.ops.registry import CPU, prepare

__all__: list[str] = []

_ALIGNMENT = 64


@prepare(RecurrentNetwork, device=CPU)
def prepare_recurrent_network(op: RecurrentNetwork, ctx: PlanContext, *specs: TensorSpec) -> Prepared:
    inputs = [spec.plain for spec in specs]
    outputs: list[TensorSpec | None] = list(ForwardPlan(op, inputs).output_specs(op.output_names))
    keep = ctx.demand(op.n_out - 1) != "never"
    plan = ForwardPlan(op, inputs, keep=keep, project=ctx.does("step_projections"))
    kernels = Kernels(plan.operators, plan.specs, plan.fixed, ctx)
    local = local_slots(plan)[0].nbytes
    if not plan.keep:  # the states alone, in memory that others use, too
        outputs[-1] = None
    states = 0 if plan.keep else plan.memory.nbytes

    def bind(ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        memory = outs[-1] if plan.keep else scratch[:states]
        arrays = [*outs[:-1], memory]
        bound = BoundForward(
            plan, kernels, ctx.run, ins, arrays, scratch[states : states + local], scratch[states + local :]
        )
        return bound.calls.run

    size = max(states + local + kernels.nbytes, _ALIGNMENT)
    return Prepared(inputs, outputs, bind, scratch=size, name=kernels.name)


@prepare(RecurrentNetworkGradient, device=CPU)
def prepare_recurrent_network_gradient(op: RecurrentNetworkGradient, ctx: PlanContext, *specs: TensorSpec) -> Prepared:
    inputs = [spec.plain for spec in specs]
    plan = BackwardPlan(op, inputs, join=ctx.does("step_products"))
    kernels = Kernels(plan.operators, plan.specs, plan.fixed, ctx)
    local = plan.arena.nbytes

    def bind(ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        return BoundBackward(plan, kernels, ctx.run, ins, outs, scratch[:local], scratch[local:]).calls.run

    size = max(local + kernels.nbytes, _ALIGNMENT)
    return Prepared(inputs, plan.output_specs(), bind, scratch=size, name=kernels.name)
