"""The plan compiler: from a net's operators and the specs of its inputs to steps over values.

A plan covers the operators from ``start`` up to the first one whose output shapes depend on data. First the shapes are
inferred and each write makes a new version of a value (``static_range``). Then the phases in ``PHASES`` change the
graph of operators over values, one after another. Then each operator gets its kernel, with the copies that its layouts
need (``kernel_choice``, ``step_list``, ``split_kernels``).

Buffers (``buffers``, ``memory_plan``) and the binding of kernels to them (``binding``) follow when the steps are known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

from netbuilder.engines.engine import engine_names, find_engine, library_engines
from netbuilder.engines.open_choice import OpenChoice
from netbuilder.graph.source import warn_user
from netbuilder.ops.core.extensions import Warned
from netbuilder.ops.core.instructions import Role, describe, located
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime.plan.bias_gradients import zero_bias_gradients
from netbuilder.runtime.plan.dead_outputs import mark_unused
from netbuilder.runtime.plan.elementwise_fusion import fuse_elementwise
from netbuilder.runtime.plan.even_parts import check_even_parts
from netbuilder.runtime.plan.fusion import fuse
from netbuilder.runtime.plan.graph import PlanGraph
from netbuilder.runtime.plan.joined_exchanges import join_exchanges
from netbuilder.runtime.plan.kernel_choice import choose_image_order, choose_kernel
from netbuilder.runtime.plan.kernels_of_nodes import KernelsOfNodes
from netbuilder.runtime.plan.node_context import CompileSubgraph, NodeContext
from netbuilder.runtime.plan.node_order import host_work_first
from netbuilder.runtime.plan.options import PlanOptions
from netbuilder.runtime.plan.relu_gradients import move_relu_gradients
from netbuilder.runtime.plan.roles import between_processes, exchange_when_ready
from netbuilder.runtime.plan.runner import Runner
from netbuilder.runtime.plan.split_kernels import add_waits
from netbuilder.runtime.plan.static_range import static_range, values_of
from netbuilder.runtime.plan.step_list import StepList
from netbuilder.runtime.plan.unstored import leave_unstored
from netbuilder.runtime.plan.update_fusion import fuse_updates
from netbuilder.runtime.plan.values import Node, Step, Value

__all__ = [
    "PHASES",
    "SMALL_FLOPS",
    "Compilation",
    "Inferred",
    "Phase",
    "compile_again",
    "compile_range",
    "compile_steps",
    "infer_range",
]


@dataclass(frozen=True)
class Phase:
    """A step of the compiler: changes the graph, and leaves it without faults (see ``PlanGraph.faults``).

    Args:
        change: what it does.
        optimization: the name that switches it off, of ``runtime.plan.optimizations``; "": it always runs.
    """

    change: Callable[[PlanGraph], None]
    optimization: str = ""

    def __call__(self, graph: PlanGraph) -> None:
        if not self.optimization or graph.options.enabled(self.optimization):
            self.change(graph)


def _mark_constants(graph: PlanGraph) -> None:
    for name in graph.options.constants.intersection(graph.externals):
        graph.externals[name].constant = graph.externals[name].blob


PHASES = (
    Phase(check_even_parts),
    Phase(_mark_constants, "constants"),
    Phase(zero_bias_gradients, "zero_bias_gradients"),
    Phase(fuse),
    Phase(leave_unstored, "unstored_activations"),
    Phase(move_relu_gradients, "early_relu_gradients"),
    Phase(fuse_updates, "joined_updates"),
    Phase(fuse_elementwise, "elementwise_chains"),
    Phase(mark_unused, "unread_outputs"),
    Phase(exchange_when_ready),
    Phase(join_exchanges, "joined_exchanges"),
    Phase(host_work_first, "cuda_graphs"),
)
"""What happens to the graph of a plan, in this order, before kernels are chosen."""


@dataclass(slots=True)
class Compilation:
    """What the compiler hands to the buffer phase.

    Args:
        graph: the operators, fused, over values.
        end: the first operator of the net after those that the plan covers.
        steps: the steps of each run.
        constant_steps: the steps that copy constants, which run when the plan is made.
        values: all values, those of copies too.
        kernels: the kernels of the graph's nodes.
        open_choices: the choices between kernels that were made unmeasured.
    """

    graph: PlanGraph
    end: int
    steps: list[Step]
    constant_steps: list[Step]
    values: list[Value]
    kernels: KernelsOfNodes
    open_choices: list[OpenChoice]


Inferred = tuple[list[tuple[TensorSpec, ...]], int]
"""What ``static_range`` returns: the plain specs of each operator's outputs, and the first operator after them."""


