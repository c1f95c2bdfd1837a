"""Operators of an operator's subgraph (a step net), compiled as plans are, over buffers that the operator provides.

The inputs and the requested outputs are in buffers of the operator, which differ from step to step: rows
of a sequence, or of a state. Other values belong to the subgraph: intermediate values, and copies, in the layouts that
kernels prefer, of inputs that are the same in all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from netbuilder.engines.layouts import HOST, Location, new_buffer, new_bytes
from netbuilder.ops.core.contexts import ANY_ORDER, BoundStep, Prepared, Subgraph
from netbuilder.ops.core.instructions import Instruction
from netbuilder.runtime.plan.binding import after_clearing, bind_step, step_failed
from netbuilder.runtime.plan.buffers import append_restore, versions_of
from netbuilder.runtime.plan.capturable import why_not_captured
from netbuilder.runtime.plan.compiler import Compilation, compile_range
from netbuilder.runtime.plan.kernel_choice import choose_kernel
from netbuilder.runtime.plan.memory_plan import assign
from netbuilder.runtime.plan.node_context import NodeContext
from netbuilder.runtime.plan.observed_calls import observed_call
from netbuilder.runtime.plan.optimizations import OPTIMIZATIONS
from netbuilder.runtime.plan.options import PlanOptions
from netbuilder.runtime.plan.run_context import KernelContext
from netbuilder.runtime.plan.values import Node, Step, Value
from netbuilder.runtime.values.blob import Blob, Generation

__all__ = ["compile_subgraph"]

Array = Any
BufferOf = Callable[[str], Array]

_NOT_IN_SUBGRAPHS = (OPTIMIZATIONS["bn_relu_gradient"],)
"""Optimizations that defer a value until it is fetched: values of a subgraph cannot be fetched."""


def compile_subgraph(subgraph: Subgraph, run: KernelContext, options: PlanOptions) -> SubgraphPlan:
    """Compile a subgraph.

    Args:
        subgraph: the operators, and the blobs whose buffers the caller provides.
        run: the run context of the operator that has the subgraph.
        options: of that operator's plan. The subgraph stores values as float32, and uses the threads of the lane.

    Raises:
        NetError: one of the operators has no kernel.
    """
    own = replace(
        options,
        lanes=1,
        exchange_lane=False,
        threads=options.lane_threads,
        without=options.off.union(_NOT_IN_SUBGRAPHS) - {OPTIMIZATIONS["constants"]},
        dtype="float32",
        constants=subgraph.fixed if options.enabled("step_copies") else frozenset(),
    )
    return SubgraphPlan(subgraph, run, own)


class SubgraphPlan:
    """See ``netbuilder.ops.core.contexts.CompiledSubgraph``."""

    def __init__(self, subgraph: Subgraph, run: KernelContext, options: PlanOptions) -> None:
        net = _Subgraph(subgraph, run)
        specs = [tuple(subgraph.specs[name] for name in each.outputs) for each in net.program]
        plan = compile_range(net, 0, len(specs), specs, options, compile_subgraph, subgraph.outputs, in_subgraph=True)
        self._net, self._options = net, options
        self.own: Sequence[Array]
        self._buffers, self._cleared, self.own = _assign_buffers(plan, subgraph.outputs)
        self._constant_steps, self._steps = plan.constant_steps, plan.steps
        self._temporaries: dict[Value, Array] = {}
        steps = [*self._constant_steps, *self._steps]
        prepared = [step.prepared for step in steps]
        self.scratch = max((each.scratch for each in prepared), default=0)
        self.engine = next((each.engine for each in prepared if each.engine), "")
        self.name = f"{self.engine.lower()} steps" if self.engine else "steps"
        self.capturable = run.on_operator is None and not any(
            why_not_captured(each, subgraph.on_host) for each in steps
        )

    def copies(self, buffer_of: BufferOf, scratch: Array | None) -> list[BoundStep]:
        steps = self._constant_steps
        fixed = {value.name for step in steps for value in step.inputs if value is not None}
        return self._bind(steps, lambda name: buffer_of(name) if name in fixed else None, scratch, -1)

    def bind(self, buffer_of: BufferOf, scratch: Array | None, step: int = -1) -> list[BoundStep]:
        return self._bind(self._steps, buffer_of, scratch, step)

    def _bind(self, steps: list[Step], buffer_of: BufferOf, scratch: Array | None, number: int) -> list[BoundStep]:
        for name, values in self._buffers.items():
            buffer = buffer_of(name)
            for value in values:
                value.buffer = buffer
        extra = f", in step {number}" if number >= 0 else ""
        bound = []
        for step in steps:
            failed = partial(step_failed, self._net.name, step, extra=extra, in_subgraph=True)
            try:
                call = bind_step(self._of_step(step, number), scratch, {}, self._temporaries)
                if step in self._cleared:
                    call = after_clearing(self._cleared[step], call)
                if self._net.on_operator is not None:
                    call = observed_call(self._net.name, step, call, self._net.on_operator, number)
                bound.append(BoundStep(call, failed))
            except Exception as error:
                raise failed(error) from error
        return bound

    def _of_step(self, step: Step, number: int) -> Step:
        """Return a step with a kernel for one step of the loop, in which random operators draw other numbers."""
        if step.moves or not step.node.first.op.stateful or number <= 0:
            return step
        return replace(step, prepared=self._net.kernel_of_step(step.node, number, self._options))


class _Subgraph:
    """The subgraph of a subgraph, as a ``runtime.plan.runner.Runner`` for the compiler."""

    def __init__(self, subgraph: Subgraph, run: KernelContext) -> None:
        self.name = subgraph.net
        self.program = [replace(each, device=run.device) for each in subgraph.operators]
        self.warned: set[str] = set()
        self._subgraph, self._run = subgraph, run
        self.on_operator = run.on_operator
        self._location = HOST if not run.is_gpu else run.device

    def find_blob(self, name: str) -> Blob:
        blob = Blob(name, Generation())
        on_host = name in self._subgraph.on_host
        blob.bind(self._subgraph.specs[name], (), HOST if on_host else self._location)
        blob.spec = self._subgraph.specs[name]  # `bind` drops `known`, the elements known at compile time
        return blob

    def filled_blobs(self) -> Iterable[str]:
        return self._subgraph.specs

    def last_end(self, start: int) -> int:
        return len(self.program)

    def kernel_context(self, instruction: Instruction) -> KernelContext:
        return self._run.inner(instruction.op_def, 0)

    def keep(self, name: str) -> bool:
        return False

    @property
    def not_kept(self) -> Collection[str]:
        return ()

    def hides(self, name: str, start: int, end: int) -> bool:
        return name not in self._subgraph.outputs

    def kernel_of_step(self, node: Node, number: int, options: PlanOptions) -> Prepared:
        """Return the kernel of an operator for one step of the loop."""
        run = self._run.inner(node.first.op_def, number)
        ctx = NodeContext(node, run, options, options.lane_threads, ANY_ORDER, compile_subgraph, in_subgraph=True)
        prepared = choose_kernel(node, ctx, options)
        assert prepared is not None, "an operator that draws random numbers is never fused"
        return prepared


def _assign_buffers(
    plan: Compilation, outputs: frozenset[str]
) -> tuple[dict[str, list[Value]], dict[Step, list[Array]], list[Array]]:
    """Assign buffers to the subgraph's own values.

    Returns:
        By name, the values that are in buffers of the caller; what each step fills with zeros first (see
        ``MemoryPlan.cleared``); and the memory of the subgraph's own values.
    """
    given: dict[str, list[Value]] = {name: [value] for name, value in plan.graph.externals.items()}
    for name, chain in versions_of(plan).items():
        final = chain[-1]
        if name not in outputs or final.producer is None:
            continue
        assert final.spec is not None
        if final.spec.layout is not None:
            final = append_restore(plan, final.spec.plain, final)
        values = given.setdefault(name, [])
        values.append(final)
        for value in reversed(chain):  # what the last version overwrites is in the same buffer
            if value in values and value.shares is not None and value.shares not in values:
                values.append(value.shares)
    external = {value for values in given.values() for value in values}
    rest = [value for value in plan.values if value.producer is not None and value not in external]
    own: list[Array] = []

    def provide(nbytes: int, location: Location) -> Array:
        own.append(new_bytes(nbytes, location))
        return own[-1]

    for value in rest:
        if value.constant is not None:
            assert value.spec is not None
            value.buffer = new_buffer(value.spec, value.location)
            own.append(value.buffer)
    memory = assign([value for value in rest if value.buffer is None], plan.steps, provide, scratch=False)
    return given, memory.cleared, own