def infer_range(net: Runner, start: int, options: PlanOptions) -> Inferred | None:
    """Return the longest static range of operators from ``start``; None if the first operator is not static.

    Args:
        net: the net.
        start: the first operator.
        options: of the net.
    """
    kinds = {instruction.device[0] for instruction in net.program[start:]}
    for name in engine_names():
        if options.uses_engine(name):
            engine = find_engine(name)
            engine.register_kernels()
            if not kinds.isdisjoint(engine.device_types):
                engine.check_precision(options.dtype)
    inferred = static_range(net, start, options)
    return None if inferred[1] == start else inferred


def compile_steps(
    net: Runner, start: int, inferred: Inferred, options: PlanOptions, compile_subgraph: CompileSubgraph
) -> Compilation:
    """Compile a static range of operators.

    Args:
        net: the net.
        start: the first operator.
        inferred: the range, see ``infer_range``; it does not depend on the layouts of blobs.
        options: of the net.
        compile_subgraph: compiles operators of an operator's subgraph (see ``runtime.plan.subgraph``).
    """
    specs, end = inferred
    read_outside = {name for each in (*net.program[:start], *net.program[end:]) for name in each.inputs}
    return compile_range(net, start, end, specs, options, compile_subgraph, read_outside)


def compile_range(
    net: Runner,
    start: int,
    end: int,
    specs: Sequence[tuple[TensorSpec, ...]],
    options: PlanOptions,
    compile_subgraph: CompileSubgraph,
    read_outside: Collection[str],
    *,
    in_subgraph: bool = False,
) -> Compilation:
    """Compile the operators from ``start`` to before ``end``.

    Args:
        net: the net.
        start, end: the operators.
        specs: the plain specs of the outputs of each operator.
        options: of the net.
        compile_subgraph: compiles operators of an operator's subgraph.
        read_outside: names whose last version other operators read, or may read.
        in_subgraph: they are operators of an operator's subgraph.
    """
    nodes, last, externals, values = values_of(net, start, end, specs)
    hidden = frozenset(name for name in last if name not in externals and net.hides(name, start, end))
    options = options if in_subgraph else _options_for_work(nodes, options)
    engines = {kind: library_engines(options.uses_engine, kind) for kind in {node.first.device[0] for node in nodes}}
    graph = PlanGraph(
        net.name, nodes, values, last, externals, hidden, options, engines, read_outside, in_subgraph=in_subgraph
    )
    for phase in PHASES:
        phase(graph)
    choosing = [] if in_subgraph else library_engines(options.uses_engine)
    kernels = KernelsOfNodes(values, lambda: [choice for engine in choosing for choice in engine.take_open_choices()])
    steps, values = _choose_kernels(net, graph, kernels, values, compile_subgraph)
    return Compilation(
        graph, end, add_waits(steps.steps), steps.constant_steps, values, kernels, kernels.open_choices()
    )


def compile_again(net: Runner, earlier: Compilation, compile_subgraph: CompileSubgraph) -> Compilation:
    """Compile a range again, after blobs have taken other layouts, or choices between kernels have been measured.

    Args:
        net: the net.
        earlier: the compilation before, in which no value has a buffer; it cannot be used afterwards.
        compile_subgraph: see ``compile_steps``.
    """
    earlier.steps, earlier.constant_steps = [], []
    kernels = earlier.kernels
    steps, values = _choose_kernels(
        net, earlier.graph, kernels, _begin_again(kernels, earlier.values), compile_subgraph
    )
    return replace(
        earlier,
        steps=add_waits(steps.steps),
        constant_steps=steps.constant_steps,
        values=values,
        open_choices=kernels.open_choices(),
    )


def take_open_choices(options: PlanOptions) -> list[OpenChoice]:
    """Return the choices that were made unmeasured since the last call, by all engines that the options allow."""
    return [choice for engine in library_engines(options.uses_engine) for choice in engine.take_open_choices()]


SMALL_FLOPS = 8_000_000
"""Floating-point operations of an operator that one thread does in some 100 microseconds.

Several threads would save part of that on an idle machine. On a busy one they lose a time slice of the scheduler, some
milliseconds, whenever one of them waits for a core while the others wait for it.
"""

_FLOPS_PER_ELEMENT = 32  # operations that take as long as reading or writing an element


def _options_for_work(nodes: Sequence[Node], options: PlanOptions) -> PlanOptions:
    """Return the options with fewer lanes and threads where these operators are too small to gain from them.

    Where no exchange takes long, handing it to a lane of its own and waiting for that lane takes longer.
    """
    if options.exchange_lane and not any(_is_large(node) for node in nodes if node.role is Role.EXCHANGE):
        options = replace(options, exchange_lane=False)
    if options.lane_threads == 1 or not options.enabled("threads_by_work") or any(map(_is_large, nodes)):
        return options
    return replace(options, threads=options.lanes)


def _is_large(node: Node) -> bool:
    inputs = [value.spec.plain for value in node.inputs if value.spec is not None]
    elements = sum(spec.size for spec in inputs) + sum(value.spec.size for value in node.outputs if value.spec)
    if _FLOPS_PER_ELEMENT * elements > SMALL_FLOPS:
        return True
    try:
        return int(node.first.op.flops(*inputs)) > SMALL_FLOPS
    except Exception:  # the formula needs shapes that are known only when the net runs
        return True


def _begin_again(kernels: KernelsOfNodes, values: Sequence[Value]) -> list[Value]:
    """Return the values of a range, for other steps than those that they are in."""
    for value in values:  # the steps and the values refer to each other, so nothing else frees them
        value.producer, value.copies = None, {}
    return kernels.begin_again()


def _choose_kernels(
    net: Runner, graph: PlanGraph, kernels: KernelsOfNodes, values: list[Value], compile_subgraph: CompileSubgraph
) -> tuple[StepList, list[Value]]:
    """Choose the kernels of a range; again, when engines have built what they lack.

    Returns:
        The steps, and all values.
    """
    steps = _choose_once(net, graph, kernels, values, compile_subgraph)
    engines = [] if graph.in_subgraph else library_engines(graph.options.uses_engine)
    while any(engine.finish_kernels() for engine in engines):
        kernels.forget()
        values = _begin_again(kernels, values)
        steps = _choose_once(net, graph, kernels, values, compile_subgraph)
    return steps, values


def _choose_once(
    net: Runner, graph: PlanGraph, kernels: KernelsOfNodes, values: list[Value], compile_subgraph: CompileSubgraph
) -> StepList:
    options, in_subgraph = graph.options, graph.in_subgraph
    steps = StepList(values, options)
    lane_of = _Lanes(options)
    image_order = kernels.choose_image_order(partial(choose_image_order, graph.nodes, options))
    waiting = deque(graph.nodes)
    while waiting:
        node = waiting.popleft()
        instruction = node.first
        lane = lane_of(node)
        try:
            run = net.kernel_context(instruction)
            ctx = NodeContext(
                node, run, options, options.threads_of(lane), image_order, compile_subgraph,
                in_subgraph=in_subgraph, builds_later=not in_subgraph,
            )  # fmt: skip
            prepared = kernels.kernel(node, partial(choose_kernel, node, ctx, options))
            if prepared is None:
                waiting.extendleft(reversed(node.originals))
                continue
            warned = prepared.get(Warned)
            if warned is not None and warned.text not in net.warned:
                net.warned.add(warned.text)
                warn_user(f"{describe(net.name, instruction)}: {warned.text}")
            steps.add(node, prepared, lane, ctx)
        except Exception as error:
            raise located(describe(net.name, instruction), error, in_subgraph=in_subgraph) from error
    steps.finish()
    return steps


class _Lanes:
    """Assigns nodes to lanes by role and device; devices are numbered in the order in which they occur."""

    def __init__(self, options: PlanOptions) -> None:
        self._options = options
        self._lanes: dict[tuple[int, int], int] = {}

    def __call__(self, node: Node) -> int:
        if self._options.exchange_lane and node.role is Role.EXCHANGE:
            return self._options.lanes
        if between_processes(node):
            return 0  # one lane for all of them, so that their order is that of the net
        device = node.first.device
        lane = self._lanes.get(device)
        if lane is None:
            lane = self._lanes[device] = len(self._lanes) % self._options.lanes
        return lane
